"""kl: the window of the histogram that keeps most information."""

import math

import numpy as np
import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.observers import Kl, MinMax, Observer
from detent.observers.kl import divergence

pytestmark = pytest.mark.usefixtures("one_thread")

INT8 = IntGrid(8)
UINT8 = IntGrid(8, signed=False)


def asked(observer: Observer, *batches: torch.Tensor) -> QParams:
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def gauss(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def window(found: QParams, scheme: Scheme) -> tuple[float, float]:
    """The real numbers of the least and the greatest code."""
    scale, zero_point = found.scale.item(), found.zero_point.item()
    return (scheme.grid.qmin - zero_point) * scale, (scheme.grid.qmax - zero_point) * scale


# --- the divergence ------------------------------------------------------------------------------------------


def diverged(counts: list[int], start: int, stop: int, levels: int) -> float:
    return divergence(torch.tensor([counts]), torch.tensor([start]), torch.tensor([stop]), levels).item()


@pytest.mark.parametrize(
    ("counts", "levels", "expected"),
    [
        pytest.param([4, 4, 2, 2], 2, 0.0, id="even-inside-the-groups"),
        pytest.param([6, 2, 2, 2], 2, 0.5 * math.log(3 / 2) + 1 / 6 * math.log(1 / 2), id="uneven-inside-a-group"),
        pytest.param([5, 1, 7, 3], 4, 0.0, id="a-level-for-each-bin"),
        pytest.param([4, 0, 3, 0], 2, 0.0, id="empty-bins-get-no-mass"),
    ],
)
def test_the_divergence_literally(counts, levels, expected):
    assert diverged(counts, 0, 4, levels) == pytest.approx(expected, abs=1e-12)  # float64


def test_what_is_clipped_is_added_to_the_outermost_bins():
    # Inside [1, 3) lie 2 and 2; P is (2 + 4, 2 + 2) / 10, Q is (2, 2) / 4.
    expected = 0.6 * math.log(0.6 / 0.5) + 0.4 * math.log(0.4 / 0.5)
    assert diverged([4, 2, 2, 2], 1, 3, 2) == pytest.approx(expected, abs=1e-12)  # float64


def test_mass_that_is_clipped_into_an_empty_bin_is_dear():
    assert diverged([10, 0, 0, 10], 0, 3, 3) > 5  # half of the mass has no counterpart: at least log(1e9) / 2 - 1


def test_the_divergence_against_the_definition_in_numpy():
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 20, size=(20, 48)) * (generator.random((20, 48)) < 0.7)
    start, stop, levels = 8, 40, 8  # groups of four bins
    found = divergence(torch.from_numpy(counts), torch.full((20,), start), torch.full((20,), stop), levels).numpy()
    for row, value in zip(counts, found, strict=True):
        inside = row[start:stop].astype(np.float64)
        p = inside.copy()
        p[0] += row[:start].sum()
        p[-1] += row[stop:].sum()
        q = np.concatenate(
            [np.where(group > 0, group.sum() / max((group > 0).sum(), 1), 0) for group in np.split(inside, levels)]
        )
        if ((p > 0) & (q == 0)).any():
            assert value > 0.1  # not comparable: the definition gives infinity
            continue
        p, q = p / p.sum(), q / q.sum()
        expected = np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0]))
        assert value == pytest.approx(expected, abs=1e-9)  # float64


# --- the range -----------------------------------------------------------------------------------------------

SCHEMES = [
    pytest.param(Scheme(INT8), id="int8-symmetric"),
    pytest.param(Scheme(IntGrid(4)), id="int4-symmetric"),
    pytest.param(Scheme(INT8, symmetric=False), id="int8-affine"),
    pytest.param(Scheme(UINT8, symmetric=False), id="uint8-affine"),
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_clean_uniform_range_is_kept(scheme):
    x = torch.linspace(-0.999, 0.999, 200_001)
    found, whole = asked(Kl(scheme), x), asked(MinMax(scheme), x)
    assert found.scale.item() == pytest.approx(whole.scale.item(), rel=0.01)  # a candidate is 1/128 of the range
    assert abs(found.zero_point.item() - whole.zero_point.item()) <= 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_far_outlier_is_clipped_and_the_body_is_not(scheme):
    x = torch.cat([gauss(100_000), torch.tensor([100.0])])
    low, high = window(asked(Kl(scheme), x), scheme)
    assert high < 25  # of 100
    assert high > 2.5  # 99.4 % of the body
    assert low < -2.5


@pytest.mark.parametrize("sign", [pytest.param(1, id="above"), pytest.param(-1, id="below")])
def test_a_far_outlier_of_one_sided_data_is_clipped(sign):
    scheme = Scheme(UINT8, symmetric=False)
    x = sign * torch.cat([gauss(100_000).abs(), torch.tensor([100.0])])
    found = asked(Kl(scheme), x)
    assert 3 < found.scale.item() * 255 < 25
    assert found.zero_point.item() == (0 if sign > 0 else 255)


def test_unsigned_symmetric_uses_all_its_codes():
    # With 128 of 256 codes in the search, the window would be another than that of the affine search.
    x = torch.cat([gauss(100_000).abs(), torch.tensor([50.0])])
    symmetric, affine = asked(Kl(Scheme(UINT8)), x), asked(Kl(Scheme(UINT8, symmetric=False)), x)
    assert symmetric.scale.item() == pytest.approx(affine.scale.item(), rel=1e-6)  # float32


def test_the_sign_does_not_matter_to_a_symmetric_scheme():
    x, scheme = torch.exp(gauss(50_000)), Scheme(IntGrid(8, narrow=True))
    assert torch.equal(asked(Kl(scheme), x).scale, asked(Kl(scheme), -x).scale)


def test_every_channel_has_its_own_window():
    x = gauss(3, 20_000) * torch.tensor([[1.0], [0.01], [1.0]])
    x[2, 0] = 1000.0
    found = asked(Kl(Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0))), x)
    alone = [asked(Kl(Scheme(IntGrid(8, narrow=True)), bins=4096), channel).scale for channel in x]
    torch.testing.assert_close(found.scale, torch.stack(alone), rtol=1e-6, atol=0)  # float32
    assert found.scale[2].item() * 127 < 250


def test_power_of_two():
    x = torch.cat([gauss(100_000), torch.tensor([100.0])])
    exact = asked(Kl(Scheme(INT8)), x).scale.item()
    assert asked(Kl(Scheme(INT8, scale="power_of_two")), x).scale.item() == 2.0 ** math.ceil(math.log2(exact))


def test_more_codes_than_the_histogram_can_tell_apart_are_refused():
    with pytest.raises(SchemeError, match="at most 8 bits"):
        Kl(Scheme(IntGrid(16)))
