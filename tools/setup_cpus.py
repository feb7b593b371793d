"""Sets up what `make test-cpus` emulates: qemu, and an arm64 Debian with Python and the wheels that Detent needs.

    python tools/setup_cpus.py .cpus

Nothing outside of that folder changes and no rights are needed: packages are downloaded with apt under a state of its
own, and unpacked. It takes the machine's package sources, so the machine has to be a Debian.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent

PACKAGES = (
    *("ai-edge-litert", "annotated-types", "click", "flatbuffers", "filelock", "fsspec", "Jinja2", "MarkupSafe"),
    *("ml_dtypes", "mpmath", "ncnn", "networkx", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "openvino"),
    *("packaging", "protobuf", "pydantic", "pydantic_core", "PyYAML", "rich", "safetensors", "sympy", "typer"),
    *("typing_extensions", "typing-inspection"),
)
"""What Detent and its engines import there, at the versions of `constraints.txt`; MNN is the newest, as in its own
environment."""

TORCH = "2.9.1"
"""The last wheels for arm64 without CUDA that are no larger than needed."""

CONFIGURATION = """
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::Cache "{folder}/cache";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
"""


def main(folder: Path) -> None:
    stamp, made_by = folder / ".complete", Path(__file__).read_text() + (ROOT / "constraints.txt").read_text()
    if stamp.exists() and stamp.read_text() == made_by:
        return
    shutil.rmtree(folder, ignore_errors=True)
    unpack(folder / "host", architecture=_output("dpkg", "--print-architecture"), packages=["qemu-user-static"])
    unpack(folder / "arm64", architecture="arm64", packages=["python3", "libstdc++6", "libgomp1"])
    install(folder / "arm64")
    stamp.write_text(made_by)


def unpack(folder: Path, *, architecture: str, packages: Sequence[str]) -> None:
    """Debian packages and all that they depend on, below `folder`."""
    apt = folder / "apt"
    for made in ("cache/archives/partial", "state/lists/partial"):
        (apt / made).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(CONFIGURATION.format(architecture=architecture, folder=apt))
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    # A source of others that is out of reach fails here, and does not matter if the packages are found.
    subprocess.run(["apt-get", "-qq", "update"], env=environment, check=False)
    subprocess.run(["apt-get", "-qq", "-y", "--download-only", "install", *packages], env=environment, check=True)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, folder], check=True)


def install(system: Path) -> None:
    """Wheels for the Python of an unpacked system, where it finds them with `-I` too. What they depend on is in the
    list: pip would evaluate that for the machine it runs on."""
    python = re.search(r"python(3\.\d+)", str(next((system / "usr/bin").glob("python3.*"))))
    assert python is not None
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    wanted = ["MNN", f"torch=={TORCH}", *(f"{name}=={pinned[name]}" for name in PACKAGES)]
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
    options = ["--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={python[1]}", *platforms]
    target = system / "usr/lib/python3/dist-packages"
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, *wanted], check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
