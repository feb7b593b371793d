"""The supported opsets, and operators that are defined by functions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import onnx
import onnx.inliner
from onnx import ModelProto, NodeProto

from detent.errors import OnnxError
from detent.frontends.onnx.reading.inference import without_weights
from detent.frontends.onnx.table import CONVERTERS

__all__ = ["NEWEST", "OLDEST", "expanded", "opset_of", "understood"]

OLDEST, NEWEST = 9, 28
"""The oldest version all of which is understood, and the newest one that was looked at."""

_STANDARD = ("", "ai.onnx")
_SAME_FROM_7 = frozenset(
    (
        "BatchNormalization", "Cast", "Constant", "Flatten", "Gemm", "Greater", "Less", "MatMul", "Max", "MaxPool",
        "Mean", "Min", "PRelu", "Sum",
    )
)  # fmt: skip
"""Operators that opsets 8 and 9 gave more types, broadcasting or outputs, and that mean the same in what 7 has (but a
batch norm that is not `spatial`, which is refused)."""
_LAYERS = 4  # definitions by operators that are themselves defined by others


def opset_of(model: ModelProto) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in _STANDARD]
    if len(versions) != 1 or not 1 <= versions[0] <= NEWEST:
        raise OnnxError(
            "import an ONNX model",
            f"it names the operator sets {versions}",
            f"give a model of one standard operator set, {OLDEST} to {NEWEST}",
        )
    return int(versions[0])


@cache
def understood(op_type: str, opset: int) -> bool:
    """Whether an operator means in `opset` what it means in one that is understood."""
    if opset >= OLDEST or (opset >= 7 and op_type in _SAME_FROM_7):
        return True
    return _since(op_type, opset) == _since(op_type, OLDEST) is not None


def _since(op_type: str, opset: int) -> int | None:
    try:
        return onnx.defs.get_schema(op_type, opset).since_version
    except onnx.defs.SchemaError:
        return None


def expanded(model: ModelProto) -> list[NodeProto]:
    """The nodes, with operators that ONNX defines by others we know written out."""
    nodes = list(model.graph.node)
    if not _defined_by_others(nodes, opset_of(model)):
        return nodes
    flat = without_weights(model, nodes)
    try:
        for _ in range(_LAYERS):
            unknown = _defined_by_others(flat.graph.node, opset_of(model))
            if not unknown:
                break
            _say_defaults(flat.graph.node, {op_type for _, op_type in unknown}, opset_of(model))
            flat = onnx.inliner.inline_selected_functions(flat, unknown, inline_schema_functions=True)
    except Exception as error:  # types that cannot be inferred
        raise OnnxError("write out the operators of a model", str(error), "export it with simpler ones") from error
    return list(flat.graph.node)


def _say_defaults(nodes: Iterable[NodeProto], op_types: set[str], opset: int) -> None:
    """Gives nodes the attributes they leave out, which onnx.inliner would leave out of the definition too."""
    for node in nodes:
        if node.domain in _STANDARD and node.op_type in op_types:
            present = {attribute.name for attribute in node.attribute}
            known: Any = onnx.defs.get_schema(node.op_type, opset)
            defaults = [one.default_value for name, one in known.attributes.items() if name not in present]
            node.attribute.extend(default for default in defaults if default.name)


def _defined_by_others(nodes: Iterable[NodeProto], opset: int) -> list[tuple[str, str]]:
    """The operators that we do not know and ONNX has a definition of."""
    used = {node.op_type for node in nodes if node.domain in _STANDARD} - set(CONVERTERS)
    return [("", op_type) for op_type in sorted(used) if _has_definition(op_type, opset)]


def _has_definition(op_type: str, opset: int) -> bool:
    try:
        schema: Any = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
