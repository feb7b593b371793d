"""The range follows the data in training and stands still in eval."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from detent.errors import RangeError, SchemeError
from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.quantizers import MovingRange

SHAPE = (4, 8, 6)
U8_AFFINE = Scheme(IntGrid(8, signed=False), symmetric=False)


def calibrated(scheme, qparams, shape=SHAPE, **options):
    quantizer = MovingRange(scheme, shape, **options)
    quantizer.initialize(qparams)
    return quantizer


def test_eval_forward_and_codes(scheme, example, truth):
    case = example(scheme)
    q = calibrated(scheme, case.qparams).eval()
    expected = truth.codes(case.x, case.qparams.scale, case.qparams.zero_point, scheme)
    # The ends are stored: a scale times a count of steps, divided by it again, is off by at most two roundings.
    assert torch.allclose(q.qparams().scale, case.qparams.scale, rtol=2**-22, atol=0)
    assert torch.equal(q.qparams().zero_point, case.qparams.zero_point)
    assert np.array_equal(q.codes(case.x).numpy(), expected)
    y = q(case.x)
    assert torch.equal(y, truth.values(expected, q.qparams().scale, case.qparams.zero_point, scheme))
    assert y.flatten()[0] == 0


def test_power_of_two_scales_come_back_as_they_were(some_qparams):
    """The next power of two of a scale that is one, off by a rounding, would be twice the scale."""
    for bits in (2, 4, 8, 16):
        scheme = Scheme(IntGrid(bits), symmetric=False, granularity=PerChannel(0), scale="power_of_two")
        qparams = some_qparams(scheme, (64,))
        assert torch.equal(calibrated(scheme, qparams, (64,)).qparams().scale, qparams.scale)


def test_eval_gradient(scheme, example):
    case = example(scheme)
    q = calibrated(scheme, case.qparams).eval()
    q(case.x).backward(case.g)
    inside = (case.r >= case.lo) & (case.r <= case.hi)
    assert torch.equal(case.x.grad, case.g * torch.tensor(inside))


def test_training_follows_the_moving_average(scheme, example, truth, close):
    """Three batches, the average written out in float64; each batch is quantized with the range it has moved."""
    momentum = 0.8
    case = example(scheme)
    q = calibrated(scheme, case.qparams, momentum=momentum)
    qmin, qmax = truth.ends(scheme.grid)
    observed = case.qparams.scale.double().numpy(), case.qparams.zero_point.numpy()
    low, high = (qmin - observed[1]) * observed[0], (qmax - observed[1]) * observed[0]
    for seed in range(3):
        x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) * (seed + 1)
        y = q(x)
        low = momentum * low + (1 - momentum) * np.minimum(least(x.double().numpy(), scheme, np.minimum), 0)
        high = momentum * high + (1 - momentum) * np.maximum(least(x.double().numpy(), scheme, np.maximum), 0)
        close(q.low, low)
        close(q.high, high)
        if scheme.symmetric:
            scale = np.maximum(high / qmax, low / qmin) if qmin else high / qmax
        else:
            scale = (high - low) / (qmax - qmin)
        if scheme.scale == "power_of_two":
            scale = 2.0 ** np.ceil(np.log2(scale))
        close(q.qparams().scale, scale)
        zero_point = 0 if scheme.symmetric else np.clip(np.rint(qmin - low / scale), qmin, qmax)
        assert np.array_equal(q.qparams().zero_point.numpy(), np.broadcast_to(zero_point, scale.shape))
        truth.assert_on_grid(y, q.qparams(), scheme)
        full = truth.spread(q.qparams().scale.numpy(), scheme, SHAPE)
        zero = truth.spread(q.qparams().zero_point.numpy(), scheme, SHAPE)
        clipped = np.clip(x.double().numpy(), (qmin - zero) * full, (qmax - zero) * full)
        whole_step = scheme.rounding.value in ("floor", "ceil")
        # Within half a step (a whole one where rounding goes one way only), up to float32 in x / s.
        assert np.all(np.abs(y.double().numpy() - clipped) <= (1 if whole_step else 0.501) * full)


def least(x, scheme, pick):
    """The reduction of x by `pick` over the elements that share a scale."""
    kind = scheme.granularity
    if hasattr(kind, "size"):
        return pick.reduceat(x, np.arange(0, x.shape[kind.axis], kind.size), axis=kind.axis)
    if hasattr(kind, "axis"):
        return pick.reduce(np.moveaxis(x, kind.axis, 0).reshape(x.shape[kind.axis], -1), axis=1)
    return pick.reduce(x, axis=None)


def test_literal_average():
    q = calibrated(U8_AFFINE, QParams(torch.tensor(0.5), torch.tensor(100)), momentum=0.75)  # [-50, 77.5]
    q(torch.tensor([-90.0, 37.5]))
    assert (q.low.item(), q.high.item()) == (-60.0, 67.5)
    q(torch.tensor([5.0, 7.5]))  # the batch's range is widened to hold zero
    assert (q.low.item(), q.high.item()) == (-45.0, 52.5)
    q(torch.tensor([-9.0, -1.0]))
    assert (q.low.item(), q.high.item()) == (-36.0, 39.375)


def test_each_number_of_a_vector_may_have_its_own_range():
    """A bias per channel: there is nothing to reduce over."""
    scheme = Scheme(IntGrid(8), granularity=PerChannel(0))
    q = calibrated(scheme, QParams.symmetric(torch.ones(3)), (3,), role="bias", momentum=0.0)
    q(torch.tensor([-1.0, 127.0, 0.5]))
    assert q.low.tolist() == [-1.0, 0.0, 0.0]
    assert q.high.tolist() == [0.0, 127.0, 0.5]


def test_momentum_0_is_the_last_batch():
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0)), momentum=0.0)
    q(torch.tensor([-1.0, 4.1]))
    assert (q.low.item(), q.high.item()) == pytest.approx((-1.0, 4.1))


def test_eval_stands_still():
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0))).eval()
    state = {name: tensor.clone() for name, tensor in q.state_dict().items()}
    q(torch.tensor([-1e6, 1e6]))
    q.codes(torch.tensor([-1e6, 1e6]))
    assert all(torch.equal(tensor, state[name]) for name, tensor in q.state_dict().items())


def test_codes_do_not_move_the_range_in_training():
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0)))
    q.codes(torch.tensor([-1e6, 1e6]))
    assert q.training
    assert (q.low.item(), q.high.item()) == (0.0, 255.0)


def test_an_empty_batch_moves_nothing():
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0)))
    assert q(torch.empty(0, 3)).shape == (0, 3)
    assert q.high.item() == 255.0


def test_half_precision_moves_a_float32_range():
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0)), momentum=0.5)
    assert q(torch.tensor([1.0, 2.0], dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert q.high.dtype == torch.float32
    assert q.high.item() == 128.5


def test_a_range_that_has_shrunk_to_nothing_still_has_a_scale():
    for scheme in (U8_AFFINE, Scheme(IntGrid(8)), Scheme(IntGrid(8), scale="power_of_two")):
        q = calibrated(scheme, QParams.symmetric(torch.tensor(1.0)), momentum=0.0)
        y = q(torch.zeros(4))
        assert y.tolist() == [0.0] * 4
        assert q.qparams().scale.item() > 0


@pytest.mark.parametrize("signed", [True, False], ids=["int32", "uint32"])
def test_zero_stays_on_a_grid_of_32_bits(signed):
    """All of the range below zero: the zero point is the greatest code, which float32 does not hold."""
    grid = IntGrid(32, signed=signed)
    q = calibrated(Scheme(grid, symmetric=False), QParams(torch.tensor(2.0**-32), torch.tensor(grid.qmax))).eval()
    assert q.qparams().zero_point.item() <= grid.qmax
    assert q(torch.tensor([0.0, 1.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_a_bad_batch_is_an_error_that_names_the_tensor_when_the_range_is_asked_for(bad, refuses):
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0)), name="layer1.act")
    q(torch.tensor([bad, 1.0]))
    with refuses(RangeError, asked="layer1.act"):
        q.qparams()


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 2.0, float("nan")])
def test_an_impossible_momentum_is_refused(momentum, refuses):
    with refuses(SchemeError, asked=f"momentum {momentum} for 'act'", found="past", to_do="0 <= m < 1"):
        MovingRange(U8_AFFINE, (), momentum=momentum, name="act")


RANK = """
import json, sys
from datetime import timedelta

import torch
import torch.distributed as dist

from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.quantizers.moving_range import MovingRange

rank, meeting, batches = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=120))
scheme = Scheme(IntGrid(8, signed=False), symmetric=False, granularity=PerChannel(1))
q = MovingRange(scheme, (1, 2), momentum=0.5)
q.initialize(QParams(torch.tensor([1.0, 1.0]), torch.tensor([0, 0])))
for batch in batches[rank]:
    q(torch.tensor(batch).reshape(-1, 2))
found = q.qparams()
print(json.dumps([q.low.tolist(), q.high.tolist(), found.scale.tolist(), found.zero_point.tolist()]))
dist.destroy_process_group()
"""


def on_two_ranks(tmp_path, batches):
    """What each rank holds after its batches."""
    meeting = (tmp_path / "meeting").as_uri()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), meeting, json.dumps(batches)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        done = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(error for _, error in done)
    return [json.loads(out) for out, _ in done]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_model_of_another_dtype_moves_too(dtype, given):
    """`model.double()` turns the ends into float64; whatever comes by then moves them."""
    q = calibrated(U8_AFFINE, QParams(torch.tensor(1.0), torch.tensor(0)), momentum=0.5).to(dtype)
    out = q(torch.tensor([0.0, 1.0], dtype=given))
    assert out.dtype == given
    assert q.high.dtype == dtype
    assert q.high.item() == 128.0


@pytest.mark.full
@pytest.mark.slow
def test_every_rank_holds_the_same_range(tmp_path):
    """Each end moves toward that of all ranks' batches together."""
    first, second = on_two_ranks(tmp_path, [[[[-1.0, 5.0]], [[8.0, 1.0]]], [[[3.0, -65.0]], [[-2.0, 9.0], [0.0, 6.0]]]])
    assert first == second
    low, high, _, _ = first
    assert low == [(-1 / 2 - 2) / 2, -65 / 4]
    assert high == [((255 + 3) / 2 + 8) / 2, ((255 + 5) / 2 + 9) / 2]


@pytest.mark.slow
def test_a_rank_with_an_empty_batch_keeps_step_with_the_others(tmp_path):
    """The last batch of an epoch may leave a rank with nothing; the others must not wait for it for ever."""
    first, second = on_two_ranks(tmp_path, [[[[-1.0, 5.0]], [[4.0, 4.0]]], [[], [[8.0, 2.0]]]])
    assert first == second
    assert first[1] == [((255 + 0) / 2 + 8) / 2, ((255 + 5) / 2 + 4) / 2]
