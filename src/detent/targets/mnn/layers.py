"""Groups operations that MNN runs as one: a layer with its bias and activation, an addition with its ReLU, a SiLU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from detent.ir import Encoding, Network, Op, Trait, ops_with, sole_reader

__all__ = [
    "BINARY",
    "PRODUCT",
    "PRODUCTS",
    "WEIGHTED",
    "MnnUnit",
    "function_behind",
    "has_small_groups",
    "integer_layers",
    "is_large",
    "is_split",
    "is_taken_in",
    "layer_grid",
    "mnn_units",
]

PRODUCTS = ops_with(Trait.WEIGHTED) - ops_with(Trait.CONVOLUTION)
WEIGHTED = ops_with(Trait.WEIGHTED) - {"ConvTranspose"}  # which runs in float
BINARY = ops_with(Trait.ARITHMETIC) - {"Div"}  # which has no kernel for codes
_FUNCTIONS = ops_with(Trait.CLIPS)
PRODUCT = ".product"
"""Ends the name of the output of the convolution that a large matrix product is written as."""
_LARGE = 2**16


@dataclass(frozen=True)
class MnnUnit:
    """Operations that MNN runs as one, in order; `reads` are the float tensors that the first one reads."""

    ops: tuple[Op, ...]
    reads: tuple[str, ...]

    @property
    def head(self) -> Op:
        return self.ops[0]

    @property
    def gives(self) -> tuple[str, ...]:
        return self.ops[-1].outputs

    @property
    def output(self) -> str:
        return self.gives[0]


def mnn_units(graph: Network) -> list[MnnUnit]:
    """The units of a network, in order."""
    inside: set[str] = set()
    found = []
    for op in graph.ops:
        if op.outputs[0] in inside:
            continue
        unit = MnnUnit(tuple(_joined(graph, op)), tuple(_reads(op)))
        inside.update(each.outputs[0] for each in unit.ops)
        found.append(unit)
    return found


def is_split(graph: Network, op: Op) -> bool:
    """Whether MNN creates one convolution per group: their scales are not those of the surrounding tensors."""
    weight = op.inputs[1] if op.type == "Conv" else None
    group = op.groups
    if weight is None or group == 1 or has_small_groups(graph, op):
        return False
    return graph.constants[weight.tensor].shape[:2] != (group, 1)


def has_small_groups(graph: Network, op: Op) -> bool:
    """Whether MNN would turn it into depthwise convolutions, with names that cannot be predicted and therefore in
    float: `mnn.model` writes it without groups, with zeros between them."""
    group, weight = op.groups, op.inputs[1] if op.type == "Conv" else None
    if weight is None or weight.tensor not in graph.constants:
        return False
    outputs, inputs = graph.constants[weight.tensor].shape[:2]
    each = outputs // group
    return (each, inputs) != (1, 1) and each < min(4, group) and inputs < group


def is_large(graph: Network, unit: MnnUnit) -> bool:
    """Whether it is a matrix product whose weights `mnnconvert` moves out of the model before it quantizes: it then
    quantizes uninitialized memory."""
    if unit.head.type not in PRODUCTS or not _has_codes(graph, unit.head):
        return False
    weight = unit.head.inputs[1]
    return weight is not None and graph.constants[weight.tensor].size >= _LARGE


def integer_layers(graph: Network) -> list[MnnUnit]:
    """Layers with integer weights that read codes."""
    return [unit for unit in mnn_units(graph) if _has_codes(graph, unit.head)]


def function_behind(graph: Network, unit: MnnUnit) -> Op | None:
    """The ReLU or clip that is the only reader of a unit's output and is computed separately."""
    after = _joined_reader(graph, unit.output) if unit.head.type in (*WEIGHTED, *BINARY) else None
    if after is None or after.type not in _FUNCTIONS:
        return None
    bounds = [read.tensor in graph.constants for read in after.inputs[1:] if read is not None]
    return after if all(bounds) else None


def layer_grid(graph: Network, unit: MnnUnit) -> Encoding | None:
    """The grid of a layer's output, or of a function after it: both clip values beyond it."""
    function, own = function_behind(graph, unit), graph.grid_of(unit.output)
    return graph.grid_of(function.outputs[0]) if own is None and function is not None else own


def is_taken_in(graph: Network, op: Op) -> bool:
    """Whether MNN fuses a function into the convolution before it: a ReLU, or a clip from 0 to 6."""
    bounds = [graph.constants.get(read.tensor) for read in op.inputs[1:] if read is not None]
    return op.type == "Relu" or (
        op.type == "Clip" and [None if bound is None else float(bound) for bound in bounds] == [0.0, 6.0]
    )


def _has_codes(graph: Network, op: Op) -> bool:
    if op.type not in (*WEIGHTED, "ConvTranspose") or op.inputs[1] is None:
        return False
    return op.inputs[1].tensor in graph.coded and op.inputs[0] is not None and op.inputs[0].encoding is not None


def _joined(graph: Network, op: Op) -> Iterator[Op]:
    yield op
    if op.type in WEIGHTED or op.type == "ConvTranspose":
        after = _joined_reader(graph, op.outputs[0])
        if op.type == "MatMul" and after is not None and after.type == "Add" and _adds_constant(graph, after):
            yield after
            after = _joined_reader(graph, after.outputs[0])
        if op.type not in PRODUCTS and after is not None and is_taken_in(graph, after):
            yield after
    elif op.type in BINARY:
        after = _joined_reader(graph, op.outputs[0])
        if after is not None and after.type == "Relu":
            yield after
    elif op.type == "Sigmoid":
        after = _joined_reader(graph, op.outputs[0])
        if after is not None and after.type == "Mul" and op.inputs[0] in after.inputs:
            yield after  # a SiLU


def _adds_constant(graph: Network, op: Op) -> bool:
    return any(graph.is_constant(read) for read in op.inputs)


def _joined_reader(graph: Network, tensor: str) -> Op | None:
    """A grid of its own does not keep MNN from joining two operations: the output of the second must have one then."""
    found = sole_reader(graph, tensor)
    if found is None:
        return None
    reader, read = found
    return reader if read.encoding is None or graph.grid_of(reader.outputs[0]) is not None else None


def _reads(op: Op) -> Iterator[str]:
    """All inputs of a concatenation or of arithmetic; otherwise the first, because the others are weights, sizes and
    axes."""
    several = op.type in BINARY or op.type == "Concat"
    for read in op.inputs if several else op.inputs[:1]:
        if read is not None:
            yield read.tensor
