"""What ONNX Runtime made of a QDQ model: which operations became integer kernels, and why others did not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx

from detent.ir import Encoding, Network, Op, Operand, Trait, ops_with
from detent.ir.metadata import is_code_range

__all__ = ["FusedGraph", "why_float"]

# The runtime drops the Q and DQ around these; it has no rule for the five.
_MOVES = ops_with(Trait.MOVES_VALUES) - {"DepthToSpace", "GatherElements", "Identity", "SpaceToDepth", "Tile"} | {
    "MaxPool",
    "Resize",
}
_KERNELS: Mapping[str, int | None] = {
    **dict.fromkeys(_MOVES | {"AveragePool", "GlobalAveragePool", "LeakyRelu", "ReduceMean", "Sigmoid", "Softmax"}, 1),
    **dict.fromkeys(ops_with(Trait.WEIGHTED) - {"ConvTranspose"} | {"Add", "Mul"}, 2),
    "Where": 3,
    "Concat": None,
}
"""Operators with a kernel on codes, and how many of its inputs it takes as codes; None is all."""
_ACTIVATIONS = ops_with(Trait.CLIPS)
_BARRIERS = ops_with(Trait.WEIGHTED) | {"Reshape", "Flatten", "LayerNormalization"}
"""No Transpose is moved to their other side."""
_WITH_ADD = "/MatMulAddFusion"  # ends the name of a MatMul that has become a Gemm with the bias added behind it


class FusedGraph:
    """A model as ONNX Runtime optimized it, and how names of the QDQ model map to names in it.

    A fused node keeps the name of the operation it was; a tensor that was int8 and is now uint8 does not.
    """

    def __init__(self, original: onnx.ModelProto, fused: onnx.ModelProto):
        self.model = fused
        self._original = original.graph
        self._nodes = {node.name.removesuffix(_WITH_ADD): node for node in fused.graph.node}
        self._codes = _codes(fused.graph)
        self._made_by = {name: node for node in original.graph.node for name in node.output}
        # A HardSwish is written out as the nodes that it stands for, which have no names: the last gives its tensor.
        without_name = [node for node in fused.graph.node if not node.name]
        self._written_out = {
            self._made_by[name].name: node for node in without_name for name in node.output if name in self._made_by
        }
        self._kept = {name for node in fused.graph.node for name in node.output}
        self._reordered = _behind_moved_transposes(original.graph, fused.graph)

    def ran_as(self, op: str) -> Literal["integer", "float", "folded"]:
        node = self._nodes.get(op) or self._written_out.get(op)
        if node is None:
            return "folded"
        on_codes = _is_integer_kernel(node) or any(name in self._codes for name in node.input)
        return "integer" if on_codes and node.op_type != "DequantizeLinear" else "float"

    def codes_of(self, graph: Network) -> dict[str, tuple[str, Encoding]]:
        """For each activation, the name that its codes have now, and the grid they are on."""
        grids = _grids(graph)
        found: dict[str, tuple[str, Encoding]] = {}
        for node in self._original.node:
            if node.op_type != "QuantizeLinear":
                continue
            tensor = node.input[0]
            if tensor in self._made_by and is_code_range(self._made_by[tensor]):
                tensor = self._made_by[tensor].input[0]
            codes = self._codes_behind(node)
            # What still has its own name is in its own order: the Transpose that was moved behind it gives it now.
            if codes is None or (tensor in self._reordered and codes != node.output[0]):
                continue
            if tensor in grids:
                found.setdefault(tensor, (codes, grids[tensor]))
        return found

    def _codes_behind(self, quantize: onnx.NodeProto) -> str | None:
        """The name of a QuantizeLinear's output now: its own, or that of the kernel it was fused into."""
        node: onnx.NodeProto | None = quantize
        tensor = quantize.output[0]
        if tensor in self._kept:
            return str(tensor) if tensor in self._codes else None
        while node is not None:
            kept = self._nodes.get(node.name)
            if kept is not None:  # of a Split's outputs, the one that was quantized
                given = kept.output[list(node.output).index(tensor)]
                return str(given) if given in self._codes else None
            # Activation functions may be gone, and additions of a bias.
            goes_on = node is quantize or node.op_type in (*_ACTIVATIONS, "Add")
            tensor = node.input[0]
            node = self._made_by.get(tensor) if goes_on else None
        return None


def _grids(graph: Network) -> dict[str, Encoding]:
    reads = [read for op in graph.ops for read in op.inputs if read is not None]
    reads += [output.read for output in graph.outputs]
    return {read.tensor: read.encoding for read in reversed(reads) if read.encoding and read.tensor not in graph.coded}


def _is_integer_kernel(node: onnx.NodeProto) -> bool:
    return node.op_type.startswith(("QLinear", "QGemm")) or "Integer" in node.op_type


def _codes(graph: onnx.GraphProto) -> set[str]:
    """Every integer activation: the output of a quantizing node, or moved by a node that reads one."""
    found: set[str] = set()
    for node in graph.node:
        gives_floats = node.op_type in ("DequantizeLinear", "MatMulIntegerToFloat")
        moves = bool(node.input) and node.input[0] in found
        if not gives_floats and (node.op_type == "QuantizeLinear" or _is_integer_kernel(node) or moves):
            found.update(node.output)
    return found


def _behind_moved_transposes(original: onnx.GraphProto, fused: onnx.GraphProto) -> set[str]:
    """Tensors that a Transpose gives which is gone or permutes otherwise now, and all that is computed from them as far
    as a Transpose can be moved: what nodes give there may be in another order than the model has it."""
    now = {node.name: node.attribute for node in fused.node if node.op_type == "Transpose"}
    reordered: set[str] = set()
    for node in original.node:
        moved = node.op_type == "Transpose" and list(now.get(node.name, ())) != list(node.attribute)
        if moved or (node.op_type not in _BARRIERS and reordered.intersection(node.input)):
            reordered.update(node.output)
    return reordered


def why_float(graph: Network, op: Op) -> str:
    """The rule by which ONNX Runtime kept an operation in float; empty if it is not known here."""
    if op.type in _ACTIVATIONS:
        return _why_not_dropped(graph, op)
    if op.type not in _KERNELS:
        return f"there is no integer kernel for {op.type}"
    for read in op.inputs[: _KERNELS[op.type]]:
        if read is not None and read.encoding is None:
            held = graph.constants.get(read.tensor)
            if held is not None and held.dtype in (np.int8, np.uint8):
                return f"it looks up codes of {read.tensor!r}, which are dequantized behind it"
            what = "constant" if read.tensor in graph.constants else "input"
            return f"its {what} {read.tensor!r} is not quantized"
    return _of_output(graph, op) or _of_bias(op) or _of_type(graph, op)


def _of_bias(op: Op) -> str:
    data, weight, bias = (*op.inputs, None, None, None)[:3]
    if op.type not in ("Conv", "Gemm") or data is None or weight is None or bias is None or bias.encoding is None:
        return ""
    if data.encoding is None or weight.encoding is None:
        return ""
    wanted = np.asarray(data.encoding.scale * weight.encoding.scale)
    fits = np.isclose(bias.encoding.scale, wanted, rtol=1e-2, atol=1e-6).all()
    return "" if fits else "the scale of its bias is not that of input times weight"


def _of_output(graph: Network, op: Op) -> str:
    end = op
    readers = graph.readers(op.outputs[0])
    if len(readers) == 1 and readers[0][0].type in _ACTIVATIONS and readers[0][1].encoding is None:
        end = readers[0][0]
        if why := _why_not_dropped(graph, end):
            return why
    grids = graph.encodings(end.outputs[0])
    if None in grids or not grids:
        return "its output is not quantized"
    if len(grids) > 1:
        return "its output is read on several grids"
    assert grids[0] is not None
    if not grids[0].per_tensor:
        return "its output has a scale for each channel"
    data = op.inputs[0]
    if op.type in _MOVES and data is not None and data.encoding != grids[0]:
        return "it moves codes only on one grid, and what it gives is on another than what it takes"
    return "" if grids[0].full else _too_few(grids[0])


def _why_not_dropped(graph: Network, op: Op) -> str:
    """Why an activation function between an operation and a QuantizeLinear was not made part of the grid."""
    grid = graph.grid_of(op.outputs[0])
    if grid is None:
        return "its output is not quantized on one grid"
    if not grid.full:
        return _too_few(grid)
    if op.type == "Clip":
        return "this Clip is not the range of its output's grid"
    if not grid.per_tensor:
        return "its output has a scale for each channel"
    if int(grid.zero_point) == grid.qmin:
        return ""
    return (
        f"a ReLU is dropped only where the zero point of its output is the least code ({grid.qmin}); "
        f"it is {int(grid.zero_point)} in {grid.dtype}"
    )


def _too_few(grid: Encoding) -> str:
    return f"its output keeps {grid.qmin} to {grid.qmax} of {grid.dtype} by a Clip, which ends the fusion"


def _of_type(graph: Network, op: Op) -> str:
    for read in (*op.inputs, *(Operand(name, graph.grid_of(name)) for name in op.outputs)):
        if read is None or read.encoding is None or read.tensor in graph.coded:
            continue
        if read.encoding.dtype not in ("uint8", "int8"):
            return f"{read.tensor!r} is {read.encoding.dtype}, and kernels take 8 bits"
        if read.encoding.dtype == "int8" and len(graph.readers(read.tensor)) > 1:
            return f"{read.tensor!r} is int8 with several readers, and is turned into uint8 only where it has one"
    return ""
