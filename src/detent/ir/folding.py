"""Constant folding: computes ahead what depends on constants and sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

if TYPE_CHECKING:
    from detent.ir.network import Network, Op, Operand

__all__ = ["evaluate_node", "fold_constants"]

Array = npt.NDArray[Any]


def evaluate_node(node: onnx.NodeProto, values: Mapping[str, Array], opset: int) -> dict[str, Array]:
    """What one node gives, by ONNX's own evaluator: a file may hold any operator, with the meaning that its opset
    gives it. In a model of its own, because of a lone node the evaluator takes the newest meaning."""
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    results = ReferenceEvaluator(model).run(None, dict(values))
    return {value.name: np.asarray(result) for value, result in zip(outputs, results, strict=True)}


def fold_constants(graph: Network, shapes: Mapping[str, tuple[int, ...]], *, keep_codes: bool = False) -> Network:
    """The same network with the operations on constants, and on the sizes of tensors in `shapes`, computed. With
    `keep_codes` a weight on its way to a layer keeps its codes, and so the operations on it."""
    constants, kept = dict(graph.constants), []
    for op in graph.ops:
        first, reads = next(iter(op.inputs), None), [read for read in op.inputs if read is not None]
        if op.type == "Shape" and first is not None and first.tensor in shapes:
            start, end = op.attributes.get("start", 0), op.attributes.get("end")
            constants[op.outputs[0]] = np.array(shapes[first.tensor][start:end], np.int64)
        elif _is_constant(op, reads, constants) and not (keep_codes and any(r.tensor in graph.coded for r in reads)):
            constants |= _computed(graph, op, constants)
        else:
            kept.append(op)
    return graph if len(kept) == len(graph.ops) else replace(graph, ops=tuple(kept), constants=constants)


def _is_constant(op: Op, reads: Sequence[Operand], constants: Mapping[str, Array]) -> bool:
    return not op.domain and bool(reads) and all(read.tensor in constants for read in reads)


def _computed(graph: Network, op: Op, constants: Mapping[str, Array]) -> dict[str, Array]:
    names = ["" if read is None else f"input{index}" for index, read in enumerate(op.inputs)]
    node = helper.make_node(op.type, names, list(op.outputs), **op.onnx_attributes)
    values = {}
    for name, read in zip(names, op.inputs, strict=True):
        if read is not None:
            held = constants[read.tensor]
            if read.encoding is not None:
                codes = held if read.tensor in graph.coded else read.encoding.quantize(held)
                held = read.encoding.dequantize(codes)
            values[name] = held
    return evaluate_node(node, values, graph.opset)
