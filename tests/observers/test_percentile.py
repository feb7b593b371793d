"""percentile and moving_percentile: the range that holds a given share of the values."""

import math

import numpy as np
import pytest
import torch

from detent.errors import RangeError
from detent.numerics import IntGrid, PerChannel, PerGroup, QParams, Scheme
from detent.observers import MinMax, MovingPercentile, Observer, Percentile

pytestmark = pytest.mark.usefixtures("one_thread")

INT8 = Scheme(IntGrid(8, narrow=True))
UINT8_AFFINE = Scheme(IntGrid(8, signed=False), symmetric=False)
BINS = 8192
KINDS = [pytest.param(Percentile, id="percentile"), pytest.param(MovingPercentile, id="moving_percentile")]


def asked(observer: Observer, *batches: torch.Tensor) -> QParams:
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bin_width(x: torch.Tensor, bins: int = BINS) -> float:
    return 2 * 2.0 ** (math.floor(math.log2(x.abs().max().item())) + 1) / bins


def quantile(x: torch.Tensor, q: float) -> float:
    return float(np.quantile(x.numpy().astype(np.float64), q, method="inverted_cdf"))


def ends(found: QParams, scheme: Scheme) -> tuple[float, float]:
    """The real numbers of the least and the greatest code."""
    scale, zero_point = found.scale.item(), found.zero_point.item()
    return (scheme.grid.qmin - zero_point) * scale, (scheme.grid.qmax - zero_point) * scale


@pytest.mark.parametrize("kind", KINDS)
def test_literally_on_ten_values(kind):
    # 90 % of the ten magnitudes lie in [0, 1]: the bin that 1.0 opens is 16 * 2 / 2^13 = 1/256 wide.
    x = torch.tensor([0.0, 0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -1.0, 9.0])
    found = asked(kind(INT8, percentile=90, bins=BINS), x)
    assert found.scale.item() * 127 == pytest.approx(1.0, abs=1 / 256)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percentile", [90, 99, 99.9, 99.99])
def test_symmetric_schemes_cut_the_magnitudes(kind, percentile):
    x = gauss(50_021)
    found = asked(kind(INT8, percentile=percentile, bins=BINS), x).scale.item() * 127
    assert found == pytest.approx(quantile(x.abs(), percentile / 100), abs=bin_width(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percentile", [90, 99, 99.9])
def test_affine_schemes_cut_each_tail(kind, percentile):
    # Log-normal minus one: a short tail below, a long one above.
    x = torch.exp(gauss(50_021)) - 1
    low, high = quantile(x, 1 - percentile / 100), quantile(x, percentile / 100)
    found = asked(kind(UINT8_AFFINE, percentile=percentile, bins=BINS), x)
    # A bin at either end.
    assert found.scale.item() * 255 == pytest.approx(high - low, abs=2 * bin_width(x))
    assert ends(found, UINT8_AFFINE)[0] == pytest.approx(low, abs=found.scale.item() / 2 + bin_width(x))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_tail_that_reaches_out_is_cut_from_a_symmetric_range(kind):
    # 1 % of the values lie above 10; nothing lies below -1. The symmetric range is the 98 % of |x|.
    x = torch.cat([torch.linspace(-1, 1, 9900), torch.linspace(10, 20, 100)])
    found = asked(kind(Scheme(IntGrid(8)), percentile=98, bins=BINS), x).scale.item()
    assert found * 127 == pytest.approx(quantile(x.abs(), 0.98), abs=bin_width(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", [pytest.param(INT8, id="symmetric"), pytest.param(UINT8_AFFINE, id="affine")])
def test_100_per_cent_is_minmax(kind, scheme):
    x = gauss(1000) + 0.5
    found, expected = asked(kind(scheme, percentile=100, bins=BINS), x), asked(MinMax(scheme), x)
    levels = scheme.grid.qmax if scheme.symmetric else scheme.grid.levels - 1
    assert found.scale.item() * levels == pytest.approx(expected.scale.item() * levels, abs=bin_width(x))
    assert found.zero_point.item() == expected.zero_point.item()


@pytest.mark.parametrize("kind", KINDS)
def test_the_range_never_leaves_what_was_seen(kind):
    x = torch.full((10,), 0.3)  # a bin is wider than the data
    found = asked(kind(INT8, percentile=99.99, bins=4), x)
    assert found.scale.item() == pytest.approx(0.3 / 127, rel=1e-6)  # float32


def test_the_default_keeps_9999_of_10000():
    x = gauss(100_003)
    assert asked(Percentile(INT8), x).scale.item() * 127 == pytest.approx(quantile(x.abs(), 0.9999), abs=bin_width(x))


@pytest.mark.parametrize("kind", KINDS)
def test_every_channel_is_cut_by_itself(kind):
    # PPQ refused percentile per channel.
    x = gauss(3, 10_007) * torch.tensor([[0.01], [1.0], [100.0]])
    found = asked(kind(Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0)), percentile=99, bins=2048), x)
    for channel, scale in zip(x, found.scale.tolist(), strict=True):
        assert scale * 127 == pytest.approx(quantile(channel.abs(), 0.99), abs=bin_width(channel, 2048))


@pytest.mark.parametrize("kind", KINDS)
def test_every_group_is_cut_by_itself(kind):
    x = torch.cat([gauss(2, 1003), 50 * gauss(2, 1003, seed=1)], dim=1)
    scheme = Scheme(IntGrid(8, narrow=True), granularity=PerGroup(axis=1, size=1003))
    found = asked(kind(scheme, percentile=99, bins=2048), x).scale
    assert found.shape == (2, 2)
    for group, scale in zip(x.reshape(4, 1003), found.flatten().tolist(), strict=True):
        assert scale * 127 == pytest.approx(quantile(group.abs(), 0.99), abs=bin_width(group, 2048))


def test_power_of_two_scales_do_not_clip_more():
    x = gauss(50_021)
    found = asked(Percentile(Scheme(IntGrid(8), scale="power_of_two"), percentile=99), x)
    assert found.scale.item() == 2**-5  # 2.58 / 127 = 0.0203, rounded up


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percentile", [50, 0, -1, 100.1, math.nan])
def test_a_share_outside_50_to_100_is_refused(kind, percentile):
    with pytest.raises(RangeError, match=r"\(50, 100\]"):
        kind(INT8, percentile=percentile)


# --- the moving form -----------------------------------------------------------------------------------------


def test_the_moving_form_averages_the_percentile_of_each_batch():
    batches = [gauss(5003, seed=i) * (i + 1) for i in range(4)]
    found = asked(MovingPercentile(INT8, percentile=99, momentum=0.75, bins=BINS), *batches).scale.item() * 127
    expected = quantile(batches[0].abs(), 0.99)
    for batch in batches[1:]:
        expected = 0.75 * expected + 0.25 * quantile(batch.abs(), 0.99)
    assert found == pytest.approx(expected, abs=bin_width(batches[-1]))  # the widest bin of the four


def test_the_moving_form_differs_from_the_percentile_of_everything():
    batches = [gauss(5003), 100 * gauss(5003, seed=1)]
    moving = asked(MovingPercentile(INT8, percentile=99, momentum=0.9), *batches).scale.item()
    whole = asked(Percentile(INT8, percentile=99), *batches).scale.item()
    assert moving < whole / 3  # 0.9 * 2.6 + 0.1 * 260 against 230


def test_the_first_batch_of_the_moving_form_counts_whole():
    x = gauss(5003)
    moving = asked(MovingPercentile(INT8, percentile=99, momentum=0.99), x)
    assert torch.equal(moving.scale, asked(Percentile(INT8, percentile=99), x).scale)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_a_momentum_outside_0_to_1_is_refused(momentum):
    with pytest.raises(RangeError, match="0 <= m < 1"):
        MovingPercentile(INT8, momentum=momentum)
