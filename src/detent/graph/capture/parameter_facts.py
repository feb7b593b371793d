"""Attributes of parameters that a model reads: `x.to(self.conv.weight.dtype)`, `self.conv.weight.size(0)`.

A weight that is quantized is computed each time it is read, and nothing but its own layer may read it. Its type and
sizes are constants, and its device is that of the inputs.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn

__all__ = ["read_facts"]

_METHODS = ("dim", "numel", "size")


def read_facts(graph: fx.Graph, module: nn.Module, is_tensor: Callable[[fx.Node], bool]) -> None:
    """Replace such reads by constants. `is_tensor` tells whether an input of the graph is a tensor."""
    near = next((node for node in graph.find_nodes(op="placeholder") if is_tensor(node)), None)
    for node in list(graph.nodes):
        read = node.args[0] if node.target is getattr or node.op == "call_method" else None
        if not isinstance(read, fx.Node) or read.op != "get_attr":
            continue
        held = operator.attrgetter(str(read.target))(module)
        value = _fact(held, node) if isinstance(held, Tensor) else None
        if value is None:
            continue
        if near is not None and node.args[1:] == ("device",):
            node.args = (near, "device")
        else:
            _replace(node, value)


def _fact(held: Tensor, node: fx.Node) -> Any:
    """None if it depends on the values of the parameter."""
    if node.op == "call_method":
        is_fact = node.target in _METHODS and not node.all_input_nodes[1:]
        return getattr(held, str(node.target))(*node.args[1:], **node.kwargs) if is_fact else None
    name = str(node.args[1])
    value = getattr(held, name) if inspect.isdatadescriptor(getattr(Tensor, name, None)) else None
    return None if isinstance(value, Tensor) else value


def _replace(node: fx.Node, value: Any) -> None:
    def replaced(one: fx.Node) -> Any:
        return value if one is node else one

    for user in list(node.users):
        user.args, user.kwargs = fx.map_arg(user.args, replaced), fx.map_arg(user.kwargs, replaced)
    node.graph.erase_node(node)
