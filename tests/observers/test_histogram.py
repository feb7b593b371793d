"""Histograms: exact bins, exact merging, fixed memory."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from detent.errors import SchemeError
from detent.numerics import native
from detent.observers import Histogram


def counted(*batches: torch.Tensor, bins: int = 64) -> Histogram:
    histogram = Histogram(bins)
    for batch in batches:
        histogram.add(batch)
    return histogram


def row(values: list[float]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float32)


def bins_of(values: np.ndarray, bins: int) -> tuple[float, np.ndarray]:
    """The definition in float64: the least power of two with all |x| below it, cut into equal bins."""
    values = values.astype(np.float64)
    reach = 2.0 ** (math.floor(math.log2(np.abs(values).max())) + 1)
    width = 2 * reach / bins
    counts = np.zeros(bins, dtype=np.int64)
    np.add.at(counts, np.floor(values / width).astype(np.int64) + bins // 2, 1)
    return width, counts


@pytest.fixture(params=["native", "torch"])
def path(request, monkeypatch):
    """Both ways of counting: the C kernel, and the torch operations where there is no compiler."""
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    elif native.library() is None:
        pytest.skip("no C compiler on this machine")


# --- which bin -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("values", "width", "counts"),
    [
        pytest.param([0.1, 0.3, -0.2], 0.125, [0, 0, 1, 0, 1, 0, 1, 0], id="inside"),
        pytest.param([0.0, 0.25, 0.5, 0.75], 0.25, [0, 0, 0, 0, 1, 1, 1, 1], id="left-edges-belong-to-their-bin"),
        pytest.param([-0.25, -0.5, -0.75], 0.25, [0, 1, 1, 1, 0, 0, 0, 0], id="negative-left-edges-too"),
        pytest.param([1.0], 0.5, [0, 0, 0, 0, 0, 0, 1, 0], id="a-power-of-two-opens-the-next-octave"),
        pytest.param([-1.0], 0.5, [0, 0, 1, 0, 0, 0, 0, 0], id="a-negative-power-of-two"),
        pytest.param([0.99999994], 0.25, [0, 0, 0, 0, 0, 0, 0, 1], id="just-below-a-power-of-two"),
        pytest.param([-0.0, 0.0, 0.5], 0.25, [0, 0, 0, 0, 2, 0, 1, 0], id="minus-zero-is-zero"),
        pytest.param([1e-30, -1e-30, 0.5], 0.25, [0, 0, 0, 1, 1, 0, 1, 0], id="tiny-values-keep-their-sign"),
        pytest.param([3e38, -3e38], 2.0**126, [1, 0, 0, 0, 0, 0, 0, 1], id="near-the-end-of-float32"),
    ],
)
def test_bins_literally(values, width, counts):
    histogram = counted(row(values), bins=8)
    assert histogram.width.tolist() == [width]
    assert histogram.counts.tolist() == [counts]


@pytest.mark.usefixtures("path")
def test_zeros_are_counted_at_zero():
    histogram = counted(torch.zeros(1, 5), bins=8)
    assert histogram.counts.tolist() == [[0, 0, 0, 0, 5, 0, 0, 0]]
    assert 0 < histogram.width.item() < 1e-20


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("bins", [4, 64, 2048, 8192])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_bins_against_floor_in_float64(bins, scale):
    x = scale * torch.randn(1, 70_000, generator=torch.Generator().manual_seed(bins))  # long enough for many threads
    width, counts = bins_of(x[0].numpy(), bins)
    histogram = counted(x, bins=bins)
    assert histogram.width.tolist() == [width]
    assert histogram.counts[0].tolist() == counts.tolist()


@pytest.mark.usefixtures("path")
def test_bins_against_numpy_histogram_with_every_edge_hit():
    edges = torch.arange(-32, 32) / 32
    x = torch.cat([edges, torch.nextafter(edges, torch.tensor(-2.0))[1:], torch.nextafter(edges, torch.tensor(2.0))])
    histogram = counted(x[None], bins=64)
    # -1.0 needs a reach of 2, so the bins are 1/16 wide.
    expected, _ = np.histogram(x.numpy().astype(np.float64), bins=np.arange(-32, 33) / 16)
    assert histogram.counts[0].tolist() == expected.tolist()


@pytest.mark.usefixtures("path")
@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.floats(-1e4, 1e4, width=32, allow_subnormal=False), min_size=1, max_size=20))
def test_any_values_fall_where_float64_says(values):
    x = row(values)
    assume(x.abs().max() > 2.0**-99)  # smaller ranges share one histogram, below
    width, counts = bins_of(x[0].numpy(), 64)
    histogram = counted(x)
    assert histogram.width.item() == width
    assert histogram.counts[0].tolist() == counts.tolist()


def test_ranges_below_2_to_the_minus_100_are_all_alike():
    assert torch.equal(counted(row([1e-35])).width, counted(row([1e-38])).width)


def test_rows_have_a_width_of_their_own():
    histogram = counted(torch.tensor([[0.5, 0.25], [100.0, -3.0], [0.0, 0.0]]), bins=8)
    assert histogram.width[:2].tolist() == [0.25, 32.0]
    assert histogram.counts.tolist() == [[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 2, 0, 0, 0]]


def test_non_contiguous_rows_are_counted_in_their_row():
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(counted(x.t()).counts, counted(x.t().contiguous()).counts)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("count", [1, 1000, 2**15, 2**15 + 1, 100_003])
def test_the_native_path_and_the_torch_path_count_the_same(rows, count, monkeypatch):
    if native.library() is None:
        pytest.skip("no C compiler on this machine")
    x = torch.randn(rows, count, generator=torch.Generator().manual_seed(count)) * torch.logspace(-3, 3, rows)[:, None]
    x[0, ::3] = torch.round(x[0, ::3] * 8) / 8  # many values on edges
    fast = counted(x, bins=2048)
    monkeypatch.setattr(native, "library", lambda: None)
    plain = counted(x, bins=2048)
    assert torch.equal(fast.counts, plain.counts)
    assert torch.equal(fast.width, plain.width)


# --- merging -------------------------------------------------------------------------------------------------


def test_two_batches_merge_literally():
    histogram = counted(row([0.1, 0.3, -0.2]), row([0.9]), bins=8)
    assert histogram.width.tolist() == [0.25]
    assert histogram.counts.tolist() == [[0, 0, 0, 1, 1, 1, 0, 1]]


FLOATS = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


@pytest.mark.usefixtures("path")
@settings(deadline=None, derandomize=True)
@given(batches=st.lists(st.lists(FLOATS, min_size=1, max_size=6), min_size=1, max_size=6), order=st.randoms())
def test_batches_do_not_matter(batches, order):
    whole = counted(row([value for batch in batches for value in batch]))
    shuffled = list(batches)
    order.shuffle(shuffled)
    parts = counted(*map(row, shuffled))
    assert torch.equal(parts.counts, whole.counts)
    assert torch.equal(parts.width, whole.width)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    "scales",
    [
        pytest.param((1e-3, 1e3), id="small-then-large"),
        pytest.param((1e3, 1e-3), id="large-then-small"),
        pytest.param((1e-30, 1e30), id="sixty-decades-apart"),
        pytest.param((0.0, 1.0, 0.0), id="zeros-in-between"),
        pytest.param((1e-3, 1.0, 1e3, 1e-3), id="up-and-down"),
    ],
)
def test_batches_of_wildly_different_range_merge_exactly(scales):
    generator = torch.Generator().manual_seed(5)
    batches = [scale * torch.randn(2, 1000, generator=generator) for scale in scales]
    parts, whole = counted(*batches, bins=8192), counted(torch.cat(batches, 1), bins=8192)
    assert torch.equal(parts.counts, whole.counts)
    assert torch.equal(parts.width, whole.width)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(
    ("tiny", "large"),
    [
        pytest.param(-1e-30, 1e30, id="product-below-float32"),
        pytest.param(-1e-45, 1e5, id="subnormal"),
    ],
)
def test_a_tiny_negative_value_stays_below_zero_in_whatever_batch(tiny, large):
    # x / width underflows to -0.0 in float32, whose floor is 0 where it should be -1.
    parts, whole = counted(row([tiny]), row([large]), bins=8192), counted(row([tiny, large]), bins=8192)
    assert torch.equal(parts.counts, whole.counts)
    assert whole.counts[0, 4095].item() == 1


def test_nothing_is_lost_and_memory_stays_the_same():
    histogram, seen = Histogram(256), 0
    for i in range(40):
        batch = torch.randn(3, 100 + i, generator=torch.Generator().manual_seed(i)) * 10.0 ** (i % 7 - 3)
        histogram.add(batch)
        seen += batch.shape[1]
        assert histogram.counts.shape == (3, 256)
        assert histogram.counts.sum(1).tolist() == [seen] * 3


@pytest.mark.parametrize("bins", [0, 2, 3, 100, -8])
def test_a_number_of_bins_that_does_not_merge_in_pairs_is_refused(bins):
    with pytest.raises(SchemeError, match="power of two >= 4"):
        Histogram(bins)


# --- questions to it -----------------------------------------------------------------------------------------


def test_edges_literally():
    assert counted(row([1.0]), bins=4).edges().tolist() == [[-2.0, -1.0, 0.0, 1.0]]


def test_folded_counts_magnitudes():
    histogram = counted(row([0.1, -0.1, 0.3, -0.6, -0.9, 0.9]), bins=8)
    assert histogram.folded().tolist() == [[2, 1, 1, 2]]


def test_quantiles_are_linear_inside_a_bin():
    histogram = counted(row([0.1, 0.1, 0.6, 0.6]), bins=8)  # two in [0, 0.25), two in [0.5, 0.75)
    assert [histogram.quantile(q).item() for q in (0.25, 0.5, 0.75, 1.0)] == [0.125, 0.25, 0.625, 0.75]


def test_magnitude_quantiles_ignore_the_sign():
    histogram = counted(row([-0.1, 0.1, -0.6, 0.6]), bins=8)
    assert [histogram.magnitude_quantile(q).item() for q in (0.25, 0.5, 0.75, 1.0)] == [0.125, 0.25, 0.625, 0.75]


@pytest.mark.parametrize("q", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_quantiles_are_within_a_bin_of_the_data(q):
    x = torch.randn(2, 10_007, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [30.0]])
    histogram = counted(x, bins=1024)
    expected = np.quantile(x.numpy().astype(np.float64), q, axis=1, method="inverted_cdf")
    assert (np.abs(histogram.quantile(q).numpy() - expected) <= histogram.width.numpy()).all()


def test_points_stand_for_the_counts():
    values, weights = counted(row([0.1, 0.3, 0.3]), bins=8).points(per_bin=2)  # bins of 1/8: one and two values
    assert values.tolist() == [[0.03125, 0.09375, 0.28125, 0.34375]]  # none in the empty bin between
    assert weights.tolist() == [[0.5, 0.5, 1.0, 1.0]]


def test_points_of_rows_side_by_side():
    values, weights = counted(torch.tensor([[0.5, 0.25], [-100.0, 3.0]]), bins=8).points(per_bin=4)
    assert values.shape == weights.shape
    assert weights.sum(1).tolist() == [2.0, 2.0]
    first = values[1][weights[1] > 0][0].item()
    assert -128 < first < -96  # the bin of -100
