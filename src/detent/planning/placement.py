"""Decides where a target quantizes: which tensors of a graph, for which of their users, and which share a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import fx

from detent.errors import RecipeError
from detent.graph import KINDS, PASSING, WHY_FLOAT
from detent.planning.backend import VANISHES, Backend
from detent.planning.divisors import divisors
from detent.planning.logarithms import logarithms
from detent.planning.masks import masks
from detent.planning.sizes import sizes
from detent.planning.view import GraphView
from detent.recipes import Recipe
from detent.traversal import reachable

__all__ = ["ChooseActivations", "QuantizerPlacement"]

ChooseActivations = Callable[[fx.GraphModule, list[fx.Node]], Iterable[fx.Node]]
"""Of a graph, and the nodes whose tensors the backend's rules quantize: those whose tensors are quantized instead."""


def why_fused(backend: Backend, view: GraphView, user: fx.Node) -> str:
    """Why a tensor that is fused into `user` is float."""
    return f"{backend.name} fuses it into {view.layer(user)}"


class QuantizerPlacement:
    """Decides in three passes over the graph.

    1. Every operation with a rule requests its inputs to be quantized, and its output, as the rule says.
    2. Backward: an operation that keeps the scale of its input passes the requests of its output's users on.
    3. Forward: such an operation with a quantized input has its output on the same grid.
    """

    def __init__(
        self,
        view: GraphView,
        backend: Backend,
        recipe: Recipe,
        scope: set[fx.Node],
        choose: ChooseActivations | None = None,
    ):
        self._view, self._backend, self._recipe, self._scope = view, backend, recipe, scope
        self._precise, given = logarithms(view)
        self._apart = {
            **divisors(view),
            **self._precise,
            **masks(view),
            **sizes(view),
        }  # operations that run in float, and why
        self._real = {**given, **self._apart}  # tensors that no grid may hold, and why
        self._float_ops: dict[fx.Node, str | None] = {}
        self._asked: dict[fx.Node, dict[fx.Node, None]] = {}  # by whom; a dict, for its order
        self._given: set[fx.Node] = set()
        self._carried: set[fx.Node] = set()
        # What is moved in float and then put on a grid, and what is carried from there: it has a quantizer of its own,
        # for a tensor that shares one and only moves numbers is taken to be on that grid already.
        self._moved: set[fx.Node] = set()
        self._notes: dict[fx.Node, str] = dict(self._real)
        for node in view.graph.nodes:
            self._ask(node)
        for node in reversed(view.graph.nodes):
            self._hand_on(node)
        for node in view.graph.nodes:
            self._carry(node)
        if choose is not None:
            self._take(choose)
        self.roots = self._with_one_scale()

    # ---- answers ----

    def is_quantized(self, node: fx.Node) -> bool:
        return node in self._asked or node in self._given or node in self._carried

    def is_carried(self, node: fx.Node) -> bool:
        """Whether the tensor stays on the grid of its input."""
        return node in self._carried

    def on_grid(self, source: fx.Node, user: fx.Node) -> bool:
        """Whether `user` reads `source` quantized."""
        return source in self._carried or source in self._given or user in self._asked.get(source, ())

    def askers(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The operations that request a tensor to be quantized, those that do more than pass it on first."""
        asked = self._asked.get(node, {})
        return tuple(sorted(asked, key=self._keeps_scale))

    def users(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The users that read the quantized value; empty if all do."""
        all_of_them = node in self._given or node in self._carried or self._all_ask(node)
        return () if all_of_them else tuple(self._asked[node])

    def in_scope(self, node: fx.Node) -> bool:
        """Whether the stubs allow it to be quantized."""
        return node in self._scope

    def runs(self, node: fx.Node) -> bool:
        """Whether the target runs this operation on integers."""
        return self._why_not(node) is None

    def why_precise(self, node: fx.Node) -> str | None:
        """Why the weights of an operation stay float; None if they may be quantized."""
        return self._precise.get(node)

    def can_hold(self, node: fx.Node) -> bool:
        """Whether the output of a node can be quantized on some target."""
        is_value = self._view.is_tensor(node) or self._keeps_scale(node)
        return is_value and node in self._scope and node not in self._real

    def reason(self, node: fx.Node) -> str:
        """Why a tensor is float; after data movement, the reason of its readers."""
        while True:
            if node in self._notes:
                return self._notes[node]
            if node not in self._scope:
                return "outside of the stubs"
            if node.op != "placeholder" and node not in self._view.kinds:
                return self._unknown(node)
            users = [user for user in self._view.takers(node) if user.op != "output"]
            if not users:
                return self._why_not_given(node) if node.users else "nothing uses it"
            weighs = [user for user in users if self._is_weight_of(node, user)]
            if weighs:
                return self._why_not_held(weighs[0])
            if not self._keeps_scale(users[0]) or self.is_quantized(users[0]):
                return self._why_not_for(users[0])
            node = users[0]

    # ---- the three passes ----

    def _ask(self, node: fx.Node) -> None:
        chain = self._view.chain(node)
        if not self.runs(chain[0]):
            return
        rule = self._backend.rules.get(self._view.kind(node))
        if rule is not None and rule.inputs:
            before = chain[chain.index(node) - 1] if node is not chain[0] else None
            for source in self._view.data_inputs(node):
                if source is not before:
                    self._want(source, node)
        if node is chain[-1]:
            self._give(node)

    def _want(self, source: fx.Node, user: fx.Node) -> None:
        if self._is_fused_edge(source, user):
            self._notes[source] = why_fused(self._backend, self._view, user)
        elif self.can_hold(source):
            self._asked.setdefault(source, {})[user] = None

    def _give(self, node: fx.Node) -> None:
        rule = self._backend.rules[self._view.kind(self._view.chain(node)[0])]
        if self._is_fused(node):
            return
        if rule.output and self._only_leaves(node) and not self._leaves_on_grid(node):
            self._notes[node] = "network outputs stay float"
        elif rule.output and self.can_hold(node):
            self._given.add(node)

    def _hand_on(self, node: fx.Node) -> None:
        if not self._keeps_scale(node) or not self._all_ask(node):
            return
        sources = self._view.data_inputs(node)
        if all(self.can_hold(source) for source in sources):
            for source in sources:
                self._asked.setdefault(source, {})[node] = None

    def _carry(self, node: fx.Node) -> None:
        sources = self._view.data_inputs(node)
        own_quantizers = [source for source in sources if source in self._moved]
        # Several inputs need one quantizer, which a tensor moved in float cannot share.
        can = self._keeps_scale(node) and (len(sources) == 1 or not own_quantizers)
        if can and sources and all(self.on_grid(source, node) for source in sources):
            self._carried.add(node)
            self._moved.update([node] if own_quantizers else [])
            return
        kind = KINDS.get(self._view.kind(node))
        if kind is not None and kind.moves:
            self._moved.add(node)
        if not self._view.is_tensor(node):
            self._asked.pop(node, None)  # a tuple holds no quantizer: each of its parts does

    def _take(self, choose: ChooseActivations) -> None:
        """Quantize the tensors that a user selects, and with them those that stay on their grids."""
        nodes = [node for node in self._view.graph.nodes if self.is_quantized(node) and node not in self._carried]
        runner = next(one for one in self._view.region.runners.values() if one.graph is self._view.graph)
        chosen = dict.fromkeys(choose(runner, nodes))
        for node in chosen:
            if node.op == "output" or not self._view.is_tensor(node):
                raise RecipeError(f"quantize what {node} gives", "it is not a tensor of real numbers", "leave it out")
            if self._view.is_inside(node):
                self._view.break_chain(node)
        self._notes.update({node: "the backend's own rule leaves it out" for node in nodes if node not in chosen})
        asked = self._asked
        self._asked = {node: users for node, users in asked.items() if node in chosen}
        self._given = {node for node in chosen if node in self._given or node not in self._asked}
        self._carried.clear()
        self._moved.clear()
        for node in self._view.graph.nodes:
            self._carry(node)
        self._asked.update({node: asked[node] for node in self._carried if node in asked})

    # ---- one scale for several tensors ----

    def _with_one_scale(self) -> dict[fx.Node, fx.Node]:
        """Maps each quantized tensor to the first of those that it shares a scale with."""
        order: dict[fx.Node, int] = {node: place for place, node in enumerate(self._view.graph.nodes)}
        parent = {node: node for node in order if self.is_quantized(node)}

        def root(node: fx.Node) -> fx.Node:
            while parent[node] is not node:
                node = parent[node]
            return node

        for node in order:
            united = [source for source in self._view.data_inputs(node) if self.on_grid(source, node)]
            if node in self._carried:
                united.append(node)
            elif self._view.is_kind(node, *self._backend.common_qparams) and self.runs(node):
                united = [source for source in united if source not in self._moved]
            else:
                continue
            for other in united[1:]:
                ends = root(united[0]), root(other)
                parent[max(ends, key=order.__getitem__)] = min(ends, key=order.__getitem__)
        return {node: root(node) for node in parent}

    # ---- questions of the passes ----

    def _keeps_scale(self, node: fx.Node) -> bool:
        alone = self._view.chain(node) == (node,)  # a fused activation has the scale that its operation is given
        return alone and self._view.is_kind(node, *VANISHES, *self._backend.passthrough)

    def _all_ask(self, node: fx.Node) -> bool:
        asked = self._asked.get(node, {})
        return bool(asked) and all(user in asked for user in self._view.takers(node))

    def _only_leaves(self, node: fx.Node) -> bool:
        """Whether a tensor is an output of the network without another reader."""

        def is_end(user: fx.Node) -> bool:
            return user.op == "output" or self._view.is_kind(user, "dequant_stub")

        behind = reachable(self._view.takers(node), lambda one: () if is_end(one) else self._view.takers(one))
        return all(is_end(user) or self._keeps_scale(user) for user in behind)

    def _leaves_on_grid(self, node: fx.Node) -> bool:
        """Whether an output of the network is quantized."""
        return self._backend.quantize_outputs and not self._view.is_kind(node, *self._backend.float_outputs)

    def _is_fused(self, node: fx.Node) -> bool:
        """Whether the target fuses a node into its user."""
        users = self._view.takers(node)
        while len(users) == 1 and self._view.is_kind(users[0], *PASSING):
            node = users[0]
            users = self._view.takers(node)
        return any(self._is_fused_edge(node, user) for user in users)

    def _is_fused_edge(self, source: fx.Node, user: fx.Node) -> bool:
        """Whether the target fuses `source` into `user`: of several such inputs, only the first."""
        return source is next((s for s in self._view.data_inputs(user) if self._fuses(s, user)), None)

    def _fuses(self, source: fx.Node, user: fx.Node) -> bool:
        while self._view.is_kind(source, *PASSING) and len(self._view.takers(source)) == 1:
            before = self._view.data_inputs(source)
            if len(before) != 1:
                return False
            source = before[0]
        if len(self._view.takers(source)) != 1:
            return False
        chain = self._view.chain(source)
        kinds = [self._view.kind(node) for node in chain[: chain.index(source) + 1]]
        edge = (*(kind for kind in kinds if kind != "batchnorm"), self._view.kind(user))
        return edge in self._backend.unquantized_edges and self.runs(chain[0]) and self.runs(self._view.chain(user)[0])

    def _is_weight_of(self, node: fx.Node, user: fx.Node) -> bool:
        known = user in self._view.kinds
        return known and not self._view.holds_weight(user) and node not in self._view.data_inputs(user)

    def _why_not(self, node: fx.Node) -> str | None:
        """Why an operation runs in float; None if it does not."""
        if node not in self._float_ops:
            self._float_ops[node] = self._find_why_not(node)
        return self._float_ops[node]

    def _find_why_not(self, node: fx.Node) -> str | None:
        kind = self._view.kinds.get(node)
        if kind is None or node not in self._scope:
            return "outside of the stubs" if kind is not None else self._unknown(node)
        if node in self._apart:
            return self._apart[node]
        if kind.name not in self._backend.rules:
            return f"{self._backend.name} does not quantize what {kind.name} takes in"
        if not self._view.holds_weight(node):
            return self._why_not_held(node)
        axes = self._view.conv_axes(node)
        if axes is not None and axes not in self._backend.conv_axes:
            return f"{self._backend.name} has no integer convolution over {axes} axes"
        return self._why_not_asked(self._view.layer(node), kind.name)

    def _why_not_held(self, node: fx.Node) -> str:
        return str(node.meta.get(WHY_FLOAT, f"the weight of {self._view.layer(node)} is in no module"))

    def _why_not_asked(self, layer: str, kind: str) -> str | None:
        if self._recipe.for_tensor("activation", layer, kind).quantize:
            return None
        excluded = not self._recipe.for_tensor("weight", layer, kind).quantize
        return f"the recipe excludes {layer}" if excluded else f"the recipe keeps what {layer} takes in float"

    def _why_not_for(self, user: fx.Node) -> str:
        """Why a user does not request a tensor."""
        if self._keeps_scale(user):
            return f"quantized after {self._view.layer(user)}"
        own = f"{self._backend.name} does not quantize what {self._view.kind(user)} takes in"
        return self._why_not(self._view.chain(user)[0]) or own

    def _why_not_given(self, node: fx.Node) -> str:
        """Why a tensor that is only an output of the network is float."""
        if not self._backend.quantize_outputs or node.op == "placeholder":
            return "network outputs stay float"
        own = f"{self._backend.name} does not quantize what {self._view.kind(node)} gives"
        return self._why_not(self._view.chain(node)[0]) or own

    def _unknown(self, node: fx.Node) -> str:
        if node.op == "call_module" and self._view.layer(node) in self._view.graph_breaks:
            return f"{self._view.layer(node)} stays Python"
        return f"{self._view.described(node)} is not an operation Detent knows"
