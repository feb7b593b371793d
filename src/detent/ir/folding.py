"""Constant folding: computes ahead what depends on constants and sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from detent.ir.reference import REFERENCE, KernelCall

if TYPE_CHECKING:
    from detent.ir.network import Network, Op, Operand

__all__ = ["evaluate_node", "fold_constants"]

Array = npt.NDArray[Any]

_TORCH_TYPES = frozenset(("bool", "float32", "float64", "int32", "int64"))
"""Numpy types that the reference kernels compute with as ONNX does."""


def evaluate_node(node: onnx.NodeProto, values: Mapping[str, Array], opset: int) -> dict[str, Array]:
    """Compute one node with ONNX's reference evaluator, which has every operator of every opset. The node is put into a
    model of its own, because a lone node is evaluated in the newest opset."""
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    results = ReferenceEvaluator(model).run(None, dict(values))
    return {value.name: np.asarray(result) for value, result in zip(outputs, results, strict=True)}


def fold_constants(graph: Network, shapes: Mapping[str, tuple[int, ...]], *, keep_codes: bool = False) -> Network:
    """Fold operations whose inputs are constants, or sizes of tensors in `shapes`. With `keep_codes`, operations on
    weights that are stored as codes are kept, so that the codes are."""
    constants, kept = dict(graph.constants), []
    for op in graph.ops:
        first, reads = next(iter(op.inputs), None), [read for read in op.inputs if read is not None]
        if op.type == "Shape" and first is not None and first.tensor in shapes:
            start, end = op.attribute("start"), op.attribute("end")
            constants[op.outputs[0]] = np.array(shapes[first.tensor][start:end], np.int64)
        elif _is_constant(op, reads, constants) and not (keep_codes and any(r.tensor in graph.coded for r in reads)):
            constants |= _computed(graph, op, constants)
        else:
            kept.append(op)
    return graph if len(kept) == len(graph.ops) else replace(graph, ops=tuple(kept), constants=constants)


def _is_constant(op: Op, reads: Sequence[Operand], constants: Mapping[str, Array]) -> bool:
    return not op.domain and bool(reads) and all(read.tensor in constants for read in reads)


def _computed(graph: Network, op: Op, constants: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of a node, by the reference kernel, or by ONNX's evaluator where there is none."""
    held = [None if read is None else _read(graph, read, constants) for read in op.inputs]
    if op.type in REFERENCE and all(array is None or array.dtype.name in _TORCH_TYPES for array in held):
        tensors = [None if array is None else torch.from_numpy(np.array(array)) for array in held]
        found = REFERENCE[op.type](KernelCall(op.type, tensors, op.attributes, held, len(op.outputs), op.name))
        results = (found,) if isinstance(found, torch.Tensor) else found
        return {name: result.numpy() for name, result in zip(op.outputs, results, strict=True) if name}
    names = ["" if array is None else f"input{index}" for index, array in enumerate(held)]
    node = helper.make_node(op.type, names, list(op.outputs), **op.onnx_attributes)
    return evaluate_node(
        node, {name: array for name, array in zip(names, held, strict=True) if array is not None}, graph.opset
    )


def _read(graph: Network, read: Operand, constants: Mapping[str, Array]) -> Array:
    """The values of a constant, dequantized if it is read on a grid."""
    held = constants[read.tensor]
    if read.encoding is None:
        return held
    return read.encoding.dequantize(held if read.tensor in graph.coded else read.encoding.quantize(held))
