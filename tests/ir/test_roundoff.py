"""How far float32 computations may be apart: float64 lies within it, uncertain inputs too, and it is small."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from detent.ir import Network, Op, Operand
from detent.ir.roundoff import UNIT, ErrorBound, error_bounds, rounds
from detent.twin.float_ops import float_kernel

GRAPH = Network({}, (), (), {}, frozenset(), {}, 21)
IMAGE, ROWS, VECTOR = (2, 6, 8, 8), (3, 5, 16), (6,)
POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
RESIZE = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


def op(kind: str, count: int, **attributes: object) -> Op:
    return Op(kind, kind.lower(), tuple(Operand(f"i{n}") for n in range(count)), ("y",), attributes)


SUMS = [
    (op("Add", 2), [IMAGE, IMAGE]),
    (op("AveragePool", 1, **POOL), [IMAGE]),
    (op("Conv", 3, pads=[1, 1, 1, 1]), [IMAGE, (4, 6, 3, 3), (4,)]),
    (op("Conv", 2, group=3), [IMAGE, (6, 2, 3, 3)]),
    (op("ConvTranspose", 2, strides=[2, 2]), [IMAGE, (6, 4, 3, 3)]),
    (op("Gemm", 3, transB=1, alpha=-0.5), [(5, 16), (7, 16), (7,)]),
    (op("GlobalAveragePool", 1), [IMAGE]),
    (op("MatMul", 2), [ROWS, (3, 16, 4)]),
    (op("Mul", 2), [IMAGE, IMAGE]),
    (op("ReduceMean", 1, axes=[2, 3]), [IMAGE]),
    (op("Sub", 2), [IMAGE, IMAGE]),
]
FUNCTIONS = [
    (op("BatchNormalization", 5), [IMAGE, VECTOR, VECTOR, VECTOR, VECTOR]),
    (op("Div", 2), [IMAGE, IMAGE]),
    (op("Exp", 1), [IMAGE]),
    (op("Gelu", 1), [IMAGE]),
    (op("GroupNormalization", 3, num_groups=2), [IMAGE, VECTOR, VECTOR]),
    (op("HardSigmoid", 1), [IMAGE]),
    (op("HardSwish", 1), [IMAGE]),
    (op("InstanceNormalization", 3), [IMAGE, VECTOR, VECTOR]),
    (op("LayerNormalization", 3), [ROWS, (16,), (16,)]),
    (op("LogSoftmax", 1), [ROWS]),
    (op("Sigmoid", 1), [IMAGE]),
    (op("Sign", 1), [IMAGE]),
    (op("Softmax", 1), [ROWS]),
    (op("Tanh", 1), [IMAGE]),
]
MOVES = [
    (op("Clip", 1, min=-0.5, max=0.5), [IMAGE]),
    (op("Concat", 2, axis=1), [IMAGE, IMAGE]),
    (op("Max", 2), [IMAGE, IMAGE]),
    (op("MaxPool", 1, **POOL), [IMAGE]),
    (op("ReduceMin", 1, axes=[1]), [IMAGE]),
    (op("Relu", 1), [IMAGE]),
    (op("Transpose", 1, perm=[0, 2, 3, 1]), [IMAGE]),
]


def numbers(one: Op, shapes: list[tuple[int, ...]], seed: int) -> list[torch.Tensor]:
    """Some of them large, so that sums cancel; a variance is positive, and a divisor not near to zero."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(shape, generator=generator) * 3 for shape in shapes]
    if one.type in ("BatchNormalization", "Div"):
        found[-1] = found[-1].abs() + 0.5
    return found


def widest(first: torch.Tensor, second: torch.Tensor, error: torch.Tensor) -> float:
    """The largest difference, in what is allowed for it."""
    return float(((first.double() - second.double()).abs() / error.double().clamp_min(1e-30)).max())


@pytest.mark.parametrize(("one", "shapes"), SUMS + FUNCTIONS, ids=lambda value: getattr(value, "type", None))
@pytest.mark.parametrize("seed", range(3))
def test_float64_lies_within_what_is_possible(one, shapes, seed):
    given, kernel = numbers(one, shapes, seed), float_kernel(GRAPH, one)
    (found,) = error_bounds(one, kernel, [ErrorBound(value) for value in given])
    assert found.error is not None
    assert rounds(one)
    assert widest(found.value, kernel(*(value.double() for value in given)), found.error) <= 0.5  # one of two sides
    assert float(found.error.max()) < 2e-4 * float(found.value.abs().max())


@pytest.mark.parametrize(("one", "shapes"), SUMS + FUNCTIONS + MOVES, ids=lambda value: getattr(value, "type", None))
@pytest.mark.parametrize("seed", range(3))
def test_what_is_uncertain_is_passed_on(one, shapes, seed):
    given, kernel = numbers(one, shapes, seed), float_kernel(GRAPH, one)
    generator = torch.Generator().manual_seed(seed)
    # Parameters of a normalization are constants.
    uncertain = [place == 0 or "Normalization" not in one.type for place in range(len(given))]
    errors = [torch.rand(value.shape) * 1e-3 if moved else None for value, moved in zip(given, uncertain, strict=True)]
    (found,) = error_bounds(one, kernel, [ErrorBound(*pair) for pair in zip(given, errors, strict=True)])
    assert found.error is not None
    for _ in range(5):
        shifted = [
            value if error is None else value + error * (2 * torch.randint(2, value.shape, generator=generator) - 1)
            for value, error in zip((v.double() for v in given), errors, strict=True)
        ]
        assert widest(found.value, kernel(*shifted), found.error) <= 1.0 + 1e-6


@pytest.mark.parametrize(("one", "shapes"), MOVES, ids=lambda value: getattr(value, "type", None))
def test_what_only_moves_has_one_result(one, shapes):
    given, kernel = numbers(one, shapes, 0), float_kernel(GRAPH, one)
    assert error_bounds(one, kernel, [ErrorBound(value) for value in given])[0].error is None
    assert not rounds(one)


def test_sums_in_another_order_are_possible_and_another_weight_is_not():
    one = op("Conv", 2)
    x, w = numbers(one, [(1, 64, 6, 6), (8, 64, 3, 3)], 0)
    kernel = float_kernel(GRAPH, one)
    (found,) = error_bounds(one, kernel, [ErrorBound(x), ErrorBound(w)])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    assert widest(found.value, kernel(x[:, order], w[:, order]), found.error) <= 1.0
    w[3, 5, 1, 1] += 0.1  # of 576, which are 2.4 on average
    assert widest(found.value, kernel(x, w), found.error) > 1.0


def test_a_bilinear_resize():
    """By a third: the shares of the pixels are rounded."""
    one = Op("Resize", "resize", (Operand("x"), None, Operand("scales")), ("y",), RESIZE)
    x, scales = torch.randn(IMAGE), torch.tensor([1.0, 1.0, 1.0 + 1 / 3, 1.0 + 1 / 3])
    (found,) = error_bounds(one, float_kernel(GRAPH, one), [ErrorBound(x), None, ErrorBound(scales)])
    other = torch.nn.functional.interpolate(x, scale_factor=(float(scales[2]), float(scales[3])), mode="bilinear")
    assert found.error is not None
    assert widest(found.value, other, found.error) <= 1.0
    assert float(found.error.max()) < 64 * UNIT * float(x.abs().max()) * 2


def test_a_pixel_whose_neighbor_is_large_is_as_uncertain_as_that_one():
    """From 12 to 13: where the share of a zero is 1, that of the next pixel is a rounding."""
    one = Op("Resize", "resize", (Operand("x"), None, None, Operand("sizes")), ("y",), {**RESIZE, "axes": [2, 3]})
    x = torch.zeros(1, 1, 12, 12)
    x[..., 1::2, :] = 1000.0
    (found,) = error_bounds(
        one, float_kernel(GRAPH, one), [ErrorBound(x), None, None, ErrorBound(torch.tensor([13, 13]))]
    )
    other = torch.nn.functional.interpolate(x.double(), size=(13, 13), mode="bilinear")
    assert widest(found.value, other, found.spread) <= 0.5
    assert float(found.spread.min()) > 0


def test_infinities_are_certain():
    one = op("Softmax", 1)
    x = torch.tensor([[1.0, -torch.inf, 2.0]])
    (masked,) = error_bounds(
        op("Add", 2), float_kernel(GRAPH, op("Add", 2)), [ErrorBound(x), ErrorBound(torch.ones(1, 3))]
    )
    assert masked.error is not None
    assert masked.error[0, 1] == 0
    (found,) = error_bounds(one, float_kernel(GRAPH, one), [masked])
    assert found.value[0, 1] == 0
    assert torch.isfinite(found.error).all()


def test_what_a_mask_hides_is_certain():
    """The error of a score beside the least float32 is huge, and its share is 0 all the same."""
    add, one = op("Add", 2), op("Softmax", 1)
    x, mask = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[0.0, torch.finfo(torch.float32).min, 0.0]])
    (masked,) = error_bounds(add, float_kernel(GRAPH, add), [ErrorBound(x, torch.full_like(x, 1e-4)), ErrorBound(mask)])
    (found,) = error_bounds(one, float_kernel(GRAPH, one), [masked])
    assert masked.error is not None
    assert masked.error[0, 1] > 1e30
    assert found.value[0, 1] == found.spread[0, 1] == 0
    assert float(found.spread.max()) < 4e-4
    moved = torch.softmax(x.double() + torch.tensor([[1e-4, 0.0, -1e-4]]) + mask, 1)
    assert ((moved - found.value).abs() <= found.spread).all()


def test_places_of_the_greatest_are_open_between_numbers_that_may_be_equal() -> None:
    top = replace(op("TopK", 2, axis=-1), outputs=("values", "places"))
    kernel = float_kernel(GRAPH, top)
    x, count = torch.tensor([[1.0, 5.0, 4.9, 3.0, 3.0]]), ErrorBound(torch.tensor([4]))
    values, places = error_bounds(top, kernel, [ErrorBound(x), count])
    assert values.error is None
    assert places.spread.tolist() == [[0, 0, torch.inf, torch.inf]]
    values, places = error_bounds(top, kernel, [ErrorBound(x, torch.full_like(x, 0.06)), count])
    assert values.spread.tolist() == [[pytest.approx(0.06)] * 4]
    assert places.spread.tolist() == [[torch.inf] * 4]


def test_what_is_chosen_by_an_open_place_may_be_anything() -> None:
    gather = op("GatherElements", 2, axis=1)
    x, places = torch.arange(4.0).reshape(1, 4), torch.tensor([[1, 2]])
    for error, expected in ((None, [[0.0, 0.0]]), (torch.tensor([[0.0, torch.inf]]), [[torch.inf] * 2])):
        (found,) = error_bounds(gather, float_kernel(GRAPH, gather), [ErrorBound(x), ErrorBound(places, error)])
        assert found.spread.tolist() == expected
    (found,) = error_bounds(
        gather, float_kernel(GRAPH, gather), [ErrorBound(places), ErrorBound(places - 1, torch.full((1, 2), torch.inf))]
    )
    assert found.spread.tolist() == [[torch.inf] * 2]
