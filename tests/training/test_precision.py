"""Mixed precision: half where it may be, float32 where it must be, and exact resumption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from detent.errors import EngineError, RecipeError
from detent.graph import FoldedBatchNorm
from detent.training import Precision
from detent.training import precision as module
from tests.training.jobs import STEADY_KERNELS, make_run
from tests.training.precision_job import CASES, FEW, HALVES

ROOT = Path(__file__).resolve().parents[2]
HALF = {"bf16": "torch.bfloat16", "16": "torch.float16"}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process found; see the job for why it is another one."""
    return found_in(tmp_path_factory.mktemp("precision"), FEW)


@pytest.fixture(scope="module")
def further(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same of the other cases."""
    return found_in(tmp_path_factory.mktemp("precision"), [case for case in CASES if case not in FEW])


@pytest.fixture
def of_case(request: pytest.FixtureRequest, case: str) -> dict[str, Any]:
    result: dict[str, Any] = request.getfixturevalue("found" if case in FEW else "further")[case]
    return result


def found_in(folder: Path, cases: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1", **STEADY_KERNELS}
    command = [sys.executable, "-m", "tests.training.precision_job", str(folder), *cases]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    read: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return read


@pytest.mark.by_default(*FEW)
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_layers_compute_in_half_and_everything_that_stays_is_float32(
    of_case: dict[str, Any], case: str, precision: str
) -> None:
    one = of_case[precision]
    whole = case.endswith(("2", "3"))  # these strategies divide by statistics of the batch, so they compute in float32
    assert HALF[precision] in one["seen"]["in training"]
    assert ("torch.float32" in one["seen"]["in training"]) == whole
    assert one["seen"]["in eval"] == ["torch.float32"], "ranges are measured and models validated as they are deployed"
    assert one["seen"]["gradients"] == ["torch.float32"]
    assert set(one["kept"]) <= {"torch.float32", "torch.int64"}, "weights, scales, momenta, averages"


@pytest.mark.by_default(*FEW)
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("case", CASES)
def test_it_learns_what_float32_learns(of_case: dict[str, Any], precision: str) -> None:
    half, full = of_case[precision], of_case["32"]
    assert half["losses"] != full["losses"]
    # 8 bits of mantissa and a code that flips now and then: a few hundredths of a loss near 1.
    assert half["losses"] == pytest.approx(full["losses"], abs=0.05)
    assert half["losses"][-1] < half["losses"][0] - 0.1
    for one, other in zip(half["scales"], full["scales"], strict=True):
        assert one == pytest.approx(other, rel=0.05)


@pytest.mark.by_default(*FEW)
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("case", ["lsq, strategy 4", "moving ranges, strategy 4"])
def test_resuming_is_exact(of_case: dict[str, Any], precision: str) -> None:
    assert of_case[f"resumed in {precision}"] == []


def test_a_step_that_overflows_is_left_out(found: dict[str, Any]) -> None:
    one = found["overflow"]
    assert one["moved"] == []
    assert one["after"] == one["before"] / 2


def test_another_precision_is_refused_at_resuming(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe="ptq")
    run.save()
    path = run.last
    assert path is not None
    other = make_run(tmp_path, recipe="ptq")
    other.precision.name = "bf16"
    with pytest.raises(RecipeError, match="trained in '32'"):
        other.resume(path)


def test_kernels_that_end_the_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(module, "_names_amx", lambda: True)
    monkeypatch.setattr(module, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL) # {dtype}")
    with pytest.raises(EngineError, match="signal 4"):
        Precision("bf16")
    Precision("32")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(RecipeError, match="not one of 32, bf16, 16"):
        Precision("64", torch.device("cpu"))  # type: ignore[arg-type]


def test_blocks_nest_and_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_refuse_broken_kernels", lambda _: None)
    prepared = make_run(recipe="lsq", strategy=3).prepared
    folded = [m for m in prepared.modules() if isinstance(m, FoldedBatchNorm)]
    half = Precision("bf16")
    with half.forward(prepared):
        with pytest.raises(ZeroDivisionError), half.forward(prepared):
            raise ZeroDivisionError
        assert [one.in_float32 for one in folded] == [True] * len(folded)
    assert folded
    assert not any(one.in_float32 for one in folded)
