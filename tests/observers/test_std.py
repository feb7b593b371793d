"""std: mean plus and minus a few deviations, and it really clips."""

import math

import numpy as np
import pytest
import torch

from detent.errors import RangeError
from detent.numerics import IntGrid, PerChannel, PerTensor, QParams, Scheme
from detent.observers import MinMax, Std
from detent.observers.moments import Moments

INT8 = Scheme(IntGrid(8))
UINT8_AFFINE = Scheme(IntGrid(8, signed=False), symmetric=False)


def measured(scheme: Scheme, *batches: torch.Tensor, **options: float) -> QParams:
    observer = Std(scheme, name="pool", **options)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def minmax(scheme: Scheme, x: torch.Tensor) -> QParams:
    observer = MinMax(scheme)
    observer.observe(x)
    return observer.qparams()


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_symmetric_literally():
    # mean 0, variance (100 + 100) / 8 = 25: one deviation is 5
    x = torch.tensor([-10.0, 10.0, 0, 0, 0, 0, 0, 0])
    assert measured(INT8, x, sigmas=1.0).scale.item() == pytest.approx(5 / 127, rel=1e-6)  # float32
    assert measured(INT8, x, sigmas=1.5).scale.item() == pytest.approx(7.5 / 127, rel=1e-6)


def test_affine_literally():
    # mean 2.5, deviation 2.5 * sqrt(3): the lower end is what was seen, the upper end is clipped.
    x = torch.tensor([0.0] * 6 + [10.0] * 2)
    found = measured(UINT8_AFFINE, x, sigmas=1.0)
    high = 2.5 + 2.5 * math.sqrt(3)
    assert found.scale.item() == pytest.approx(high / 255, rel=1e-6)  # float32
    assert found.zero_point.item() == 0


def test_power_of_two_literally():
    scheme = Scheme(IntGrid(8), scale="power_of_two")
    x = torch.tensor([-10.0, 10.0, 0, 0, 0, 0, 0, 0])
    assert measured(scheme, x, sigmas=1.0).scale.item() == 2**-4  # 5 / 127 = 0.039 rounded up


def test_it_really_clips_a_gaussian():
    # MQBench took the wider of mean +- k sigma and the extremes, so that it never clipped.
    x = gauss(100_000)
    values = x.numpy().astype(np.float64)
    found = measured(INT8, x).scale.item()
    reach = max(abs(values.mean() - 3 * values.std()), abs(values.mean() + 3 * values.std()))
    # The upper end is divided by 127 and the lower by 128: they differ by less than a hundredth.
    assert found == pytest.approx(reach / 127, rel=0.01)
    assert found < 0.8 * minmax(INT8, x).scale.item()


@pytest.mark.parametrize("sigmas", [0.5, 2.6, 3.0])
def test_both_ends_against_numpy(sigmas):
    x = gauss(20_000) + 1.0
    values = x.numpy().astype(np.float64)
    low, high = values.mean() - sigmas * values.std(), values.mean() + sigmas * values.std()
    low = min(low, 0.0)
    found = measured(UINT8_AFFINE, x, sigmas=sigmas)
    assert found.scale.item() == pytest.approx((high - low) / 255, rel=1e-6)  # float32 sums of 20,000
    assert found.zero_point.item() == round(-low / ((high - low) / 255))


def test_it_is_never_wider_than_what_was_seen():
    x = torch.linspace(-1, 1, 101)  # three deviations would be 1.75
    assert torch.equal(measured(INT8, x).scale, minmax(INT8, x).scale)


def test_all_batches_count_by_their_size():
    x = gauss(1000) * torch.linspace(0.1, 3, 1000)
    whole = measured(INT8, x)
    parts = measured(INT8, *x.split([1, 9, 490, 500]))
    torch.testing.assert_close(parts.scale, whole.scale, rtol=1e-6, atol=0)  # float32 sums


def test_every_channel_has_its_own_moments():
    x = gauss(3, 5000) * torch.tensor([[1.0], [10.0], [100.0]]) + torch.tensor([[0.0], [-5.0], [70.0]])
    values = x.numpy().astype(np.float64)
    low = np.minimum(values.mean(1) - 2 * values.std(1), 0)
    high = np.maximum(values.mean(1) + 2 * values.std(1), 0)
    scheme = Scheme(IntGrid(8, signed=False), symmetric=False, granularity=PerChannel(0))
    found = measured(scheme, x, sigmas=2.0)
    np.testing.assert_allclose(found.scale.numpy(), (high - low) / 255, rtol=1e-6)  # float32 sums of 5,000
    assert found.zero_point.tolist() == np.rint(-low / ((high - low) / 255)).tolist()


@pytest.mark.parametrize("sigmas", [0.0, -1.0, math.nan])
def test_a_width_that_is_not_positive_is_refused(sigmas):
    with pytest.raises(RangeError, match="sigmas"):
        Std(INT8, sigmas=sigmas)


@pytest.mark.parametrize("sigmas", [0.5, 3.0])
@pytest.mark.parametrize("count", [3, 7, 10, 1000, 12345])
def test_constant_data_is_its_own_range(count, sigmas):
    # The float32 mean of many 0.1 is not 0.1; that must not turn the range inside out.
    found = measured(INT8, torch.full((count,), 0.1), sigmas=sigmas)
    assert found.scale.item() == pytest.approx(0.1 / 127, rel=1e-6)  # float32


@pytest.mark.parametrize("exponent", [-90, -75, 75, 90])
def test_the_squares_of_tiny_and_huge_data_do_not_leave_float32(exponent):
    x = gauss(1000)
    expected = math.ldexp(measured(INT8, x).scale.item(), exponent)
    found = measured(INT8, torch.ldexp(x, torch.tensor(exponent))).scale.item()
    assert found == pytest.approx(expected, rel=1e-6, abs=0)  # multiplying by a power of two is exact


# --- the moments it stands on --------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e5], ids=["centerd", "offset-1e3", "offset-minus-1e5"])
def test_moments_survive_an_offset_and_any_batches(offset):
    x = gauss(10_000, seed=2) + offset
    values = x.numpy().astype(np.float64)
    moments = Moments(PerTensor())
    for batch in x.split([1, 2, 997, 4000, 5000]):
        moments.add(batch)
    mean, deviation = moments.mean_and_std()
    assert mean.item() == pytest.approx(values.mean(), rel=1e-7, abs=1e-6)  # a float32 mean
    # E[x^2] - E[x]^2 in float32 would be off by 1000 at an offset of 1e5; the batch means are off by one ulp.
    assert deviation.item() == pytest.approx(values.std(), rel=1e-4)


def test_the_deviation_divides_by_the_count():
    moments = Moments(PerTensor())
    moments.add(torch.tensor([1.0, 3.0]))
    mean, deviation = moments.mean_and_std()
    assert mean.item() == 2.0
    assert deviation.item() == pytest.approx(1.0, rel=1e-6)  # a float32 norm; dividing by 1 less gives 1.41
