"""moving_average: the exponential moving average of each batch's ends."""

import math

import numpy as np
import pytest
import torch

from detent.errors import RangeError
from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.observers import MinMax, MovingAverage

UINT8_AFFINE = Scheme(IntGrid(8, signed=False), symmetric=False)


def measured(scheme: Scheme, *batches: torch.Tensor, **options: float) -> QParams:
    observer = MovingAverage(scheme, **options)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def ends(found: QParams, scheme: Scheme) -> tuple[float, float]:
    """The real numbers of the least and the greatest code."""
    scale, zero_point = found.scale.item(), found.zero_point.item()
    return (scheme.grid.qmin - zero_point) * scale, (scheme.grid.qmax - zero_point) * scale


def test_two_batches_literally():
    found = measured(UINT8_AFFINE, torch.tensor([-1.0, 1.0]), torch.tensor([-1.0, 0.0, 2.0]), momentum=0.9)
    # low stays -1; high is 0.9 * 1 + 0.1 * 2 = 1.1
    assert found.scale.item() == pytest.approx(2.1 / 255, rel=1e-6)  # float32
    assert found.zero_point.item() == 121  # round(1 * 255 / 2.1)


def test_the_default_momentum_is_nine_tenths():
    batches = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])
    assert measured(UINT8_AFFINE, *batches).scale.item() == pytest.approx(1.1 / 255, rel=1e-6)  # float32


def test_symmetric_scale_literally():
    found = measured(Scheme(IntGrid(8)), torch.tensor([-1.0, 1.27]), torch.tensor([0.0, 2.54]), momentum=0.5)
    assert found.scale.item() == pytest.approx(1.905 / 127, rel=1e-6)  # float32
    assert found.zero_point.item() == 0


def test_power_of_two_scale_literally():
    scheme = Scheme(IntGrid(8), scale="power_of_two")
    assert measured(scheme, torch.tensor([1.0]), torch.tensor([2.0]), momentum=0.5).scale.item() == 2**-6


def test_the_first_batch_counts_whole():
    x = torch.tensor([-3.0, 7.0])
    reference = MinMax(UINT8_AFFINE)
    reference.observe(x)
    assert torch.equal(measured(UINT8_AFFINE, x, momentum=0.99).scale, reference.qparams().scale)


def test_momentum_zero_keeps_the_last_batch_only():
    found = measured(UINT8_AFFINE, torch.tensor([-100.0, 100.0]), torch.tensor([0.0, 2.55]), momentum=0.0)
    assert found.scale.item() == pytest.approx(0.01, rel=1e-6)  # float32
    assert found.zero_point.item() == 0


def test_an_odd_batch_fades():
    ordinary = torch.tensor([-1.0, 1.0])
    found = measured(UINT8_AFFINE, ordinary, 1000 * ordinary, *[ordinary] * 100, momentum=0.9)
    # What is left of the odd batch is 999 * 0.1 * 0.9 ** 100 = 0.003 on either side.
    assert found.scale.item() == pytest.approx(2.0 / 255, rel=0.003)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_twenty_batches_against_float64(momentum):
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(50, generator=generator) * (1 + i) for i in range(20)]
    low, high = batches[0].min().item(), batches[0].max().item()
    for batch in batches[1:]:
        low = momentum * low + (1 - momentum) * float(np.min(batch.numpy()))
        high = momentum * high + (1 - momentum) * float(np.max(batch.numpy()))
    found = measured(UINT8_AFFINE, *batches, momentum=momentum)
    assert found.scale.item() == pytest.approx((high - low) / 255, rel=1e-5)  # 20 roundings to float32
    assert found.zero_point.item() == round(-low / ((high - low) / 255))


def test_every_channel_is_averaged_by_itself():
    scheme = Scheme(IntGrid(8), granularity=PerChannel(0))
    first, second = torch.tensor([[1.27, 0.0], [0.0, 127.0]]), torch.tensor([[2.54, 0.0], [0.0, 0.0]])
    found = measured(scheme, first, second, momentum=0.5)
    torch.testing.assert_close(found.scale, torch.tensor([0.015, 0.5]))
    assert found.zero_point.tolist() == [0, 0]


def test_the_average_lies_between_the_batches():
    found = measured(UINT8_AFFINE, torch.tensor([-1.0, 1.0]), torch.tensor([-3.0, 5.0]), momentum=0.25)
    low, high = ends(found, UINT8_AFFINE)
    step = found.scale.item()  # the zero point is rounded to a step
    assert low == pytest.approx(-2.5, abs=step)
    assert high == pytest.approx(4.0, abs=step)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, 1.5, math.nan])
def test_a_momentum_outside_0_to_1_is_refused(momentum):
    with pytest.raises(RangeError, match="0 <= m < 1"):
        MovingAverage(UINT8_AFFINE, momentum=momentum)
