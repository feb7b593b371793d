"""isotone: the scale under which the winner of a classifier stays the winner."""

import pickle

import pytest
import torch

from detent.errors import DetentError, SchemeError, TensorError
from detent.numerics import IntGrid, PerChannel, QParams, Rounding, Scheme, quantize
from detent.observers import Isotone, MinMax

pytestmark = pytest.mark.usefixtures("one_thread")

INT4 = Scheme(IntGrid(4))  # [-8, 7]
FAR_APART = [-16.0, 1.0, 0.5]
CLOSE = [-16.0, 0.25, 0.125]


def measured(scheme: Scheme, *batches: torch.Tensor, **options: int) -> QParams:
    observer = Isotone(scheme, name="logits", **options)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def minmax(scheme: Scheme, x: torch.Tensor) -> QParams:
    observer = MinMax(scheme)
    observer.observe(x)
    return observer.qparams()


def separated(x: torch.Tensor, found: QParams, scheme: Scheme) -> int:
    """How many rows of codes have a single greatest one, the right one."""
    codes = quantize(x, found, scheme).long()
    top = codes.topk(2, dim=-1).values
    return int(((top[:, 0] > top[:, 1]) & (codes.argmax(-1) == x.argmax(-1))).sum())


@pytest.mark.parametrize(
    ("rows", "codes_of_minmax", "codes", "scale"),
    [
        # minmax: 16 / 8 = 2, and 1 / 2 rounds to 0. One 64th less, and it rounds to 1.
        pytest.param([FAR_APART], [[-8, 0, 0]], [[-8, 1, 0]], 2 * 63 / 64, id="one-sample"),
        # 0.25 / s must exceed 1/2: the widest such share is 15/64.
        pytest.param(
            [FAR_APART, CLOSE],
            [[-8, 0, 0], [-8, 0, 0]],
            [[-8, 2, 1], [-8, 1, 0]],
            2 * 15 / 64,
            id="closest-decides",
        ),
        pytest.param([[-8.0, 7.0, 2.0]], [[-8, 7, 2]], [[-8, 7, 2]], 1.0, id="nothing-to-gain-keeps-the-whole-range"),
    ],
)
def test_the_winner_is_kept_apart_literally(rows, codes_of_minmax, codes, scale):
    x = torch.tensor(rows)
    assert quantize(x, minmax(INT4, x), INT4).tolist() == codes_of_minmax
    found = measured(INT4, x)
    assert quantize(x, found, INT4).tolist() == codes
    assert found.scale.item() == pytest.approx(scale, rel=1e-6)  # float32


def test_a_range_so_small_that_both_are_clipped_loses_the_winner():
    # Both above the last code are one code: the wide range of the two samples that need it wins the vote.
    x = torch.tensor([[-16.0, 14.0, 7.0], [-16.0, 14.0, 7.0], CLOSE])
    found = measured(INT4, x)
    assert found.scale.item() == pytest.approx(2.0, rel=1e-6)  # float32
    assert separated(x, found, INT4) == 2


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(INT4, id="int4-symmetric"),
        pytest.param(Scheme(IntGrid(4), symmetric=False), id="int4-affine"),
        pytest.param(Scheme(IntGrid(4, signed=False), symmetric=False), id="uint4-affine"),
        pytest.param(Scheme(IntGrid(4), scale="power_of_two"), id="int4-power-of-two"),
        pytest.param(Scheme(IntGrid(8)), id="int8-symmetric"),
    ],
)
def test_at_least_as_many_winners_as_with_minmax(scheme):
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(0))
    x[:, 0] -= 12  # a class that is never right takes most of the range
    assert separated(x, measured(scheme, x), scheme) >= separated(x, minmax(scheme, x), scheme)


def test_many_more_winners_where_the_range_is_wasted():
    x = torch.randn(300, 10, generator=torch.Generator().manual_seed(0))
    x[:, 0] -= 12
    assert separated(x, measured(INT4, x), INT4) > 1.5 * separated(x, minmax(INT4, x), INT4)


def test_the_best_of_the_64_shares_by_brute_force():
    x = torch.randn(500, 5, generator=torch.Generator().manual_seed(1)) - 1
    low, high = x.min().double(), x.max().double()
    kept = []
    for share in range(64, 0, -1):
        scale = max(high / 7, low / -8).item() * share / 64
        codes = torch.clamp(torch.round(x.topk(2).values.double() / scale), -8, 7)
        kept.append(int((codes[:, 0] > codes[:, 1]).sum()))
    best = max(kept)
    found = measured(INT4, x)
    assert found.scale.item() == pytest.approx(max(high / 7, low / -8).item() * (64 - kept.index(best)) / 64, rel=1e-6)


def test_batches_do_not_matter():
    x = torch.randn(200, 7, generator=torch.Generator().manual_seed(2))
    whole = measured(INT4, x)
    for parts in (x.split(1), x.flip(0).split(33)):
        assert torch.equal(measured(INT4, *parts).scale, whole.scale)


@pytest.mark.parametrize("axis", [1, -3])
def test_the_class_axis_may_be_named(axis):
    x = torch.randn(4, 6, 5, 3, generator=torch.Generator().manual_seed(3))
    flat = x.movedim(1, -1).reshape(-1, 6)
    assert torch.equal(measured(INT4, x, axis=axis).scale, measured(INT4, flat).scale)
    assert not torch.equal(measured(INT4, x, axis=axis).scale, measured(INT4, x, axis=-1).scale)


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        pytest.param(torch.ones(4, 1), -1, id="one-class"),
        pytest.param(torch.ones(1, 3), 0, id="one-class-on-a-named-axis"),
        pytest.param(torch.tensor(1.0), -1, id="scalar"),
    ],
)
def test_fewer_than_two_classes_are_refused_naming_the_tensor(x, axis):
    # PPQ crashed on pooled tensors.
    with pytest.raises(TensorError, match=r"'logits'(.|\n)*fewer than two classes(.|\n)*name the class axis"):
        measured(INT4, x, axis=axis)


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_the_tensor_lacks_is_refused(axis):
    with pytest.raises(DetentError, match="logits"):
        measured(INT4, torch.ones(4, 3), axis=axis)


def test_per_channel_is_refused_with_the_reason():
    with pytest.raises(SchemeError, match="compared with each other on one scale"):
        Isotone(Scheme(IntGrid(8), granularity=PerChannel(0)))


# --- bounded memory ------------------------------------------------------------------------------------------


def test_the_closest_races_are_the_ones_kept():
    wide, close = torch.tensor([[-16.0, 14.0, 7.0]]), torch.tensor([CLOSE])
    assert measured(INT4, wide, wide, close).scale.item() == pytest.approx(2.0, rel=1e-6)  # all three vote
    for batches in ((wide, wide, close), (close, wide, wide)):
        found = measured(INT4, *batches, most=1)
        assert found.scale.item() == pytest.approx(2 * 15 / 64, rel=1e-6)  # the close one alone


def test_a_sample_without_a_winner_does_not_displace_one_that_has():
    # Equal logits (a dead head, padding) can be kept apart by no scale.
    tied = torch.zeros(4, 3)
    assert measured(INT4, torch.tensor([FAR_APART]), tied, most=4).scale.item() == pytest.approx(2 * 63 / 64, rel=1e-6)


def test_memory_is_bounded():
    observer = Isotone(INT4, most=100)
    sizes = []
    for i in range(20):
        observer.observe(torch.randn(80, 10, generator=torch.Generator().manual_seed(i)))
        sizes.append(len(pickle.dumps(observer)))
    assert max(sizes[2:]) < 1.05 * sizes[2]  # 160 samples are more than 100; then nothing grows


def test_stochastic_rounding_does_not_make_the_answer_random():
    scheme = Scheme(IntGrid(4), rounding=Rounding.STOCHASTIC)
    x = torch.tensor([FAR_APART, CLOSE, [-3.0, 2.0, 1.9], [1.0, 1.1, 1.2]])
    answers = set()
    for seed in range(5):
        torch.manual_seed(seed)
        answers.add(measured(scheme, x).scale.item())
    assert len(answers) == 1
