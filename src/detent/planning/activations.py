"""Plans the activations of one graph."""

from __future__ import annotations

from itertools import pairwise

from torch import fx

from detent.errors import SchemeError
from detent.graph import REORDERING, FloatTensor, PlanEntry, QuantizedTensor
from detent.planning.backend import FUSED, chains
from detent.planning.context import Context
from detent.planning.methods import Method, choose, fixed_range
from detent.planning.signs import never_negative
from detent.planning.supported_schemes import SupportedSchemes
from detent.recipes import TensorRequest

__all__ = ["Activations"]

_FUSED_PAIRS = {pair for chain in (*FUSED, *chains(("add", "sub", "mul"))) for pair in pairwise(chain)}


_WIDE = 16


class Activations:
    """The decision for each activation; tensors that share a scale share a method."""

    def __init__(self, context: Context):
        self._context = context
        self._never_negative = never_negative(context.view)
        self._groups: dict[fx.Node, list[fx.Node]] = {}
        for node, root in context.placement.roots.items():
            self._groups.setdefault(root, []).append(node)
        self._methods: dict[fx.Node, Method] = {}

    def entry(self, node: fx.Node) -> PlanEntry:
        """The Plan's entry for a tensor."""
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

    def measured(self, node: fx.Node) -> QuantizedTensor | None:
        """How a float tensor is measured for targets that quantize it: plainly, as nothing will train its scale.

        What is only put in another order has the range that it had, and what nearly every target fuses needs none.
        """
        view, placement = self._context.view, self._context.placement
        takers = view.takers(node)
        ordered = view.is_kind(node, *REORDERING) and all(map(view.is_tensor, view.data_inputs(node)))
        fused = len(takers) == 1 and (view.kind(node), view.kind(takers[0])) in _FUSED_PAIRS
        if placement.is_quantized(node) or not placement.can_hold(node) or ordered or fused:
            return None
        layers = [taker for taker in takers if taker in view.kinds] or [view.chain(node)[0]]
        supported = self._supported([node])
        request = self._context.requests.widest(layers, supported.bits[0])
        if request.quantize is False:
            return None
        try:
            method = self._chosen(supported, request.replace(quantizer=None, quantizer_options={}), [node])
        except SchemeError:  # asked for quantized tensors, which this is not
            return None
        return method.entry(tensor=view.tensor(node), view=view, node=node, role="activation", why="measured only")

    def _method(self, root: fx.Node) -> Method:
        view, backend, placement = self._context.view, self._context.backend, self._context.placement
        members = self._groups[root]
        own = [member for member in members if not placement.is_carried(member)]
        # The operations that read the tensors; if there are none, those that produce them.
        askers = [asker for member in members for asker in placement.askers(member) if asker not in members]
        supported = self._supported(own)
        if self._is_second_factor(members, askers):
            supported = supported.preferring(backend.factor_bits)
        request = self._context.requests.widest(askers or [view.chain(node)[0] for node in own], supported.bits[0])
        wide = request.bits == _WIDE and bool(backend.wide_ranges)
        ranges = {(backend.wide_ranges if wide else backend.ranges).get(view.kind(member)) for member in own}
        if len(ranges) == 1 and (fixed := ranges.pop()):
            return fixed_range(backend.activation, *fixed, bits=_WIDE if wide else None)
        return self._chosen(supported, request, members)

    def _is_second_factor(self, members: list[fx.Node], askers: list[fx.Node]) -> bool:
        """Whether the tensors are the second factor of a product of two activations, which may saturate."""
        view, context = self._context.view, self._context
        if not context.any_cpu or context.backend.factor_bits is None or self._never_negative.issuperset(members):
            return False
        return any(view.is_kind(asker, "matmul") and view.data_inputs(asker)[-1] in members for asker in askers)

    def _supported(self, own: list[fx.Node]) -> SupportedSchemes:
        backend = self._context.backend
        is_input = len(own) == 1 and own[0].op == "placeholder" and not self._context.view.path
        return (backend.network_input if is_input else None) or backend.activation

    def _chosen(self, supported: SupportedSchemes, request: TensorRequest, members: list[fx.Node]) -> Method:
        return choose(
            supported,
            request,
            backend=self._context.backend.name,
            tensor=self._context.view.tensor(members[0]),
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
        if askers and view.is_kind(askers[0], "opaque"):
            return f"input of {view.described(askers[0])}"
        return f"input of {view.kind(askers[0])}" if askers else f"output of {view.kind(node)}"
