"""How far float32 computations of recurrent layers may be apart: float64 lies within it, and wrong weights do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detent.ir import Network, Op, Operand
from detent.ir.roundoff import ErrorBound, error_bounds
from detent.twin.float_ops import float_kernel

GRAPH = Network({}, (), (), {}, frozenset(), {}, 21)
LAYERS = {"LSTM": (nn.LSTM, (0, 2, 3, 1)), "GRU": (nn.GRU, (1, 0, 2)), "RNN": (nn.RNN, (0,))}
"""With the blocks of ONNX in the order of torch."""
SIZE, HELD, SAMPLES = 8, 6, 3


def layer(kind: str, times: int, *, directions: int = 1, size: float = 1.0) -> tuple[Op, list[torch.Tensor]]:
    """Weights of `size` are several times as large as torch begins with."""
    generator = torch.Generator().manual_seed(0)
    rows = len(LAYERS[kind][1]) * HELD
    shapes = [(times, SAMPLES, SIZE), (directions, rows, SIZE), (directions, rows, HELD), (directions, 2 * rows)]
    given = [torch.randn(shape, generator=generator) * (size if place else 1) for place, shape in enumerate(shapes)]
    attributes = {"hidden_size": HELD, "direction": "bidirectional" if directions == 2 else "forward"}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    outputs = ("y", "h", "c") if kind == "LSTM" else ("y", "h")
    return Op(kind, "layer", tuple(Operand(f"i{n}") for n in range(4)), outputs, attributes), given


def in_torch(kind: str, given: list[torch.Tensor]) -> torch.Tensor:
    """In float64, in the order of axes that ONNX has."""
    x, *parameters = (value.double() for value in given)
    build, order = LAYERS[kind]
    directions = len(parameters[0])
    module = build(SIZE, HELD, bidirectional=directions == 2).double()
    for side in range(directions):
        end = "l0" + "_reverse" * side
        of_input, of_held, biases = (value[side] for value in parameters)
        named = {
            "weight_ih": of_input,
            "weight_hh": of_held,
            "bias_ih": biases.chunk(2)[0],
            "bias_hh": biases.chunk(2)[1],
        }
        for name, value in named.items():
            blocks = value.chunk(len(order))
            getattr(module, f"{name}_{end}").data.copy_(torch.cat([blocks[block] for block in order]))
    with torch.no_grad():
        result: torch.Tensor = module(x)[0]
    return result.unflatten(-1, (directions, HELD)).movedim(2, 1)


def widest(found: ErrorBound, other: torch.Tensor) -> float:
    """The largest difference, in what is allowed for it."""
    return float(((found.value.double() - other).abs() / found.spread.double()).max())


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("times", [5, 60])
@pytest.mark.parametrize("kind", LAYERS)
def test_float64_lies_within_what_is_possible(kind, times, directions):
    """Also at the end of 60 steps, where errors that are added up by their size alone are beyond all bounds."""
    op, given = layer(kind, times, directions=directions, size=0.5)
    found, *_ = error_bounds(op, float_kernel(GRAPH, op), [ErrorBound(value) for value in given])
    assert widest(found, in_torch(kind, given)) <= 0.5  # one of two sides
    assert float(found.spread.max()) < 1e-3


@pytest.mark.parametrize("kind", LAYERS)
def test_the_last_states_are_as_uncertain_as_the_last_step(kind):
    op, given = layer(kind, 9, size=0.5)
    found = error_bounds(op, float_kernel(GRAPH, op), [ErrorBound(value) for value in given])
    assert len(found) == len(op.outputs)
    assert torch.equal(found[1].spread, found[0].spread[-1])
    assert all(each.spread.shape == each.value.shape for each in found)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_uncertain_is_passed_on(kind):
    op, given = layer(kind, 12, size=0.5)
    error = torch.rand(given[0].shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    found, *_ = error_bounds(op, float_kernel(GRAPH, op), [ErrorBound(given[0], error), *map(ErrorBound, given[1:])])
    assert float(found.spread.max()) < 0.1
    for seed in range(5):
        signs = 2 * torch.randint(2, error.shape, generator=torch.Generator().manual_seed(seed)) - 1
        assert widest(found, in_torch(kind, [given[0] + error * signs, *given[1:]])) <= 1.0


@pytest.mark.parametrize("which", [1, 2, 3], ids=["input", "held", "bias"])
@pytest.mark.parametrize("kind", LAYERS)
def test_another_weight_is_beyond_it(kind, which):
    """1 % of the largest."""
    op, given = layer(kind, 12, size=0.5)
    found, *_ = error_bounds(op, float_kernel(GRAPH, op), [ErrorBound(value) for value in given])
    wrong = [value.clone() for value in given]
    wrong[which].view(-1)[7] += 0.01 * wrong[which].abs().max()
    assert widest(found, in_torch(kind, wrong)) > 1.0


def test_a_chaotic_layer_is_bounded_by_what_is_guessed():
    """Roundings of 400 steps grow until nothing can be proven; of certain inputs, 256 roundings are allowed."""
    op, given = layer("RNN", 400, size=3.0)
    found, *_ = error_bounds(op, float_kernel(GRAPH, op), [ErrorBound(value) for value in given])
    assert float(found.spread.max()) <= 2.0**-6
    uncertain = ErrorBound(given[0], torch.full_like(given[0], 0.1))
    found, *_ = error_bounds(op, float_kernel(GRAPH, op), [uncertain, *map(ErrorBound, given[1:])])
    assert float(found.spread.max()) >= 1.0


def test_a_form_that_is_not_written_out_is_unknown():
    op, given = layer("LSTM", 4)
    clipped = Op("LSTM", "layer", op.inputs, op.outputs, {**op.attributes, "clip": 3.0})
    uncertain = ErrorBound(given[0], torch.full_like(given[0], 1e-3))
    found = error_bounds(clipped, float_kernel(GRAPH, clipped), [uncertain, *map(ErrorBound, given[1:])])
    assert all(torch.isinf(each.spread).all() for each in found)
