"""Where each operation runs in a program that ExecuTorch lowered."""

from __future__ import annotations

import re
from typing import Any

from detent.ir import Network
from detent.targets.executorch.partition import is_dequantize, is_quantize

__all__ = ["Reading", "operation_of", "places", "reading_of"]

Reading = tuple[int, int]
"""Which operation, and which of its inputs."""

_MERGED = "IS_IMPLICIT_Q_DQ_TAG"
"""Marks a Q or DQ that the delegate made part of a kernel on integers; others are kernels themselves."""

_PATH = re.compile(r"(?:^|\.)operations\.(\d+)(?:\.readings\.(\d+))?$")


def operation_of(node: Any) -> int | None:
    """Which operation a node is of: the number in the path of its module."""
    found = _path(node)
    return None if found is None else int(found[1])


def reading_of(node: Any) -> Reading | None:
    """Which input of which operation a node is."""
    found = _path(node)
    return None if found is None or found[2] is None else (int(found[1]), int(found[2]))


def _path(node: Any) -> re.Match[str] | None:
    for path, _ in reversed(list(node.meta.get("nn_module_stack", {}).values())):
        found = _PATH.search(path)
        if found is not None:
            return found
    return None


def places(graph: Network, linear: Network, program: Any) -> dict[str, tuple[str, str]]:
    """For each operation of `graph`, by its ONNX name: type, and where it runs: "integer", "folded" or "float ...".

    Operations of `linear`, which was lowered, that left no node behind count with the next one.
    """
    found: dict[str, str] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and "executorch_call_delegate" in str(node.target):
            inside = list(getattr(program.graph_module, node.args[0].target).original_module.graph.nodes)
            behind, before = _meeting_codes(inside), _meeting_codes(inside[::-1])
            for inner in inside:
                on_codes = (inner in behind and inner in before) or _reads_rounded_tokens(inner)
                _note(found, linear, inner, "integer" if on_codes else "float in the delegate")
        else:
            _note(found, linear, node, "float outside of the delegate")
    ran = {op.name: found.get(op.outputs[0], "folded") for op in linear.ops}
    return {op.name: (op.type, ran.get(op.name, "folded")) for op in graph.ops}


def _note(found: dict[str, str], graph: Network, node: Any, place: str) -> None:
    index = operation_of(node)
    if index is None or node.op != "call_function" or _is_conversion(node):
        return
    tensor = graph.ops[index].outputs[0]
    if found.get(tensor, "integer") == "integer":
        found[tensor] = place


def _reads_rounded_tokens(node: Any) -> bool:
    return any(is_dequantize(source) and _is_of_tokens(source) for source in node.all_input_nodes)


def _is_of_tokens(node: Any) -> bool:
    """Whether it is a conversion on a grid that is chosen while the program runs: only one layer reads its codes."""
    return "quantize_per_token" in str(node.target)


def _is_conversion(node: Any) -> bool:
    return is_quantize(node) or is_dequantize(node)


def _meeting_codes(nodes: list[Any]) -> set[Any]:
    """The nodes of a delegate from which every way ends at a Q or DQ that is part of a kernel: the ways back if `nodes`
    are in their order, the ways on if that is reversed."""
    found: set[Any] = set()
    seen: set[Any] = set()
    for node in nodes:
        nexts = [each for each in (*node.all_input_nodes, *node.users) if each in seen]
        if _is_conversion(node):
            meets = bool(node.meta.get(_MERGED, False)) and not _is_of_tokens(node)
        elif node.op == "placeholder":
            meets = _is_constant(node)
        else:
            meets = node.op == "call_function" and found.issuperset(nexts)
        seen.add(node)
        found.update([node] if meets else [])
    return found


def _is_constant(node: Any) -> bool:
    return str(node.target).startswith(("b_", "p_", "c_", "_lifted"))
