"""A program on the kernels of a lesser CPU, where Linux and the CPU let it answer CPUID itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detent.cpus import X86
from tools import lesser_cpu

ROOT = Path(__file__).parents[2]

SEEN = """
import ctypes, faulthandler, os, signal, subprocess, sys, threading
from detent import cpus
faulthandler.enable()
gone = (ctypes.c_size_t * 3)(4096, 0, 1 << 16)  # an alternate stack where nothing is mapped
assert ctypes.CDLL(None).sigaltstack(gone, None) == 0
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
seen = [cpus.here().name]
thread = threading.Thread(target=lambda: seen.append(cpus.here().name))
thread.start(); thread.join()
program = [sys.executable, "-c", "from detent import cpus; print(cpus.here())"]
seen.append(subprocess.run(program, capture_output=True, text=True, timeout=300, check=True).stdout.strip())
print(*seen, flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.lesser_cpu", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow  # two programs that load torch
def test_a_program_its_threads_and_its_children_see_the_lesser_cpu_and_keep_their_handlers() -> None:
    if reason := lesser_cpu.missing("avx2"):
        pytest.skip(reason)
    ended = run("avx2", sys.executable, "-c", SEEN)
    assert ended.stdout.split() == ["avx2", "avx2", "avx2"], ended.stderr
    assert "Fatal Python error: Segmentation fault" in ended.stderr  # from faulthandler, which CPUID did not call
    assert ended.returncode == -signal.SIGSEGV


def test_each_kind_lacks_what_the_better_ones_have() -> None:
    named = {
        "avx512f": (0, lesser_cpu.EBX, 16),
        "avx512_vnni": (0, lesser_cpu.ECX, 11),
        "avx_vnni": (1, lesser_cpu.EAX, 4),
        "amx_int8": (0, lesser_cpu.EDX, 25),
    }
    assert {
        kind: {name for name, bit in named.items() if bit in bits} for kind, (_, bits) in lesser_cpu.KINDS.items()
    } == {
        "avx2": {"avx512f", "avx512_vnni", "avx_vnni", "amx_int8"},
        "avx512": {"avx512_vnni", "avx_vnni", "amx_int8"},
        "avx_vnni": {"avx512f", "avx512_vnni", "amx_int8"},
        "vnni": {"avx_vnni", "amx_int8"},
    }
    assert set(lesser_cpu.KINDS) == {*X86} - {"amx"}


@pytest.mark.parametrize(("kind", "program"), [("avx3", ["true"]), ("avx2", [])], ids=["unknown-kind", "no-program"])
def test_what_cannot_be_read_is_answered_with_the_usage(kind: str, program: list[str]) -> None:
    usage = "usage: python -m tools.lesser_cpu avx2|avx512|avx_vnni|vnni PROGRAM [ARGUMENTS...]"
    assert lesser_cpu.main([kind, *program]) == usage


def test_a_machine_that_cannot_do_it_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lesser_cpu.platform, "machine", lambda: "aarch64")
    assert lesser_cpu.main(["avx2", "true"]).startswith("lesser_cpu: a lesser CPU needs Linux on x86-64; this is ")
