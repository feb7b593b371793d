"""The kind of CPU that oneDNN generates code for, which an environment variable can limit."""

from __future__ import annotations

import os
from collections.abc import Mapping

from detent.cpus import CPUS, X86, Cpu

__all__ = ["limited_by_environment"]

_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_KINDS = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2"), "avx2"),
    **dict.fromkeys(("AVX2_VNNI", "AVX2_VNNI_2"), "avx_vnni"),
    "AVX512_CORE": "avx512",
    **dict.fromkeys(("AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16"), "vnni"),
}
"""By the greatest set of instructions that oneDNN may use; others are no bound."""
_RUNS = {
    "avx2": {"avx2"},
    "avx512": {"avx2", "avx512"},
    "avx_vnni": {"avx2", "avx_vnni"},
    "vnni": {"avx2", "avx512", "vnni"},
    "amx": set(X86),
}
"""The kinds whose kernels a CPU runs."""


def limited_by_environment(cpu: Cpu, environment: Mapping[str, str] = os.environ) -> Cpu:
    """The kind of CPU with only the instructions that the environment allows.

    >>> limited_by_environment(CPUS["vnni"], {"ONEDNN_MAX_CPU_ISA": "AVX2"}).name
    'avx2'
    >>> limited_by_environment(CPUS["avx2"], {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}).name
    'avx2'
    """
    bound = _KINDS.get(next((environment[name].upper() for name in _VARIABLES if name in environment), ""))
    if bound is None or cpu.name not in _RUNS:
        return cpu
    return CPUS[[name for name in X86 if name in _RUNS[cpu.name] & _RUNS[bound]][-1]]
