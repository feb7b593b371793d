"""Which kind a CPU is, by what it can do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from detent import cpus
from detent.cpus import CPUS, X86, find, kind_of
from detent.errors import UnknownNameError

HASWELL = {"architecture": "x86_64", "avx2": True, "avx512_bw": False, "avx512_vnni": False, "avx_vnni": False}
SKYLAKE = {**HASWELL, "avx512_f": True, "avx512_bw": True}
CASCADE_LAKE = {**SKYLAKE, "avx512_vnni": True}


@pytest.mark.parametrize(
    ("features", "kind"),
    [
        pytest.param(HASWELL, "avx2", id="Haswell"),
        pytest.param({**HASWELL, "amx_int8": False, "clflushopt": True}, "avx2", id="Zen 3"),
        pytest.param(SKYLAKE, "avx512", id="Skylake-SP"),
        pytest.param(CASCADE_LAKE, "vnni", id="Cascade Lake"),
        pytest.param({**CASCADE_LAKE, "avx512_bf16": True}, "vnni", id="Zen 4"),
        pytest.param({**HASWELL, "avx_vnni": True}, "avx_vnni", id="Alder Lake"),
        pytest.param(
            {**CASCADE_LAKE, "avx_vnni": True, "amx_int8": True, "amx_tile": True}, "amx", id="Sapphire Rapids"
        ),
        pytest.param({**CASCADE_LAKE, "avx_vnni": True, "amx_int8": True}, "vnni", id="AMX without tiles"),
        pytest.param({"architecture": "aarch64", "neon": True, "dotprod": True}, "arm64", id="Graviton"),
        pytest.param({"architecture": "arm64", "neon": True}, "arm64", id="Apple"),
        pytest.param({"architecture": "ARM64"}, "arm64", id="Windows on Arm"),
        pytest.param({}, "avx2", id="nothing known"),
    ],
)
def test_kinds(features: dict[str, object], kind: str) -> None:
    assert kind_of(features) is CPUS[kind]


def test_pairs_saturate_without_vnni_alone() -> None:
    assert [name for name, cpu in CPUS.items() if cpu.saturates] == ["avx2", "avx512"]
    assert X86 == ("avx2", "avx512", "avx_vnni", "vnni", "amx")
    assert [cpu.register for cpu in CPUS.values()] == [32, 64, 32, 64, 64, 16]


def test_a_kind_is_found_by_name_as_it_is_or_where_it_runs() -> None:
    assert find("amx") is CPUS["amx"]
    assert find(CPUS["avx512"]) is CPUS["avx512"]
    assert find() is find(None) is cpus.here()
    assert str(find("vnni")) == "vnni"


def test_an_unknown_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"(?s)CPU 'avx-vnni'.*avx2, avx512, .*did you mean 'avx_vnni'\?"):
        find("avx-vnni")
    with pytest.raises(UnknownNameError, match="use one of these"):
        find("riscv")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_without_torch_s_answer_linux_is_asked(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.9 has no `get_capabilities`."""
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    monkeypatch.setattr(cpus.platform, "machine", lambda: machine)
    monkeypatch.setattr(cpus, "_linux_flags", lambda: frozenset({"avx2", "avx512bw", "avx512_vnni"}))
    assert kind_of(cpus._features()).name == ("vnni" if machine == "x86_64" else "arm64")


def test_the_flags_of_linux_are_read(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpus, "Path", lambda _name: info)
    assert cpus._linux_flags() == frozenset()
    info.write_text("model name : some\nflags\t\t: fpu avx2 amx_tile\nbugs : spectre\n")
    assert {"fpu", "avx2", "amx_tile"} <= cpus._linux_flags()
    assert "spectre" not in cpus._linux_flags()


def test_the_kind_at_hand_is_that_of_a_fresh_process() -> None:
    program = "from detent import cpus; print(cpus.here())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.strip() == cpus.here().name
