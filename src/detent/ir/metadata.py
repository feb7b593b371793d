"""Notes in the metadata of ONNX models and nodes, which engines ignore."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx

from detent.errors import DeployError
from detent.ir.network import Layout, StoredAs

__all__ = ["CODE_RANGE", "REQUANTIZE", "ROLE", "has_note", "is_code_range", "read_stored_as", "write_stored_as"]

ROLE = "detent.role"
CODE_RANGE = "code_range"
"""The role of a Clip before a QuantizeLinear that uses fewer codes than its type has (6 bits in an int8, or -127 to
127): whoever reads the file makes it part of the grid. Any other Clip is an operation of the network."""

REQUANTIZE = "requantize"
"""The role of an Identity that no file has: a DequantizeLinear whose result a QuantizeLinear reads."""

_STORED_AS = "detent.stored_as"


def has_note(model: onnx.ModelProto, key: str) -> bool:
    """Whether a node of the model has metadata under this key."""
    return any(entry.key == key for node in model.graph.node for entry in node.metadata_props)


def is_code_range(node: onnx.NodeProto) -> bool:
    return any(entry.key == ROLE and entry.value == CODE_RANGE for entry in node.metadata_props)


def write_stored_as(model: onnx.ModelProto, stored_as: Mapping[str, StoredAs]) -> None:
    if stored_as:
        entries = {name: [one.parameter, one.layout.value] for name, one in stored_as.items()}
        model.metadata_props.add(key=_STORED_AS, value=json.dumps(entries))


def read_stored_as(model: onnx.ModelProto) -> dict[str, StoredAs]:
    entries = next((entry.value for entry in model.metadata_props if entry.key == _STORED_AS), "{}")
    try:
        return {str(name): StoredAs(str(of), Layout(layout)) for name, (of, layout) in json.loads(entries).items()}
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise DeployError(
            f"read the metadata {_STORED_AS!r} of an ONNX model",
            f"it is not what Detent writes: {error}",
            "deploy again",
        ) from error
