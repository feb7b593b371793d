"""The requests of a recipe, and of the rule for first and last layers, for the tensors of one graph."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from detent.numerics import GRIDS
from detent.planning.view import GraphView
from detent.quantizers import Role
from detent.recipes import Recipe, TensorRequest

__all__ = ["Requests"]


class Requests:
    """The request for each tensor.

    `ends` are layers that get `ends_bits` at least, unless a rule gives them others, or the recipe asks for a grid that
    comes in one width.
    """

    def __init__(self, view: GraphView, recipe: Recipe, ends_bits: int | None, ends: set[fx.Node]):
        self._view, self._recipe, self._ends_bits, self._ends = view, recipe, ends_bits, ends

    def of(self, role: Role, node: fx.Node) -> TensorRequest:
        """The request for the tensor with that role of a layer; an activation is the layer's input."""
        layer, kind = self._view.layer(node), self._view.kind(node)
        request = self._recipe.for_tensor(role, layer, kind)
        bits = self._ends_bits
        if role == "bias" or node not in self._ends or bits is None or (request.bits or 0) >= bits:
            return request
        if request.grid and GRIDS[request.grid].default_bits((bits,)) != bits:
            return request
        rule = self._recipe.rule_for(layer, kind)
        if rule is not None and rule.request(role).bits is not None:
            return request
        return TensorRequest(bits=bits).over(request)

    def widest(self, layers: Iterable[fx.Node], usual: int) -> TensorRequest:
        """The request with the most bits among the layers that read a tensor, which is stored only once."""
        return max((self.of("activation", layer) for layer in layers), key=lambda request: _bits(request, usual))


def _bits(request: TensorRequest, usual: int) -> int:
    """The requested width, or `usual` for a grid that comes in several widths."""
    return request.bits or (GRIDS[request.grid].default_bits((usual,)) if request.grid else usual)
