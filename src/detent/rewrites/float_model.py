"""Removes quantization from a network, to compare an engine's integer speed with its float speed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from detent.ir import Network, Op, Operand, read_qdq, requantizes, write_qdq
from detent.rewrites.undo import undo

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["float_model", "float_network"]


def float_model(model: ModelProto) -> ModelProto:
    """The `float_network` of a QDQ model, as a model."""
    return write_qdq(float_network(read_qdq(model)))


def float_network(network: Network) -> Network:
    """`network` in float32: weights are what their codes stand for, activations are not rounded.

    Operations, tensors, inputs and outputs keep their names. An output that was given as codes is a float tensor of the
    same name. Integers that the network takes in are still dequantized: they are no quantization of ours. Rewrites that
    can be undone are.
    """
    network = undo(network)
    given = network.coded & network.inputs.keys()
    same = {op.outputs[0]: op.reads[0] for op in network.ops if requantizes(network, op)}

    def plain(read: Operand) -> Operand:
        while read.tensor in same:
            read = same[read.tensor]
        return read if read.tensor in given else Operand(read.tensor)

    def in_float(op: Op) -> Op:
        inputs = tuple(None if read is None else plain(read) for read in op.inputs)
        return replace(op, inputs=inputs, captured={name: plain(read) for name, read in op.captured.items()})

    constants = dict(network.constants)
    for name in constants.keys() & network.coded:
        encoding = network.grid_of(name)
        assert encoding is not None
        constants[name] = encoding.dequantize(constants[name])
    return replace(
        network,
        ops=tuple(in_float(op) for op in network.ops if op.outputs[0] not in same),
        outputs=tuple(replace(output, read=plain(output.read), as_codes=False) for output in network.outputs),
        constants=constants,
        coded=given,
    )
