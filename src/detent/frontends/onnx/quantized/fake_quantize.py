"""Rewrites the fake-quantization operators of other tools as QuantizeLinear, Clip and DequantizeLinear.

- `FakeQuantize` of OpenVINO (NNCF, MQBench): levels between two real numbers.
- `LearnablePerTensorAffine`, `FixedPerTensorAffine`, `FixedPerChannelAffine`, `FakeQuantizeLearnablePerchannelAffine`
  of MQBench and its relatives (MMRazor, mmdeploy): torch's operators with scale, zero point and the ends of the codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from detent.errors import OnnxError
from detent.frontends.onnx.call import label
from detent.ir.protos import constant_tensors, without_initializers

__all__ = ["expand_fake_quantize"]

_AFFINE = {
    "LearnablePerTensorAffine": False,
    "FixedPerTensorAffine": False,
    "FixedPerChannelAffine": True,
    "FakeQuantizeLearnablePerchannelAffine": True,
}
"""Whether each channel has a scale."""
_OFF = 0.01  # of a step, that zero may lie beside a code: float32 has rounded the range


@dataclass(frozen=True)
class _Grid:
    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    low: int
    high: int
    axis: int


def expand_fake_quantize(model: ModelProto) -> ModelProto:
    """`model` itself if it has no such operators."""
    if not any(_is_fake(node) for node in model.graph.node):
        return model
    constants = constant_tensors(model.graph)
    transposed = {node.input[1] for node in model.graph.node if node.op_type == "ConvTranspose"}
    made = without_initializers(model)
    made.graph.initializer.extend(model.graph.initializer)
    nodes = [one for node in model.graph.node for one in _written(node, constants, transposed)]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _is_fake(node: NodeProto) -> bool:
    return node.op_type in _AFFINE or (node.op_type == "FakeQuantize" and node.domain == "org.openvinotoolkit")


def _written(node: NodeProto, constants: Mapping[str, TensorProto], transposed: set[str]) -> Iterator[NodeProto]:
    if not _is_fake(node):
        yield node
        return
    held = [_array(name, node, constants) for name in node.input[1:]]
    grid = _of_affine(node, held, transposed) if node.op_type in _AFFINE else _of_levels(node, held)
    signed, wide = grid.low < 0, grid.high - grid.low > 255
    dtype = np.dtype(f"{'int' if signed else 'uint'}{16 if wide else 8}")
    given = node.output[0]
    names = {part: f"{given}_{part}" for part in ("scale", "zero_point", "low", "high", "codes", "clipped_codes")}
    numbers = (grid.scale, grid.zero_point.astype(dtype), np.array(grid.low, dtype), np.array(grid.high, dtype))
    for name, array in zip(list(names.values())[:4], numbers, strict=True):
        yield helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(array, name))
    parts = [names["scale"], names["zero_point"]]
    axis: dict[str, Any] = {"axis": grid.axis} if grid.scale.ndim else {}
    stem = label(node)
    yield helper.make_node("QuantizeLinear", [node.input[0], *parts], [names["codes"]], name=f"{stem}_quantize", **axis)
    ends = [names["codes"], names["low"], names["high"]]
    yield helper.make_node("Clip", ends, [names["clipped_codes"]], name=f"{stem}_clip")
    yield helper.make_node(
        "DequantizeLinear", [names["clipped_codes"], *parts], [given], name=f"{stem}_dequantize", **axis
    )


def _array(name: str, node: NodeProto, constants: Mapping[str, TensorProto]) -> npt.NDArray[Any]:
    if name not in constants:
        _refuse(node, f"{name!r} is computed by the network", "store a constant")
    return numpy_helper.to_array(constants[name])


def _refuse(node: NodeProto, found: str, to_do: str) -> NoReturn:
    raise OnnxError(f"import the {node.op_type} node {label(node)!r}", found, to_do)


def _of_affine(node: NodeProto, held: list[npt.NDArray[Any]], transposed: set[str]) -> _Grid:
    """Inputs are scale, zero point, for some the axis, and the ends, which may be attributes instead."""
    stated = {attribute.name: attribute.i for attribute in node.attribute}
    scale, zero, *rest = held
    axis = 1 if node.output[0] in transposed else 0
    if _AFFINE[node.op_type] and len(rest) in (1, 3):
        axis, rest = int(rest[0].reshape(())), rest[1:]
    low, high = (int(end.reshape(())) for end in rest) if rest else (stated["quant_min"], stated["quant_max"])
    shape = () if scale.size == 1 else (-1,)
    return _Grid(
        scale.astype(np.float32).reshape(shape), np.round(zero).astype(np.int64).reshape(shape), low, high, axis
    )


def _of_levels(node: NodeProto, held: list[npt.NDArray[Any]]) -> _Grid:
    levels = next((attribute.i for attribute in node.attribute if attribute.name == "levels"), 0)
    low, high, out_low, out_high = held
    if not np.array_equal(low, out_low) or not np.array_equal(high, out_high):
        _refuse(node, "it gives another range than it takes", "use one range")
    if levels < 3 or low.shape != high.shape or sum(size > 1 for size in low.shape) > 1:
        _refuse(node, f"{levels} levels, ranges of {list(low.shape)}", "give one range, or one for each channel")
    scale = (high.astype(np.float64) - low) / (levels - 1)
    zero = -low / scale
    if np.abs(zero - np.round(zero)).max() > _OFF:
        _refuse(node, "zero lies between two of its levels", "give a range in which zero is one of them")
    axis = next((at for at, size in enumerate(low.shape) if size > 1), 0)
    shape = () if low.size == 1 else (-1,)
    points = np.round(zero).astype(np.int64).reshape(shape)
    middle = levels // 2
    if (points == middle).all():  # symmetric: codes with a sign
        return _Grid(scale.astype(np.float32).reshape(shape), points - middle, -middle, levels - 1 - middle, axis)
    return _Grid(scale.astype(np.float32).reshape(shape), points, 0, levels - 1, axis)
