"""The kinds of CPU on which engines compute different integers from the same file, and which one this machine has.

What differs: without VNNI an x86 CPU multiplies unsigned by signed bytes with `vpmaddubsw`, which adds two neighboring
products and saturates that to 16 bits, and engines that use it give other numbers where weights are large. And code
that works in blocks of a vector register may round what is left over at the end another way.
"""

from __future__ import annotations

import difflib
import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detent.errors import UnknownNameError

__all__ = ["CPUS", "X86", "Cpu", "find", "here"]


@dataclass(frozen=True)
class Cpu:
    """A kind of CPU: `saturates` if pairs of u8 x s8 products saturate at 16 bits on it; `register` is the number of
    bytes in its widest vector register."""

    name: str
    about: str
    register: int
    saturates: bool = False

    def __str__(self) -> str:
        return self.name


CPUS: Mapping[str, Cpu] = {
    cpu.name: cpu
    for cpu in (
        Cpu(
            "avx2", "x86 with AVX2 and without VNNI (Intel Haswell to Comet Lake, AMD Zen to Zen 3)", 32, saturates=True
        ),
        Cpu("avx512", "x86 with AVX-512 and without VNNI (Intel Skylake-SP)", 64, saturates=True),
        Cpu("avx_vnni", "x86 with AVX-VNNI and without AVX-512 (Intel Alder Lake and later)", 32),
        Cpu("vnni", "x86 with AVX-512 VNNI (Intel Cascade Lake and later, AMD Zen 4 and later)", 64),
        Cpu("amx", "x86 with AMX (Intel Sapphire Rapids and later)", 64),
        Cpu("arm64", "64-bit Arm", 16),
    )
}
"""By name; x86 from less to more."""

X86 = tuple(name for name in CPUS if name != "arm64")


def find(cpu: str | Cpu | None = None) -> Cpu:
    """The kind of CPU with that name; by default the one this program runs on.

    >>> find("avx2").saturates
    True
    """
    if cpu is None:
        return here()
    if isinstance(cpu, Cpu):
        return cpu
    if cpu not in CPUS:
        near = difflib.get_close_matches(cpu, CPUS, n=1)
        advice = f"did you mean {near[0]!r}?" if near else "use one of these"
        raise UnknownNameError(f"CPU {cpu!r}", f"not one of {', '.join(CPUS)}", advice)
    return CPUS[cpu]


@functools.cache
def here() -> Cpu:
    """The kind of CPU that this program runs on."""
    return kind_of(_features())


def kind_of(features: Mapping[str, Any]) -> Cpu:
    """The kind of CPU that has these features, named as `torch.cpu.get_capabilities` names them.

    >>> kind_of({"avx2": True, "avx512_bw": True, "avx512_vnni": True}).name
    'vnni'
    """
    if "arm" in str(features.get("architecture", "")).lower() or "aarch64" in str(features.get("architecture", "")):
        return CPUS["arm64"]
    if features.get("amx_int8") and features.get("amx_tile"):
        return CPUS["amx"]
    if features.get("avx512_vnni"):
        return CPUS["vnni"]
    if features.get("avx_vnni"):
        return CPUS["avx_vnni"]
    return CPUS["avx512" if features.get("avx512_bw") else "avx2"]


def _features() -> Mapping[str, Any]:
    import torch  # the names above are known without it

    asked = getattr(torch.cpu, "get_capabilities", None)  # younger than the oldest torch that Detent takes
    if asked is not None:
        found: Mapping[str, Any] = asked()
        return found
    flags = _linux_flags()
    return {"architecture": platform.machine(), "avx512_bw": "avx512bw" in flags, **dict.fromkeys(flags, True)}


def _linux_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(word for line in text.splitlines() if line.startswith("flags") for word in line.split())
