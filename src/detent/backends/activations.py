"""The tensors between the operations of one graph in the Plan."""

from __future__ import annotations

from torch import fx

from detent.backends.context import Context
from detent.backends.methods import Method, choose, fixed_range
from detent.backends.signs import never_negative
from detent.graph import FloatTensor, QuantizedTensor

__all__ = ["Activations"]


class Activations:
    """What is decided for each tensor; those that share a scale have one method."""

    def __init__(self, context: Context):
        self._context = context
        self._never_negative = never_negative(context.view)
        self._groups: dict[fx.Node, list[fx.Node]] = {}
        for node, root in context.placement.roots.items():
            self._groups.setdefault(root, []).append(node)
        self._methods: dict[fx.Node, Method] = {}

    def entry(self, node: fx.Node) -> QuantizedTensor | FloatTensor:
        """A tensor of the Plan."""
        view, placement = self._context.view, self._context.placement
        if not placement.is_quantized(node):
            return FloatTensor(tensor=view.tensor(node), kind=view.kind(node), reason=placement.reason(node))
        root = placement.roots[node]
        if root not in self._methods:
            self._methods[root] = self._method(root)
        return self._methods[root].entry(
            tensor=view.tensor(node),
            view=view,
            node=node,
            role="activation",
            why=self._why(node, root),
            users=tuple(user.name for user in placement.users(node)),
            shares=None if root is node else view.tensor(root),
        )

    def _method(self, root: fx.Node) -> Method:
        view, backend, placement = self._context.view, self._context.backend, self._context.placement
        members = self._groups[root]
        own = [member for member in members if not placement.is_carried(member)]
        ranges = {backend.ranges.get(view.kind(member)) for member in own}
        offer = backend.activation
        if len(ranges) == 1 and (fixed := ranges.pop()):
            return fixed_range(offer, *fixed)
        if own == [root] and root.op == "placeholder" and not view.path:
            offer = backend.network_input or offer
        # The operations that take the tensors in; where there are none, those that give them.
        askers = [asker for member in members for asker in placement.askers(member) if asker not in members]
        return choose(
            offer,
            self._context.requests.widest(askers or [view.chain(node)[0] for node in own], offer.bits[0]),
            backend=backend.name,
            tensor=view.tensor(root),
            role="activation",
            axis=1,
            negative=not self._never_negative.issuperset(members),
        )

    def _why(self, node: fx.Node, root: fx.Node) -> str:
        view, placement = self._context.view, self._context.placement
        if root is not node:
            kind = view.kinds.get(node)
            same = placement.is_carried(node) and kind is not None and kind.moves
            return f"{'same numbers as' if same else 'one scale with'} {view.tensor(root)}"
        askers = placement.askers(node)
        return f"input of {view.kind(askers[0])}" if askers else f"output of {view.kind(node)}"
