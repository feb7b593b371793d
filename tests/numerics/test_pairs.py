"""Weights that no CPU saturates: literal codes, and properties over random weights."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from detent.numerics import PAIR_LIMIT, IntGrid, Pairs, PerChannel, PerTensor, QParams, Scheme, native
from detent.numerics.pair_kernel import fused_bound_pairs

LINEAR, CONV, TRANSPOSED = Pairs(0, 1), Pairs(0, 1), Pairs(1, 0)
ODD, ANY = Pairs(0, 1, order="memory"), Pairs(1, 0, order="any")


def worst(codes: Tensor, pairs: Pairs) -> int:
    """By a loop: the greatest sum of two codes of one sign that are a pair."""
    rows = codes.movedim(pairs.outputs, 0)
    inputs = pairs.inputs - (pairs.outputs < pairs.inputs)
    most = 0
    for row in rows:
        places = row.movedim(inputs, -1).reshape(-1, row.shape[inputs]).tolist()
        flat = [code for place in places for code in place]
        if pairs.order == "channels":
            couples = [couple for place in places for couple in zip(place[::2], place[1::2], strict=True)]
        elif pairs.order == "memory":
            couples = list(pairwise(flat)) or [(flat[0], 0)]
        else:
            couples = [tuple(sorted(map(abs, flat))[-2:])]
        most = max([most, *(abs(a + b) for a, b in couples)])
    return int(most)


def test_the_limit_is_what_16_bits_hold() -> None:
    assert 255 * PAIR_LIMIT <= 2**15 - 1 < 255 * (PAIR_LIMIT + 1)


@pytest.mark.parametrize(
    ("codes", "bounded"),
    [
        pytest.param([127, 1], [127, 1], id="at-the-limit"),
        pytest.param([127, 2], [126, 2], id="one-over"),
        pytest.param([127, 127], [64, 64], id="both-large"),
        pytest.param([-127, -90], [-82, -46], id="negative"),
        pytest.param([127, -127], [127, -127], id="opposite-signs-never-saturate"),
        pytest.param([0, 100, 100, 0], [0, 100, 100, 0], id="neighbors-of-two-pairs"),
    ],
)
def test_codes_of_a_pair(codes: list[int], bounded: list[int]) -> None:
    given = torch.tensor([codes], dtype=torch.float32)
    assert LINEAR.bounded(given, torch.ones(1), PerChannel(0)).tolist() == [bounded]


@pytest.mark.parametrize(
    ("codes", "bounded"),
    [
        pytest.param([127, 1, 127], [127, 1, 127], id="within"),
        pytest.param([127, 27, 5], [101, 27, 5], id="one-large"),
        pytest.param([127, 5, -90], [123, 5, -90], id="apart"),
        pytest.param([127, -127, -2], [127, -126, -2], id="opposite-signs-never-saturate"),
        pytest.param([20, 120, 70], [20, 64, 64], id="both-sides"),
        pytest.param([-20, -120, -40], [-20, -88, -40], id="the-larger-side"),
    ],
)
def test_codes_of_neighbors(codes: list[int], bounded: list[int]) -> None:
    given = torch.tensor([codes], dtype=torch.float32)
    assert ODD.bounded(given, torch.ones(1), PerChannel(0)).tolist() == [bounded]


def test_neighbors_are_those_in_memory() -> None:
    """Three channels, two places: the last channel of a place lies beside the first one of the next."""
    codes = torch.tensor([[[0.0, 100.0], [0.0, 0.0], [100.0, 0.0]]])
    assert ODD.largest(codes) == 200
    assert ODD.bounded(codes, torch.ones(1), PerChannel(0)).tolist() == [[[0, 64], [0, 0], [64, 0]]]
    assert ODD.largest(codes.flip(2)) == 100


@pytest.mark.parametrize(
    ("codes", "bounded"),
    [
        pytest.param([127, 1, -1], [127, 1, -1], id="within"),
        pytest.param([127, 27, 5], [101, 27, 5], id="one-large"),
        pytest.param([127, 5, -90], [64, 5, -64], id="two-large-wherever-they-are"),
    ],
)
def test_codes_of_any_two(codes: list[int], bounded: list[int]) -> None:
    given = torch.tensor([codes], dtype=torch.float32).T
    assert ANY.bounded(given, torch.ones(1), PerChannel(1)).T.tolist() == [bounded]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        pytest.param(Pairs.of_convolution((8, 4, 3, 3), 1), Pairs(0, 1, order="channels"), id="even"),
        pytest.param(Pairs.of_convolution((8, 3, 3, 3), 1), Pairs(0, 1, order="memory"), id="odd"),
        pytest.param(Pairs.of_convolution((8, 1, 3, 3), 4), Pairs(0, 1, order="memory"), id="depthwise-multiplied"),
        pytest.param(Pairs.of_convolution((8, 1, 3, 3), 8), None, id="depthwise"),
        pytest.param(Pairs.of_transposed((6, 8, 3, 3), 3), Pairs(1, 0, order="channels"), id="transposed-even"),
        pytest.param(Pairs.of_transposed((6, 8, 3, 3), 2), Pairs(1, 0, order="any"), id="transposed-odd"),
        pytest.param(Pairs.of_matrix((4, 5), inputs=0), Pairs(1, 0, order="channels"), id="matrix-even"),
        pytest.param(Pairs.of_matrix((4, 5), inputs=1), Pairs(0, 1, order="memory"), id="matrix-odd"),
    ],
)
def test_the_order_of_an_operation(found: Pairs | None, wanted: Pairs | None) -> None:
    assert found == wanted


def test_only_channels_that_need_it_get_a_wider_step() -> None:
    weight = torch.tensor([[1.0, 0.9], [1.0, -0.9], [1.0, 0.0]])
    measured = QParams.symmetric(weight.abs().amax(1) / 127)
    found = LINEAR.widened(measured, weight, Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0)))
    assert (found.scale / measured.scale).tolist() == pytest.approx([1.9, 1.0, 1.0])


def test_scales_that_are_powers_of_two_stay_so() -> None:
    weight = torch.tensor([[1.0, 0.9], [1.0, 0.0]])
    scheme = Scheme(IntGrid(8), granularity=PerChannel(0), scale="power_of_two")
    found = LINEAR.widened(QParams.symmetric(torch.full((2,), 2.0**-6)), weight, scheme)
    assert found.scale.tolist() == [2.0**-6, 2.0**-6]
    found = LINEAR.widened(QParams.symmetric(torch.full((2,), 2.0**-7)), weight, scheme)
    assert found.scale.tolist() == [2.0**-6, 2.0**-7]


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize(
    ("pairs", "shape"),
    [
        pytest.param(LINEAR, (5, 8), id="linear"),
        pytest.param(CONV, (5, 4, 3, 3), id="conv"),
        pytest.param(TRANSPOSED, (4, 5, 2, 2), id="conv-transpose"),
        pytest.param(ODD, (5, 3, 3, 3), id="three-channels"),
        pytest.param(ODD, (5, 1), id="one-weight"),
        pytest.param(ANY, (3, 5, 2, 2), id="conv-transpose-of-three"),
    ],
)
@pytest.mark.parametrize("per_channel", [True, False], ids=["per-channel", "per-tensor"])
@given(seed=st.integers(0, 2**31), shrunk=st.floats(0.2, 1.0))
def test_no_pair_leaves_the_limit(
    pairs: Pairs, shape: tuple[int, ...], per_channel: bool, seed: int, shrunk: float
) -> None:
    """At the measured scale widened, all codes hold by themselves; at any other, as training may move it, bounded."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(shape, generator=generator) + torch.randn((), generator=generator)
    granularity = PerChannel(pairs.outputs) if per_channel else PerTensor()
    scheme = Scheme(IntGrid(8, narrow=True), granularity=granularity)
    measured = granularity.reduce(weight.abs(), lambda x, dims: x.amax(dims)) / 127
    scale = pairs.widened(QParams.symmetric(measured), weight, scheme).scale
    assert bool((scale >= measured).all())
    codes = torch.round(weight / granularity.expand(scale, weight.ndim))
    assert worst(codes, pairs) <= PAIR_LIMIT
    values = codes * granularity.expand(scale, weight.ndim)
    assert torch.equal(pairs.bounded(values, scale, granularity), values)

    step = granularity.expand(scale * shrunk, weight.ndim)
    values = torch.round(weight / step).clamp(-127, 127) * step
    bounded = pairs.bounded(values, scale * shrunk, granularity)
    assert worst(torch.round(bounded / step), pairs) <= PAIR_LIMIT
    assert torch.equal(pairs.bounded(bounded, scale * shrunk, granularity), bounded)
    assert pairs.largest(torch.round(bounded / step).long()) <= PAIR_LIMIT


def test_the_gradient_goes_straight_through() -> None:
    weight = torch.tensor([[127.0, 127.0]], requires_grad=True)
    bounded = LINEAR.bounded(weight, torch.ones(1), PerChannel(0))
    (bounded * torch.tensor([[2.0, 3.0]])).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[2.0, 3.0]]


@pytest.mark.skipif(native.library() is None, reason="needs a C compiler")
@pytest.mark.parametrize("shape", [(6, 8), (6, 10, 3, 3), (300, 64, 3)], ids=str)
@pytest.mark.parametrize("granularity", [PerChannel(0), PerTensor()], ids=["per-channel", "per-tensor"])
def test_the_compiled_kernel_gives_the_same(
    shape: tuple[int, ...], granularity: PerChannel | PerTensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(granularity.scale_shape(shape), generator=generator) + 0.01
    weight = torch.randn(shape, generator=generator).mul(90)
    weight[::2] /= 20  # rows in which no pair is past the limit
    values = weight.round().clamp(-127, 127) * granularity.expand(scale, len(shape))
    found = CONV.bounded(values, scale, granularity)
    assert fused_bound_pairs(values, scale, granularity, PAIR_LIMIT) is not None
    changed = values.clone()
    assert CONV.bounded(changed, scale, granularity, inplace=True) is changed
    assert torch.equal(changed, found)
    monkeypatch.setattr(native, "library", lambda: None)
    expected = CONV.bounded(values, scale, granularity)
    assert torch.equal(found, expected)
    assert not torch.equal(found, values)
    assert torch.equal(found[::2], values[::2])


def test_it_compiles_to_the_same() -> None:
    weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).mul(60).round().clamp(-127, 127)
    compiled = torch.compile(LINEAR.bounded, backend="aot_eager", fullgraph=True)
    assert torch.equal(
        compiled(weight, torch.ones(6), PerChannel(0)), LINEAR.bounded(weight, torch.ones(6), PerChannel(0))
    )
