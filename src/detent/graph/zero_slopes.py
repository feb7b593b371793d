"""Finds tensors whose gradient may be infinite where they are rounded to 0: the inputs of roots and divisors.

The float network never computes 1 / 0 there, so that its gradients are finite; the quantized one may.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx, nn

from detent.graph.torch_ops import called_module
from detent.quantizers import Quantizer

__all__ = ["guard_zero_slopes"]

_STEEP = frozenset(
    (
        "div", "divide", "log", "log10", "log2", "norm", "pow", "power", "reciprocal", "rsqrt", "sqrt", "true_divide",
        "truediv",
    )
)  # fmt: skip
"""Functions, by name, with an infinite slope at 0; of a quotient that is the second operand."""


def guard_zero_slopes(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
    """Mark the quantizers before such functions, up to the next quantizers."""
    for node in graph.nodes:
        quantizer = called_module(node, modules)
        if isinstance(quantizer, Quantizer) and _feeds_steep(node, modules):
            quantizer.guards_zero = True


def _feeds_steep(start: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    found = dict.fromkeys(start.users)
    waiting = list(found)
    for node in waiting:
        module = called_module(node, modules)
        if isinstance(module, Quantizer):
            continue
        if _name(node, module) in _STEEP:
            return True
        waiting += [user for user in node.users if user not in found]
        found.update(dict.fromkeys(node.users))
    return False


def _name(node: fx.Node, module: nn.Module | None) -> str:
    if node.op == "call_method":
        return str(node.target)
    function = getattr(module, "function", None) if node.op == "call_module" else node.target
    return str(getattr(function, "__name__", ""))
