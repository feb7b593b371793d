"""Replaces in-place operations of a traced graph by out-of-place ones.

`y.add_(z)` changes `y` for all later readers. A quantizer between `y` and the operation would give it another tensor to
change, a quantizer for another reader keeps `y` for the backward pass, and a deployed graph has no memory to change. So
the operation becomes its out-of-place counterpart, and later readers of `y` read its result. If nothing else reads `y`,
the in-place operation saves memory and is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from detent.errors import CaptureError
from detent.graph.capture.item_assignment import becomes
from detent.graph.torch_ops import is_known_module, kind_of

__all__ = ["CONSTANT", "is_in_place", "write_out_of_place"]

CONSTANT = "_tensor_constant"  # how torch.fx begins the name of a tensor that forward makes


def write_out_of_place(graph: fx.Graph, root: nn.Module, *, owns_inputs: bool) -> set[str]:
    """Rewrite `graph`, in place, and return the modules that must not modify their input. Refused if the modified
    tensor is read later through another view of it, or by a caller (unless `owns_inputs`)."""
    modules = dict(root.named_modules())
    _join_constants(graph)
    place = {node: index for index, node in enumerate(graph.nodes)}
    found: set[str] = set()
    for node in list(graph.nodes):
        changed = node.args[0] if node.args else node.kwargs.get("input")
        if not isinstance(changed, fx.Node) or not is_in_place(node, modules):
            continue
        if _is_state(changed) and node.target is not becomes:
            continue  # changing it is the purpose
        aliases = _aliases(changed, modules, besides=node)
        for alias in (one for one in aliases if place[one] < place[node]):  # later ones are views of the result
            read_later = alias is not changed and any(place[reader] > place[node] for reader in alias.users)
            is_kept = _is_state(alias) or (alias.op == "placeholder" and not owns_inputs)
            if read_later or is_kept:
                raise CaptureError("trace", f"{node.name} changes {alias.name} in place, which is read elsewhere", "")
        if node.target is becomes:
            _replace_behind(node, changed, node.args[1], place)
            graph.erase_node(node)
            continue
        is_private = len(aliases) == len(changed.users) == 1 and changed.op not in ("placeholder", "get_attr")
        if is_private and kind_of(node, modules) is not None:
            continue
        if node.op == "call_module":
            found.add(str(node.target))
        else:
            _rewrite(node)
        _replace_behind(node, changed, node, place)
    return found


def _is_state(node: fx.Node) -> bool:
    """Whether the model keeps the tensor, instead of creating it in forward."""
    return node.op == "get_attr" and not str(node.target).startswith(CONSTANT)


def _join_constants(graph: fx.Graph) -> None:
    """One node for each tensor that forward makes: torch.fx has one for each reader, and changing it changes all."""
    first: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr" and not _is_state(node):
            held = first.setdefault(str(node.target), node)
            if held is not node:
                node.replace_all_uses_with(held)
                graph.erase_node(node)


def _replace_behind(node: fx.Node, old: fx.Node, new: Any, place: Mapping[fx.Node, int]) -> None:
    for reader in [user for user in old.users if place[user] > place[node]]:
        reader.replace_input_with(old, new)


def is_in_place(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a node changes its input."""
    if node.op == "call_module":
        module = modules.get(str(node.target))
        return module is not None and is_known_module(module) and bool(getattr(module, "inplace", False))
    if node.op == "call_function":
        return node.target is becomes or _function_counterpart(node.target) is not None or _asks_for_it(node)
    return node.op == "call_method" and _method_counterpart(str(node.target)) is not None


def _rewrite(node: fx.Node) -> None:
    if node.op == "call_method":
        node.target = str(_method_counterpart(str(node.target)))
    elif _asks_for_it(node):
        bound = _bound(node)
        assert bound is not None
        bound.arguments["inplace"] = False
        node.args, node.kwargs = bound.args, bound.kwargs
    else:
        node.target = _function_counterpart(node.target)


def _method_counterpart(name: str) -> str | None:
    plain = name.removesuffix("_")
    is_change = name.endswith("_") and not name.endswith("__")
    return plain if is_change and callable(getattr(Tensor, plain, None)) else None


def _function_counterpart(function: Any) -> Any:
    """`torch.relu` for `torch.relu_`; None for a function that changes nothing, or that is nothing but a change."""
    name = getattr(function, "__name__", "")
    if not name.endswith("_") or name.endswith("__"):
        return None
    owner = next((owner for owner in (torch, F) if getattr(owner, name, None) is function), None)
    return getattr(owner, name.removesuffix("_"), None) if owner is not None else None


def _asks_for_it(node: fx.Node) -> bool:
    """Matches `F.relu(x, inplace=True)`."""
    bound = _bound(node)
    return bound is not None and bound.arguments.get("inplace") is True


def _bound(node: fx.Node) -> inspect.BoundArguments | None:
    target = node.target
    if isinstance(target, str) or getattr(F, getattr(target, "__name__", ""), None) is not target:
        return None
    try:
        return inspect.signature(target).bind(*node.args, **node.kwargs)
    except (TypeError, ValueError):  # a function of C++, which has no such argument
        return None


def _aliases(node: fx.Node, modules: Mapping[str, nn.Module], *, besides: fx.Node) -> set[fx.Node]:
    """The nodes that may lie in the same memory: what it is a view of, and the views of it and of that."""
    found, before = {node}, node
    waiting = [node]
    while _is_view(before, modules) and before.all_input_nodes:
        before = before.all_input_nodes[0]
        found.add(before)
        if not _splits(before):  # the other parts of a split share its memory
            waiting.append(before)
    while waiting:
        views = [user for user in waiting.pop().users if _is_view(user, modules) and user not in (*found, besides)]
        found.update(views)
        waiting += views
    return found


def _splits(node: fx.Node) -> bool:
    return _called(node) in ("chunk", "split", "unbind", "tensor_split")


def _called(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_view(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether the output of a node may share memory with its input."""
    if node.op in ("call_function", "call_method") and _called(node) == "clone":
        return False
    kind = kind_of(node, modules) if node.op != "get_attr" else None
    return kind is not None and kind.aliases
