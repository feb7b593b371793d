"""Two real processes over gloo: every rank asks, and every rank gets the answer of one process with whole batches.

All cases run in one pair of processes. This file is also the program that they run, see the bottom.
"""

import datetime
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from detent.errors import DetentError
from detent.numerics import IntGrid, PerChannel, PerTensor, QParams, Rounding, Scheme
from detent.observers import OBSERVERS, Histogram, Observer
from detent.observers.ranks import gather_over_ranks, over_ranks

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.slow]

INT8, UINT8 = IntGrid(8), IntGrid(8, signed=False)
SECONDS = 240  # to import torch twice and exchange a few kilobytes; a rank that waits for ever is ended by then
OPTIONS: dict[str, dict[str, float]] = {"fixed": {"low": -3.0, "high": 3.0}, "moving_percentile": {"percentile": 95}}

# --- the cases ------------------------------------------------------------------------------------------------

MEANINGFUL = {
    f"{name}-{kind}-{'symmetric' if symmetric else 'affine'}": (
        name,
        Scheme(
            INT8,
            symmetric=symmetric,
            granularity=granularity,
            scale="power_of_two" if name.startswith("pow2_") else "float",
        ),
    )
    for name in OBSERVERS
    for kind, granularity in (("per-tensor", PerTensor()), ("per-channel", PerChannel(1)))
    for symmetric in (True, False)
    if not (name == "isotone" and kind == "per-channel") and not (name.startswith("pow2_") and not symmetric)
}


def batches(rank: int) -> list[torch.Tensor]:
    """What a rank sees: other values, other ranges and another number of batches than the other rank."""
    generator = torch.Generator().manual_seed(rank)
    scales = [(1e-3, 2e-3), (1e3, 2e3, 1.0)][rank]
    return [scale * torch.randn(5 + i, 4, generator=generator) for i, scale in enumerate(scales)]


def built(case: str) -> Observer:
    name, scheme = MEANINGFUL[case]
    return OBSERVERS[name](scheme, name="head", **OPTIONS.get(name, {}))


def answer(observer: Observer) -> tuple[torch.Tensor, torch.Tensor] | str:
    """The scale and the zero point, or the error as text."""
    try:
        found = observer.qparams()
    except DetentError as error:
        return f"{type(error).__name__}: {error}"
    return found.scale, found.zero_point


def with_nan_on_rank_1(case: str, rank: int) -> Observer:
    observer = built(case)
    for i, batch in enumerate(batches(rank)):
        if rank == 1 and i == 1:
            batch[0, 0] = math.nan
        observer.observe(batch)
    return observer


def with_nothing_on_rank_1(case: str, rank: int) -> Observer:
    observer = built(case)
    for batch in batches(rank) if rank == 0 else [torch.empty(0, 4)]:
        observer.observe(batch)
    return observer


def reductions(rank: int) -> dict[str, Any]:
    mine = torch.tensor([rank + 1.0, 10.0 - rank])
    found: dict[str, Any] = {how: over_ranks(mine, how) for how in ("min", "max", "sum", "mean")}
    found["left as it was"] = mine
    found["whole numbers"] = over_ranks(torch.tensor([2**53 + 1, rank]), "sum")
    found["gathered"] = gather_over_ranks(torch.full((2 - rank, 2), float(rank)))
    found["gathered from one"] = gather_over_ranks(torch.ones(3 * rank, 2))
    histogram = Histogram(8)
    histogram.add(torch.tensor([[0.1, 0.3, -0.2]] if rank == 0 else [[0.9]]))
    found["counts"] = histogram.over_ranks().counts
    found["own counts"] = histogram.counts
    return found


def votes(rank: int) -> Observer:
    """With one candidate a batch votes for its greatest value: 2^0 wins here, 2^5 there (of equals the coarser).

    Whole batches vote 3, 3, 5, 5, and 3, in which rank 1 has no part.
    """
    observer = OBSERVERS["pow2_mode"](Scheme(INT8, scale="power_of_two"), candidates=1)
    for exponent in ((0, 0, 0, 0, 3), (3, 3, 5, 5))[rank]:
        observer.observe(torch.tensor([127 * 2.0**exponent]))
    return observer


def negative_on_rank_1(rank: int) -> Observer:
    observer = OBSERVERS["minmax"](Scheme(UINT8), name="head")
    observer.observe(torch.tensor([1.0 - 2 * rank]))
    return observer


def races(rank: int) -> Observer:
    """Rank 0 alone would choose 63/64 of the range, which merges the two winners of rank 1."""
    observer = OBSERVERS["isotone"](Scheme(IntGrid(4)))
    observer.observe(torch.tensor([[[-16.0, 1.0, 0.5]], [[-16.0, 0.25, 0.125]]][rank]))
    return observer


def stochastic_isotone(rank: int) -> Observer:
    torch.manual_seed(rank)  # as in any training job
    observer = OBSERVERS["isotone"](Scheme(IntGrid(4), rounding=Rounding.STOCHASTIC))
    observer.observe(torch.tensor([[-16.0, 1.0, 0.5], [-16.0, 0.25, 0.125], [-3.0, 2.0, 1.9], [1.0, 1.1, 1.2]]))
    return observer


def work(rank: int) -> dict[str, Any]:
    """Everything a rank does, in the same order on both."""
    found: dict[str, Any] = {"reductions": reductions(rank)}
    for case in MEANINGFUL:
        observer = built(case)
        for batch in batches(rank):
            observer.observe(batch)
        found[case] = answer(observer)
        found[f"{case} again"] = answer(observer)
        found[f"{case} nan"] = answer(with_nan_on_rank_1(case, rank))
        found[f"{case} nothing"] = answer(with_nothing_on_rank_1(case, rank))
    found["votes"] = answer(votes(rank))
    found["negative"] = answer(negative_on_rank_1(rank))
    found["races"] = answer(races(rank))
    found["stochastic isotone"] = answer(stochastic_isotone(rank))
    return found


# --- the two processes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(rank), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    except subprocess.TimeoutExpired:
        pytest.fail("a rank waits for the other for ever")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def alone(case: str, rank: int) -> QParams:
    """The answer of one process that saw what this rank saw."""
    observer = built(case)
    for batch in batches(rank):
        observer.observe(batch)
    return observer.qparams()


def whole(case: str) -> QParams:
    """The answer of one process whose batches are put together from those of the ranks."""
    observer = built(case)
    for parts in itertools.zip_longest(batches(0), batches(1)):
        observer.observe(torch.cat([part for part in parts if part is not None]))
    return observer.qparams()


@pytest.mark.parametrize("case", MEANINGFUL)
def test_both_ranks_hold_the_same_answer(ranks, case):
    (scale, zero_point), (other_scale, other_zero_point) = ranks[0][case], ranks[1][case]
    assert torch.equal(scale, other_scale)
    assert torch.equal(zero_point, other_zero_point)


@pytest.mark.parametrize("case", MEANINGFUL)
def test_asking_twice_reduces_once(ranks, case):
    for found in ranks:
        assert all(torch.equal(*pair) for pair in zip(found[case], found[f"{case} again"], strict=True))


def cases_of(*names: str) -> list[str]:
    return [case for case, (name, _) in MEANINGFUL.items() if name in names]


SUMMED = ("std", "lsq", "lsq_plus")


@pytest.mark.parametrize("case", cases_of(*(name for name in OBSERVERS if name not in SUMMED)))
def test_two_ranks_are_one_process_with_whole_batches(ranks, case):
    scale, zero_point = ranks[0][case]
    expected = whole(case)
    assert torch.equal(scale, expected.scale)
    assert torch.equal(zero_point, expected.zero_point)
    if not case.startswith("fixed"):
        assert not torch.equal(alone(case, 0).scale, alone(case, 1).scale), "so that the reduction matters"


@pytest.mark.parametrize("case", cases_of(*SUMMED))
def test_moments_are_those_of_everything(ranks, case):
    scale, zero_point = ranks[0][case]
    expected = whole(case)
    torch.testing.assert_close(scale, expected.scale, rtol=1e-6, atol=0)  # float64 sums in another order
    assert torch.equal(zero_point, expected.zero_point)
    assert (alone(case, 0).scale / alone(case, 1).scale - 1).abs().min() > 1e-3, "so that the reduction matters"


def test_a_moving_average_literally(ranks):
    """Ends of whole batches, averaged: 0.9 of what was, 0.1 of the new one; the third batch is on rank 1 alone."""
    parts = list(itertools.zip_longest(batches(0), batches(1)))
    lows = [min(part.min().item() for part in both if part is not None) for both in parts]
    highs = [max(part.max().item() for part in both if part is not None) for both in parts]
    low, high = (0.81 * ends[0] + 0.09 * ends[1] + 0.1 * ends[2] for ends in (lows, highs))
    scale, _ = ranks[0]["moving_average-per-tensor-symmetric"]
    assert scale.item() == pytest.approx(max(high / 127, low / -128), rel=1e-6)  # float32


def test_the_votes_of_all_ranks_are_counted(ranks):
    assert [found["votes"][0].item() for found in ranks] == [8.0, 8.0]
    assert [votes(rank).qparams().scale.item() for rank in range(2)] == [1.0, 32.0], "so that the count matters"


def test_the_races_of_all_ranks_are_run(ranks):
    assert [found["races"][0].item() for found in ranks] == [2 * 15 / 64] * 2
    assert races(0).qparams().scale.item() == 2 * 63 / 64, "so that the gathering matters"


@pytest.mark.parametrize("case", MEANINGFUL)
def test_nan_on_one_rank_is_an_error_on_both(ranks, case):
    for found in ranks:
        assert found[f"{case} nan"].startswith("RangeError")
        assert "'head'" in found[f"{case} nan"]
    assert "on another rank" in ranks[0][f"{case} nan"]
    assert "on another rank" not in ranks[1][f"{case} nan"]


@pytest.mark.parametrize("case", MEANINGFUL)
def test_a_rank_that_saw_nothing_is_an_error_on_both(ranks, case):
    for found in ranks:
        assert found[f"{case} nothing"].startswith("RangeError")
        assert "'head'" in found[f"{case} nothing"]
    assert "a rank that observed nothing" in ranks[0][f"{case} nothing"]


def test_a_refusal_that_one_rank_causes_reaches_both(ranks):
    for found in ranks:
        assert found["negative"].startswith("RangeError: asked: 'head'")


def test_stochastic_rounding_does_not_part_the_ranks(ranks):
    assert torch.equal(ranks[0]["stochastic isotone"][0], ranks[1]["stochastic isotone"][0])


def test_reductions(ranks):
    for rank, found in enumerate(found["reductions"] for found in ranks):
        assert found["min"].tolist() == [1.0, 9.0]
        assert found["max"].tolist() == [2.0, 10.0]
        assert found["sum"].tolist() == [3.0, 19.0]
        assert found["mean"].tolist() == [1.5, 9.5]
        assert found["left as it was"].tolist() == [rank + 1.0, 10.0 - rank]
        assert found["whole numbers"].tolist() == [2**54 + 2, 1]


def test_gathering_rows_in_rank_order(ranks):
    for found in (found["reductions"] for found in ranks):
        assert found["gathered"].tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
        assert found["gathered from one"].tolist() == [[1.0, 1.0]] * 3


def test_histograms_of_different_width_are_summed(ranks):
    for found in (found["reductions"] for found in ranks):
        assert found["counts"].tolist() == [[0, 0, 0, 1, 1, 1, 0, 1]]
    assert [int(found["reductions"]["own counts"].sum()) for found in ranks] == [3, 1]


# --- one process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["min", "max", "sum", "mean"])
def test_in_one_process_a_reduction_is_the_tensor_itself(how):
    x = torch.tensor([1.0, 2.0])
    assert over_ranks(x, how) is x
    assert gather_over_ranks(x) is x


def run_as_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting-point'}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=SECONDS / 2),
    )
    torch.save(work(rank), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run_as_rank(int(sys.argv[1]), Path(sys.argv[2]))
