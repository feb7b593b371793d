"""A copy of `model.onnx` whose nodes say their figures and reasons, for viewers such as Netron to show."""

from __future__ import annotations

import onnx

from detent.ir import Package
from detent.report.facts import Facts, Node
from detent.report.text import decibels, width_text

__all__ = ["annotated_model"]

_METADATA_OF_NODES = 10
"""The version of ONNX's format since which nodes have metadata."""


def annotated_model(package: Package, facts: Facts) -> bytes:
    """The file. Engines ignore metadata; it is a copy because `model.onnx` is what was deployed, byte for byte."""
    model = onnx.ModelProto()
    model.CopyFrom(package.model)
    model.ir_version = max(model.ir_version, _METADATA_OF_NODES)
    by_output = {node.outputs[0]: node for node in facts.nodes}
    for proto in model.graph.node:
        node = by_output.get(proto.output[0])
        said = {} if node is None else _of_node(node, facts)
        for key, value in said.items():
            proto.metadata_props.add(key=f"detent.{key}", value=value)
    content: bytes = model.SerializeToString()
    return content


def _of_node(node: Node, facts: Facts) -> dict[str, str]:
    found = {
        "bits": width_text(node),
        "runs": node.runs or "",
        "reason": node.why or node.planned,
        "sqnr": decibels(node.sqnr, ""),
        "alone": decibels(node.alone, ""),
        "lsb": "" if node.lsb is None else f"{node.lsb:.3g}",
    }
    for name in node.tensors:
        held = facts.tensors.get(name)
        if held is not None:
            low, high = held.scale
            found[f"scale.{name}"] = f"{low:.6g}" if held.channels == 1 else f"{low:.4g} to {high:.4g}"
    return {key: value for key, value in found.items() if value}
