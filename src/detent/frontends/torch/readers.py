"""Who reads a tensor in an ONNX graph, itself or what QuantizeLinear and DequantizeLinear make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from detent.ir import CLIPPED, TRANSPOSED

__all__ = ["parameter_readers", "readers", "sources"]


def sources(nodes: Iterable[onnx.NodeProto], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """What each tensor stands for that a Q, a DQ or the Clip before a Q gives: the tensor that is quantized.

    `nodes` are in an order they can run in. `known` is what was found for nodes before them.
    """
    before = known or {}
    found: dict[str, str] = {}
    for node in nodes:
        if _is_of_grid(node):
            given = node.input[0]
            found[node.output[0]] = found.get(given) or before.get(given, given)
    return found


def readers(nodes: Sequence[onnx.NodeProto]) -> dict[str, list[str]]:
    """The names of the nodes that read each tensor, in the order of the graph."""
    same = sources(nodes)
    found: dict[str, list[str]] = {}
    for node in nodes:
        if not _is_of_grid(node):
            for held in dict.fromkeys(same.get(name, name) for name in node.input):
                found.setdefault(held, []).append(node.name)
    return found


def parameter_readers(name: str, reading: Mapping[str, list[str]]) -> list[str]:
    """Those of a tensor that may be stored: as codes, and the other way round."""
    stored = (name, f"{name}{TRANSPOSED}", f"{name}_quantized", f"{name}{TRANSPOSED}_quantized")
    return [reader for one in stored for reader in reading.get(one, ())]


def _is_of_grid(node: onnx.NodeProto) -> bool:
    clips = node.op_type == "Clip" and node.output[0].endswith(CLIPPED)
    return clips or node.op_type in ("QuantizeLinear", "DequantizeLinear")
