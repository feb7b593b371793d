"""What is settled before layers are made: sizes that are computed, and grids that say the same thing twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper
from onnx.reference import ReferenceEvaluator

from detent.deploy.encoding import Encoding
from detent.deploy.qdq_graph import Op, QdqGraph, Read

__all__ = ["fold", "without_repetition"]

Array = npt.NDArray[Any]

_MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Gather", "Expand")


def fold(graph: QdqGraph, shapes: Mapping[str, tuple[int, ...]]) -> QdqGraph:
    """Operations on constants and on shapes, computed: for one sample every size is known."""
    constants = dict(graph.constants)
    kept: list[Op] = []
    for op in graph.ops:
        arguments = [_value(constants, read) for read in op.inputs]
        if op.type == "Shape" and op.inputs[0] is not None and op.inputs[0].tensor in shapes:
            start, end = op.attributes.get("start", 0), op.attributes.get("end")
            constants[op.outputs[0]] = np.array(shapes[op.inputs[0].tensor][start:end], np.int64)
        elif not op.domain and arguments and all(read is None or value is not None for read, value in arguments):
            constants.update(_computed(op, [value for _, value in arguments], graph.opset))
        else:
            kept.append(op)
    return replace(graph, ops=tuple(kept), constants=constants)


def _value(constants: Mapping[str, Array], read: Read | None) -> tuple[Read | None, Array | None]:
    held = None if read is None else constants.get(read.tensor)
    if held is None or read is None or read.encoding is None:
        return read, held
    return read, read.encoding.dequantize(held)


def _computed(op: Op, arguments: list[Array | None], opset: int) -> dict[str, Array]:
    names = ["" if value is None else f"input{index}" for index, value in enumerate(arguments)]
    node = helper.make_node(op.type, names, list(op.outputs), **op.onnx_attributes)
    feeds = {name: value for name, value in zip(names, arguments, strict=True) if value is not None}
    results = ReferenceEvaluator(node, opsets={"": opset}).run(None, feeds)
    return {name: np.asarray(value) for name, value in zip(op.outputs, results, strict=True)}


def without_repetition(graph: QdqGraph) -> QdqGraph:
    """No grid before an operation that only moves numbers, where all that read these put them on that grid again.

    The second rounding gives back what the first one gave, so that one of them is enough.
    """
    ops = list(graph.ops)
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        data = op.inputs[0] if op.type in _MOVES else None
        if data is None or data.encoding is None or data.tensor in graph.coded:
            continue
        readers = [
            read.encoding
            for output in op.outputs
            for read in (
                *(read for each in ops for read in each.inputs if read is not None and read.tensor == output),
                *(given.read for given in graph.outputs if given.read.tensor == output),
            )
        ]
        if readers and all(_again(data.encoding, encoding) for encoding in readers):
            ops[index] = replace(op, inputs=(Read(data.tensor), *op.inputs[1:]))
    return replace(graph, ops=tuple(ops))


def _again(first: Encoding, second: Encoding | None) -> bool:
    """Whether numbers on the first grid and then on the second are as if they were on the second at once."""
    if second is None or not (first.per_tensor and second.per_tensor):
        return False
    within = first.qmin <= second.qmin and second.qmax <= first.qmax
    return first.scale == second.scale and first.zero_point == second.zero_point and within
