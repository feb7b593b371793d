"""CPUs that qemu emulates, and how a program is run on one."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ARM64", "AVX2", "EMULATORS", "Emulator"]

ROOT = Path(__file__).parents[2]
SYSTEMS = ROOT / ".cpus"
"""What `tools/setup_cpus.py` made."""

CPUINFO = """processor\t: 0
Features\t: fp asimd {features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: {part}
CPU revision\t: 1

"""

_RUN = """
import runpy, sys
sys.executable = {python!r}
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Emulator:
    """A CPU by the name that qemu has for it; of an arm64 one also what /proc/cpuinfo says."""

    kind: str
    model: str
    part: str = ""
    features: str = ""

    def __str__(self) -> str:
        return self.model.split(",")[0]

    def missing(self) -> str:
        """Why it cannot be emulated here; empty if it can."""
        if self._qemu() is None:
            return "qemu-user-static is not installed: make test-cpus sets it up"
        if self.part and not (SYSTEMS / ".complete").exists():
            return "there is no arm64 Python: make test-cpus sets it up"
        return ""

    def run(self, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m module arguments` on that CPU."""
        if self.part:
            self._describe(SYSTEMS / "arm64")
        paths = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
        with tempfile.TemporaryDirectory() as folder:
            python = self._python(Path(folder))
            return subprocess.run(
                [python, "-c", _RUN.format(python=str(python)), module, *arguments],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=3600,
                check=False,
            )

    def _python(self, folder: Path) -> Path:
        """A Python on that CPU, as one file to execute: what an emulated program starts is not emulated by itself."""
        command = [str(self._qemu()), "-cpu", self.model]
        if self.part:
            system = SYSTEMS / "arm64"
            command += ["-L", str(system), str(system / "usr/bin/python3"), "-s"]
        else:
            command += [sys.executable]
        file = folder / "python"
        file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        file.chmod(0o755)
        return file

    def _qemu(self) -> str | None:
        name = "qemu-aarch64-static" if self.part else "qemu-x86_64-static"
        return shutil.which(name, path=os.pathsep.join([str(SYSTEMS / "host/usr/bin"), os.environ.get("PATH", "")]))

    def _describe(self, system: Path) -> None:
        """qemu takes a file of the system it is given before the machine's. LiteRT, and ONNX Runtime since 1.31, end in
        a segmentation fault where /proc/cpuinfo is that of another architecture."""
        (system / "proc").mkdir(exist_ok=True)
        (system / "proc/cpuinfo").write_text(CPUINFO.format(features=self.features, part=self.part))


AVX2 = Emulator("avx2", "Haswell-noTSX")
ARM64 = (
    Emulator("arm64", "cortex-a72", "0xd08"),
    Emulator("arm64", "neoverse-n1", "0xd0c", "asimddp"),
    # With SME the answers of LiteRT and OpenVINO are wrong throughout under qemu 7.2.
    Emulator("arm64", "max,sme=off", "0xd40", "asimddp i8mm sve"),
)
"""Without dot products, with them, and with products of matrices (i8mm) and SVE."""
EMULATORS = (AVX2, *ARM64)
