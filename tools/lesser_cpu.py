"""Runs a program on the kernels of a lesser x86 CPU, at full speed: engines take the kernels that CPUID tells them to.

    python -m tools.lesser_cpu avx2 python -m pytest tests/twin

Linux lets a process answer CPUID itself where the CPU can (Intel since Ivy Bridge: the flag `cpuid_fault`). A preloaded
library, `lesser_cpu.c`, hides what the kind of CPU lacks from the program, its threads and the programs that it starts.
Instructions are not taken away, and /proc/cpuinfo tells the truth.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["KINDS", "environment", "missing"]

SOURCE = Path(__file__).with_suffix(".c")
BUILT = SOURCE.parents[1] / ".cache" / "lesser_cpu"

ARCH_PRCTL, ARCH_SET_CPUID = 158, 0x1012

# Features are (subleaf of leaf 7, register, bit).
EAX, EBX, ECX, EDX = range(4)
AVX512 = tuple((0, EBX, bit) for bit in (16, 17, 28, 30, 31))  # F, DQ, CD, BW, VL: what Skylake-SP has
VNNI = (
    *((0, EBX, 21), (0, ECX, 1), (0, ECX, 6), (0, ECX, 11), (0, ECX, 12), (0, ECX, 14)),  # IFMA, VBMI, VBMI2, VNNI, ...
    *((0, ECX, 8), (0, ECX, 9), (0, ECX, 10), (0, EDX, 8)),  # GFNI, VAES, VPCLMULQDQ, VP2INTERSECT
)
AVX_VNNI = ((1, EAX, 4), (1, EAX, 23), (1, EDX, 4), (1, EDX, 5), (1, EDX, 10))  # and IFMA, INT8, NE_CONVERT, INT16
AMX = (
    *((0, EDX, 22), (0, EDX, 24), (0, EDX, 25), (1, EAX, 21), (1, EDX, 8)),
    *((0, EDX, 23), (1, EAX, 5), (1, EDX, 19)),  # what came with it: AVX-512's FP16 and BF16, AVX10
)

KINDS = {
    "avx2": ("avx2", (*AVX512, *VNNI, *AVX_VNNI, *AMX)),
    "avx512": ("avx512bw", (*VNNI, *AVX_VNNI, *AMX)),
    "avx_vnni": ("avx_vnni", (*AVX512, *VNNI, *AMX)),
    "vnni": ("avx512_vnni", (*AVX_VNNI, *AMX)),
}
"""By the names of `detent.cpus`: the flag of /proc/cpuinfo without which this CPU has no such kernels, and what of
the features in leaf 7 is hidden."""


def missing(kind: str) -> str:
    """Why this machine cannot run a program as on that kind of CPU; empty if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"a lesser CPU needs Linux on x86-64; this is {platform.system()} on {platform.machine()}"
    if ctypes.CDLL(None, use_errno=True).syscall(ARCH_PRCTL, ARCH_SET_CPUID, ctypes.c_long(1)) != 0:
        return "this CPU or its hypervisor has no CPUID faulting (the flag cpuid_fault in /proc/cpuinfo)"
    flag, _ = KINDS[kind]
    if flag not in Path("/proc/cpuinfo").read_text().split():
        return f"this CPU is no better than {kind}: it has no {flag}"
    if shutil.which("cc") is None:
        return "there is no C compiler (cc) to build tools/lesser_cpu.c"
    return ""


def environment(kind: str) -> dict[str, str]:
    """The variables of this process, and those that make a program see that kind of CPU."""
    _, hidden = KINDS[kind]
    masks = [0] * 8
    for subleaf, register, bit in hidden:
        masks[4 * subleaf + register] |= 1 << bit
    before = os.environ.get("LD_PRELOAD", "")
    preloaded = " ".join(filter(None, [str(library()), before]))
    return {**os.environ, "LD_PRELOAD": preloaded, "LESSER_CPU": ",".join(f"{mask:x}" for mask in masks)}


def library() -> Path:
    """`lesser_cpu.c`, compiled once for each version of it."""
    built = BUILT / f"{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not built.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        made = built.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O1", "-Wall", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl"], check=True, timeout=120)
        made.replace(built)
    return built


def main(arguments: Sequence[str]) -> str:
    """Becomes the program that is asked for, or says why not."""
    if len(arguments) < 2 or arguments[0] not in KINDS:
        return f"usage: python -m tools.lesser_cpu {'|'.join(KINDS)} PROGRAM [ARGUMENTS...]"
    kind, program = arguments[0], arguments[1:]
    reason = missing(kind)
    if not reason and shutil.which(program[0]) is None:
        reason = f"there is no program {program[0]!r}"
    if not reason:
        os.execvpe(program[0], program, environment(kind))
    return f"lesser_cpu: {reason}"


if __name__ == "__main__":
    print(main(sys.argv[1:]), file=sys.stderr)
    sys.exit(2)
