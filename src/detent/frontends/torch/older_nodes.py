"""Converts the output of torch's exporter, which supports no opset before 18, to an older opset.

ONNX's own converter is not used: it leaves attributes behind that the older operators do not have.
"""

from __future__ import annotations

import onnx
from onnx import helper, numpy_helper

from detent.ir import Trait, ops_with
from detent.ir.protos import constant_tensors

__all__ = ["FIRST", "NeedsOpsetError", "lowered"]

FIRST = 18
"""The oldest opset that torch's exporter writes."""

_AXES_WERE_ATTRIBUTES = ops_with(Trait.REDUCES) - {"ReduceSum"}


class NeedsOpsetError(Exception):
    """A node has no form in the opset that was asked for; `opset` is one that has it. It never leaves `export`."""

    def __init__(self, opset: int, node: str):
        super().__init__(node)
        self.opset, self.node = opset, node


def lowered(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """`model` of opset 18 as one of `opset`, 13 to 17, or NeedsOpsetError."""
    known = constant_tensors(model.graph)
    for node in model.graph.node:
        if node.op_type in _AXES_WERE_ATTRIBUTES:
            _take_axes_in(node, known)
        if node.op_type == "Split":  # without sizes, parts of one size were all there was
            _drop(node, "num_outputs")
    for held in model.opset_import:
        held.version = opset if held.domain in ("", "ai.onnx") else held.version
    for node in model.graph.node:
        if not _fits(node, opset):
            raise NeedsOpsetError(FIRST, node.op_type)
    return model


def _take_axes_in(node: onnx.NodeProto, known: dict[str, onnx.TensorProto]) -> None:
    if len(node.input) > 1 and node.input[1]:
        if node.input[1] not in known:
            raise NeedsOpsetError(FIRST, node.op_type)
        axes = numpy_helper.to_array(known[node.input[1]]).tolist()
        node.attribute.append(helper.make_attribute("axes", axes))
    del node.input[1:]
    _drop(node, "noop_with_empty_axes")


def _drop(node: onnx.NodeProto, name: str) -> None:
    for held in [attribute for attribute in node.attribute if attribute.name == name]:
        node.attribute.remove(held)


def _fits(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return True
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return False
    known = all(attribute.name in schema.attributes for attribute in node.attribute)
    return known and schema.min_input <= len(node.input) <= schema.max_input
