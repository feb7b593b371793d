"""The defaults of ONNX attributes, from the schemas: the one place that fills in what a model leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import onnx

__all__ = ["attribute_value", "changed_defaults", "default_activations", "schema_defaults"]

_OLDEST = 9  # the first opset that is fully supported
# Defaults that the schema states in words: "1 along each axis if not present".
_ALONG_AXES: Mapping[str, Callable[[int], list[int]]] = {
    "dilations": lambda rank: [1] * rank,
    "output_padding": lambda rank: [0] * rank,
    "pads": lambda rank: [0] * 2 * rank,
    "perm": lambda rank: list(range(rank))[::-1],
    "strides": lambda rank: [1] * rank,
}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def attribute_value(op_type: str, given: Mapping[str, Any], name: str, rank: int | None = None) -> Any:
    """The attribute `name` of an operator whose node has the attributes `given`; None if it has no default.

    `rank` is the number of axes that a window slides along (by default those of the kernel_shape), or that a Transpose
    permutes: it is needed for attributes that default to one value for each axis. A name that the operator does
    not have is a KeyError.

    >>> attribute_value("LeakyRelu", {"alpha": 0.5}, "alpha")
    0.5
    >>> attribute_value("Gemm", {}, "transB")
    0
    >>> attribute_value("Conv", {"kernel_shape": [3, 3]}, "strides")
    [1, 1]
    """
    if name in given:
        return given[name]
    if name == "activations" and op_type in _ACTIVATIONS:
        return default_activations(op_type, given)
    defaults = schema_defaults(op_type)
    if name not in defaults:
        raise KeyError(f"{op_type} has no attribute {name!r}")
    if defaults[name] is None and name in _ALONG_AXES:
        return _ALONG_AXES[name](len(given["kernel_shape"]) if rank is None else rank)
    return defaults[name]


def default_activations(op_type: str, given: Mapping[str, Any]) -> list[str]:
    """The gate functions of an LSTM, a GRU or an RNN that names none. The schema states them in words only.

    >>> default_activations("GRU", {"direction": "bidirectional"})
    ['Sigmoid', 'Tanh', 'Sigmoid', 'Tanh']
    """
    directions = 2 if attribute_value(op_type, given, "direction") == "bidirectional" else 1
    return _ACTIVATIONS[op_type] * directions


@cache
def schema_defaults(op_type: str, opset: int | None = None) -> Mapping[str, Any]:
    """Every attribute of an operator, with the default of its ONNX schema; None where the schema has none.

    Without `opset`, of the newest version that has the attribute: older ones, such as the axes of a ReduceMean before
    opset 18, are there too. Empty for an operator that ONNX does not define.
    """
    found: dict[str, Any] = {}
    newest, oldest = (onnx.defs.onnx_opset_version(), _OLDEST) if opset is None else (opset, opset)
    while newest >= oldest and onnx.defs.has(op_type, newest):
        schema = onnx.defs.get_schema(op_type, newest)
        for name, attribute in schema.attributes.items():
            found.setdefault(name, _default(attribute.default_value))
        newest = schema.since_version - 1
    return MappingProxyType(found)


def changed_defaults(op_type: str, opset: int) -> dict[str, Any]:
    """The defaults of `opset` that a newer opset changed. A reader writes them out, so that they hold in any opset.

    >>> changed_defaults("Softmax", 12), changed_defaults("Softmax", 13)
    ({'axis': 1}, {})
    """
    newest = schema_defaults(op_type)
    older = schema_defaults(op_type, opset)
    return {name: value for name, value in older.items() if value is not None and value != newest[name]}


def _default(attribute: onnx.AttributeProto) -> Any:
    if not attribute.name:
        return None
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value
