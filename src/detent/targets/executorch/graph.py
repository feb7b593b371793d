"""The network as ExecuTorch wants it: what its delegate would mistake is written in another way."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from detent.ir import Network, Op, Operand, Trait, constant_values, ops_with, sole_float_reader
from detent.ir.names import TensorNames
from detent.targets.base.blocks import weight_in_blocks
from detent.targets.executorch.functions import CONV_BY_PLANES, ROUND_TOKENS

__all__ = ["rounds_tokens", "with_float_weights", "with_own_biases", "with_planes", "with_rounded_tokens"]

_WEIGHTED = ops_with(Trait.WEIGHTED) - {"MatMul"}  # which has no bias


def with_own_biases(graph: Network) -> Network:
    """The same network, where layers do not share a bias: the delegate makes integers of one once, for the scales of
    the first layer that reads it."""
    constants, coded = dict(graph.constants), set(graph.coded)
    taken: set[str] = set()
    ops = []
    for op in graph.ops:
        bias = op.inputs[2] if op.type in _WEIGHTED and len(op.inputs) > 2 else None
        if bias is not None and bias.tensor in taken:
            name = f"{bias.tensor}_of_{op.outputs[0]}"
            constants[name] = graph.constants[bias.tensor].copy()
            coded.update([name] if bias.tensor in graph.coded else [])
            op = replace(op, inputs=(*op.inputs[:2], replace(bias, tensor=name)))
        elif graph.is_constant(bias):
            taken.add(bias.tensor)
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants, coded=frozenset(coded))


def with_float_weights(graph: Network, left: Set[str]) -> Network:
    """The same network, where weights of layers that do not run on integers are floats: outside of an integer kernel
    ExecuTorch has no operator for codes with a scale for each channel. `left` are outputs of layers that the delegate
    is known not to take."""
    constants = dict(graph.constants)
    ops = []
    for op in graph.ops:
        weight = op.inputs[1] if op.type in _WEIGHTED else None
        codes = weight is not None and weight.encoding is not None and weight.tensor in graph.coded
        if weight is not None and codes and (op.outputs[0] in left or not _runs_on_codes(graph, op)):
            name = f"{weight.tensor}_dequantized"
            constants[name] = _real(graph, weight)
            op = replace(op, inputs=(op.inputs[0], Operand(name), *op.inputs[2:]))
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants)


def _runs_on_codes(graph: Network, op: Op) -> bool:
    """Whether a layer gets codes and gives codes, perhaps through a ReLU or Clip, or gets rounded tokens."""
    maker = None if op.inputs[0] is None else graph.producer(op.inputs[0].tensor)
    if maker is not None and maker.type == ROUND_TOKENS:
        return True
    if op.inputs[0] is None or op.inputs[0].encoding is None:
        return False
    after = sole_float_reader(graph, op.outputs[0])
    if after is not None and after.type in ops_with(Trait.CLIPS):
        op = after
    return graph.grid_of(op.outputs[0]) is not None


def with_planes(graph: Network) -> Network:
    """The same network, where convolutions of volumes are ones of planes: ExecuTorch has no kernel for volumes."""
    constants = dict(graph.constants)
    ops = []
    for op in graph.ops:
        weight = op.inputs[1] if op.type == "Conv" else None
        if graph.is_constant(weight) and graph.constants[weight.tensor].ndim == 5:
            real = _real(graph, weight)
            names = [f"{weight.tensor}_plane{place}" for place in range(real.shape[2])]
            constants.update({name: real[:, :, place].copy() for place, name in enumerate(names)})
            bias = op.optional(2)
            op = replace(op, type=CONV_BY_PLANES, inputs=(op.inputs[0], bias, *map(Operand, names)))
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants)


def with_rounded_tokens(graph: Network) -> Network:
    """The same network, where layers whose weights are codes read activations that are rounded to 8 bits token by
    token; weights that others read are real numbers."""
    names, constants, ops = TensorNames(graph.names, "."), dict(graph.constants), []
    rounded: dict[Operand, Operand] = {}
    for op in graph.ops:
        if rounds_tokens(graph, op):
            (read, *others) = op.inputs
            assert read is not None
            if read not in rounded:
                rounded[read] = Operand(names.unique(f"{read.tensor}_rounded"))
                name = rounded[read].tensor
                ops.append(Op(ROUND_TOKENS, name, (read,), (name,)))
            op = replace(op, inputs=(rounded[read], *others))
        else:
            inputs = []
            for read in op.inputs:
                if read is not None and read.encoding is not None and read.tensor in graph.coded:
                    real = Operand(f"{read.tensor}_dequantized")
                    constants[real.tensor], read = _real(graph, read), real
                inputs.append(read)
            op = replace(op, inputs=tuple(inputs))
        ops.append(op)
    return replace(graph, ops=tuple(ops), constants=constants)


def rounds_tokens(graph: Network, op: Op) -> bool:
    """Whether it is a linear layer with weights of 4 bits in groups, or of 8 bits with a scale for each output."""
    read = weight_in_blocks(graph, op) if op.type in ("Gemm", "MatMul") else None
    if read is None or read.encoding is None or not read.encoding.symmetric:
        return False
    return read.encoding.dtype == ("int8" if read.encoding.block is None else "int4")


def _real(graph: Network, read: Operand) -> npt.NDArray[Any]:
    """The real numbers of a constant."""
    values = constant_values(graph, read)
    assert values is not None
    return values
