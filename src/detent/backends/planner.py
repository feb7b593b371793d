"""Decides: from captured graphs, a backend and a recipe to a Plan. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import fx, nn

from detent.backends.backend import Backend, Offer
from detent.errors import RecipeError, SchemeError
from detent.graph import Captured, FloatTensor, FoldedBatchNorm, Kind, Plan, QuantizedTensor, Region, fuse, kind_of
from detent.numerics import ApotGrid, Granularity, IntGrid, LogGrid, PerChannel, PerGroup, PerTensor, Scheme
from detent.numerics.grids import Grid
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS, Role
from detent.recipes import Groups, Recipe, TensorRequest

__all__ = ["plan"]

_GRIDS: dict[str, type[Grid]] = {"int": IntGrid, "log": LogGrid, "apot": ApotGrid}
_GRANULARITIES: dict[str, type[Granularity]] = {"per_tensor": PerTensor, "per_channel": PerChannel}


def plan(captured: Captured, backend: Backend, recipe: Recipe) -> Plan:
    """What of a captured model is quantized on `backend` under `recipe`, how, and why the rest is not.

    Everything that cannot work is refused here, before a model is touched: a rule that matches nothing, a scheme
    the backend does not have, a method that has no meaning for it.
    """
    scoped = any(
        _kind_name(node, region) == "quant_stub" for region, graph in _graphs(captured) for node in graph.nodes
    )
    entries: dict[str, QuantizedTensor | FloatTensor] = {}
    layers: dict[str, str] = {}
    for path, region in captured.regions.items():
        for graph in region.graphs.values():
            planner = _GraphPlanner(path, region, graph, backend, recipe, scoped=scoped)
            for entry in planner.entries():
                entries[entry.tensor] = _merge(entries.get(entry.tensor), entry)
            layers.update(planner.layers)
    _refuse_unmatched(recipe, layers)
    found = tuple(entries.values())
    if not any(isinstance(entry, QuantizedTensor) for entry in found):
        reasons = sorted({entry.reason for entry in found if isinstance(entry, FloatTensor)})
        raise RecipeError(
            f"quantize a model for {backend.name!r} with recipe {recipe.name!r}",
            f"nothing in it would be quantized: {'; '.join(reasons[:4]) or 'it has no operations'}",
            "exclude less, or choose a backend with rules for its operations",
        )
    notes = tuple(f"{name or 'the model'} stays Python: {why}" for name, why in captured.islands.items())
    return Plan(backend=backend.name, recipe=recipe.name, entries=_with_end_bits(found, backend, recipe), notes=notes)


def _graphs(captured: Captured) -> Iterable[tuple[Region, fx.Graph]]:
    return ((region, graph) for region in captured.regions.values() for graph in region.graphs.values())


def _kind_name(node: fx.Node, region: Region) -> str | None:
    kind = kind_of(node, dict(region.named_modules()))
    return kind.name if kind else None


def _merge(
    before: QuantizedTensor | FloatTensor | None, entry: QuantizedTensor | FloatTensor
) -> QuantizedTensor | FloatTensor:
    """The same tensor in two forward modes: quantized if either says so, for the users of both."""
    if before is None or isinstance(before, FloatTensor):
        return entry
    if isinstance(entry, FloatTensor):
        return before
    if not before.users or not entry.users:
        return replace(before, users=())
    return replace(before, users=tuple(dict.fromkeys((*before.users, *entry.users))))


def _refuse_unmatched(recipe: Recipe, layers: Mapping[str, str]) -> None:
    missed = recipe.unmatched(layers.items())
    if missed:
        raise RecipeError(
            f"recipe {recipe.name!r}", f"matches nothing in this model: {'; '.join(missed)}", "correct or remove it"
        )


def _with_end_bits(
    entries: tuple[QuantizedTensor | FloatTensor, ...], backend: Backend, recipe: Recipe
) -> tuple[QuantizedTensor | FloatTensor, ...]:
    """The first and last weighted operation, and what they take in, at the width the backend keeps for them."""
    weights = [entry for entry in entries if isinstance(entry, QuantizedTensor) and entry.role == "weight"]
    if backend.ends_bits is None or not weights:
        return entries
    ends = {weights[0].node, weights[-1].node}
    changed = []
    for entry in entries:
        at_end = isinstance(entry, QuantizedTensor) and (
            (entry.role == "weight" and entry.node in ends) or (entry.users and set(entry.users) <= ends)
        )
        if at_end and isinstance(entry, QuantizedTensor) and isinstance(entry.scheme.grid, IntGrid):
            grid = replace(entry.scheme.grid, bits=backend.ends_bits)
            entry = replace(entry, scheme=replace(entry.scheme, grid=grid), why=f"{entry.why}; first or last layer")
        changed.append(entry)
    del recipe
    return tuple(changed)


@dataclass
class _Demand:
    """Who wants a tensor on a grid."""

    users: dict[str, fx.Node]
    by_output: bool = False


class _GraphPlanner:
    """Plans one graph."""

    def __init__(self, path: str, region: Region, graph: fx.Graph, backend: Backend, recipe: Recipe, *, scoped: bool):
        self._path, self._backend, self._recipe = path, backend, recipe
        self._modules: dict[str, nn.Module] = dict(region.named_modules())
        self._graph = graph
        self._kinds: dict[fx.Node, Kind] = {}
        for node in graph.nodes:
            kind = kind_of(node, self._modules)
            if kind is not None:
                self._kinds[node] = kind
        self._chains = fuse(graph, self._modules, backend.fusions)
        self._scope = self._in_scope() if scoped else set(graph.nodes)
        self._demands: dict[fx.Node, _Demand] = {}
        self._floats: dict[fx.Node, str] = {}
        self.layers = {self._layer(node): kind.name for node, kind in self._kinds.items() if node.op != "get_attr"}

    def entries(self) -> list[QuantizedTensor | FloatTensor]:
        for node in self._graph.nodes:
            self._demand_of(node)
        found: list[QuantizedTensor | FloatTensor] = []
        for node in self._graph.nodes:
            if node.op == "output":
                continue
            found.extend(self._activation(node))
            found.extend(self._parameters(node))
        return found

    # ---- which tensors ----

    def _demand_of(self, node: fx.Node) -> None:
        kind = self._kinds.get(node)
        if kind is None or node.op == "get_attr":
            return
        chain = self._chains.get(node, (node,))
        if node is not chain[0]:
            self._demand_inputs_of_member(node, kind)
            return
        rule = self._backend.rules.get(kind.name)
        if rule is None:
            return
        if node not in self._scope or not self._wanted(node):
            return
        if rule.inputs:
            for source in self._data_inputs(node, kind):
                self._demand(source, node)
        if rule.output:
            self._demand_output(chain[-1])

    def _demand_inputs_of_member(self, node: fx.Node, kind: Kind) -> None:
        """An operation fused behind another may take in a second tensor, as the add of a residual does."""
        chain = self._chains[node]
        rule = self._backend.rules.get(kind.name)
        if rule is None or not rule.inputs or not self._wanted(chain[0]):
            return
        before = chain[chain.index(node) - 1]
        for source in self._data_inputs(node, kind):
            if source is not before:
                self._demand(source, node)

    def _demand(self, source: fx.Node, user: fx.Node) -> None:
        if not source.meta.get("is_real") or source.op == "get_attr" or source not in self._scope | self._stubs():
            return
        if source.op == "placeholder" and not self._backend.quantize_inputs:
            self._floats[source] = f"{self._backend.name} takes float inputs"
            return
        if self._is_fused_edge(source, user):
            self._floats.setdefault(source, f"{self._backend.name} fuses it into {self._layer(user)}")
            return
        kind = self._kinds.get(source)
        if kind is not None and kind.moves and kind.name in self._passes_on():
            for earlier in self._data_inputs(source, kind):
                self._demand(earlier, source)
        self._demands.setdefault(source, _Demand({})).users[user.name] = user

    def _demand_output(self, node: fx.Node) -> None:
        to_output = [user.op == "output" for user in node.users]
        if all(to_output) and not self._backend.quantize_outputs:
            self._floats[node] = "network outputs stay float"
            return
        if node.meta.get("is_real"):
            self._demands.setdefault(node, _Demand({})).by_output = True

    def _is_fused_edge(self, source: fx.Node, user: fx.Node) -> bool:
        """Whether the target fuses the producer into the user: of several such inputs, the first only."""
        kind = self._kinds.get(user)
        if kind is None:
            return False
        for candidate in self._data_inputs(user, kind):
            head = self._chains.get(candidate, (candidate,))[0]
            made_by = self._kinds.get(head)
            fused = made_by is not None and (made_by.name, kind.name) in self._backend.unquantized_edges
            if fused and len(candidate.users) == 1 and self._chains.get(candidate, (candidate,))[-1] is candidate:
                return candidate is source
        return False

    def _passes_on(self) -> tuple[str, ...]:
        return (*self._backend.shares, *(kind for kind in self._backend.aligns if kind == "concat"))

    def _data_inputs(self, node: fx.Node, kind: Kind) -> list[fx.Node]:
        """The nodes whose values the operation computes with, in order."""
        if kind.inputs == 0:
            return []
        if kind.inputs is None:
            return [source for source in node.all_input_nodes if source.meta.get("is_real")]
        given = [*node.args, *node.kwargs.values()]
        nodes = [value for value in given if isinstance(value, fx.Node) and value.meta.get("is_real")]
        return list(dict.fromkeys(nodes[: kind.inputs]))

    def _wanted(self, node: fx.Node) -> bool:
        return bool(self._recipe.for_tensor("weight", self._layer(node), self._kinds[node].name).quantize)

    # ---- how each is quantized ----

    def _activation(self, node: fx.Node) -> list[QuantizedTensor | FloatTensor]:
        demand = self._demands.get(node)
        kind = self._kinds.get(node)
        if demand is None:
            return self._kept_float(node)
        users = () if demand.by_output or len(demand.users) == len(node.users) else tuple(demand.users)
        first = next(iter(demand.users.values()), None)
        asker = first if first is not None else node
        request = self._recipe.for_tensor("activation", self._layer(asker), self._name_of_kind(asker))
        if not request.quantize:
            return [self._float(node, f"the recipe keeps what {self._layer(asker)} takes in float")]
        shares = self._shared_with(node, kind)
        why = "output of " + self._name_of_kind(node) if first is None else f"input of {self._name_of_kind(first)}"
        entry = self._entry(
            tensor=self._tensor(node),
            node=node,
            role="activation",
            offer=self._backend.activation,
            request=request,
            granularity=self._granularity(request, self._backend.activation, axis=1),
            signed=self._sign(node, request),
            why="same numbers as " + shares if shares and kind is not None and kind.moves else why,
        )
        return [replace(entry, users=users, shares=shares)]

    def _parameters(self, node: fx.Node) -> list[QuantizedTensor | FloatTensor]:
        kind = self._kinds.get(node)
        if kind is None or not kind.weight or node.op != "call_module":
            return []
        layer, module = self._layer(node), self._modules[str(node.target)]
        if next(other for other in self._graph.nodes if other.target == node.target) is not node:
            return []  # a module called twice has one weight
        rule = self._backend.rules.get(kind.name)
        name = self._tensor_of(f"{layer}.weight")
        request = self._recipe.for_tensor("weight", layer, kind.name)
        reason = None
        if rule is None or not rule.weight:
            reason = f"{self._backend.name} does not quantize {kind.name}"
        elif node not in self._scope:
            reason = "outside of the stubs"
        elif not request.quantize:
            reason = "the recipe excludes it"
        if reason:
            return [FloatTensor(tensor=name, kind=kind.name, reason=reason)]
        (axis,) = kind.weight.values()
        entries: list[QuantizedTensor | FloatTensor] = [
            self._entry(
                tensor=name,
                node=node,
                role="weight",
                offer=self._backend.weight,
                request=request,
                granularity=self._weight_granularity(request, kind.name, axis),
                signed=request.signed if isinstance(request.signed, bool) else self._backend.weight.signed[0],
                why=f"weight of {kind.name}",
            )
        ]
        has_bias = getattr(module, "bias", None) is not None or isinstance(module, FoldedBatchNorm)
        if has_bias and kind.name != "embedding":
            entries.extend(self._bias(node, kind, layer, axis))
        return entries

    def _bias(self, node: fx.Node, kind: Kind, layer: str, axis: int) -> list[QuantizedTensor | FloatTensor]:
        name = self._tensor_of(f"{layer}.bias")
        if self._backend.bias == "float":
            return [FloatTensor(tensor=name, kind=kind.name, reason=f"{self._backend.name} adds a float bias")]
        request = self._recipe.for_tensor("bias", layer, kind.name)
        if not request.quantize:
            return [FloatTensor(tensor=name, kind=kind.name, reason="the recipe keeps biases float")]
        offer = self._backend.bias_offer
        per_channel = isinstance(
            self._weight_granularity(self._recipe.for_tensor("weight", layer, kind.name), kind.name, axis), PerChannel
        )
        if self._backend.bias == "int32":
            scheme = Scheme(
                IntGrid(request.bits or offer.bits[0]), granularity=PerChannel(0) if per_channel else PerTensor()
            )
            return [
                QuantizedTensor(
                    tensor=name,
                    region=self._path,
                    node=node.name,
                    role="bias",
                    kind=kind.name,
                    scheme=scheme,
                    quantizer="derived",
                    observer="",
                    why="scale of input times weight",
                )
            ]
        return [
            self._entry(
                tensor=name,
                node=node,
                role="bias",
                offer=offer,
                request=request,
                granularity=PerTensor(),
                signed=True,
                why=f"bias of {kind.name}",
            )
        ]

    def _entry(
        self,
        *,
        tensor: str,
        node: fx.Node,
        role: Role,
        offer: Offer,
        request: TensorRequest,
        granularity: Granularity,
        signed: bool,
        why: str,
    ) -> QuantizedTensor:
        scheme = _scheme(offer, request, granularity, signed=signed)
        offer.check(self._backend.name, tensor, scheme)
        quantizer = request.quantizer or ("log" if isinstance(scheme.grid, LogGrid) else "fixed")
        method = QUANTIZERS[quantizer]
        method.requires.check(quantizer, scheme)
        if role not in method.roles:
            raise SchemeError(
                f"{quantizer!r} for {tensor!r}", f"it is a method for {' and '.join(method.roles)}", "choose another"
            )
        return QuantizedTensor(
            tensor=tensor,
            region=self._path,
            node=node.name,
            role=role,
            kind=self._name_of_kind(node),
            scheme=scheme,
            quantizer=quantizer,
            observer=_observer(request, quantizer, offer, scheme),
            quantizer_options=dict(request.quantizer_options),
            observer_options=dict(request.observer_options),
            why=why,
        )

    def _sign(self, node: fx.Node, request: TensorRequest) -> bool:
        offer = self._backend.activation
        if isinstance(request.signed, bool):
            return request.signed
        if request.signed == "auto" or offer.auto_sign:
            return not self._never_negative(node)
        return offer.signed[0]

    def _never_negative(self, node: fx.Node) -> bool:
        kind = self._kinds.get(node)
        if kind is None or kind.sign < 0:
            return False
        if kind.sign > 0:
            return True
        sources = self._data_inputs(node, kind)
        return bool(sources) and all(self._never_negative(source) for source in sources)

    def _granularity(self, request: TensorRequest, offer: Offer, axis: int) -> Granularity:
        asked = request.granularity
        wanted = _GRANULARITIES.get(asked) if isinstance(asked, str) else None
        if isinstance(asked, Groups):
            return PerGroup(-1, asked.per_group)
        wanted = wanted or offer.granularities[0]
        return PerChannel(axis) if wanted is PerChannel else PerTensor()

    def _weight_granularity(self, request: TensorRequest, kind: str, axis: int) -> Granularity:
        asked = request.granularity
        if asked is None and kind in self._backend.per_tensor_weights:
            return PerTensor()
        if isinstance(asked, Groups):
            return PerGroup(1, asked.per_group)
        return self._granularity(request, self._backend.weight, axis)

    def _shared_with(self, node: fx.Node, kind: Kind | None) -> str | None:
        if kind is None:
            return None
        if kind.name in self._backend.shares or kind.name in self._backend.aligns:
            for source in self._data_inputs(node, kind):
                if source in self._demands:
                    return self._root_of(source)
        # An input of an operation that aligns its inputs has the scale of the first of them.
        for user in node.users:
            asks = self._kinds.get(user)
            if asks is not None and asks.name in self._backend.aligns and user.name in self._demands[node].users:
                first = next((s for s in self._data_inputs(user, asks) if s in self._demands), node)
                if first is not node:
                    return self._root_of(first)
        return None

    def _root_of(self, node: fx.Node) -> str:
        kind = self._kinds.get(node)
        return self._shared_with(node, kind) or self._tensor(node)

    # ---- what stays float ----

    def _kept_float(self, node: fx.Node) -> list[QuantizedTensor | FloatTensor]:
        if not node.meta.get("is_real") or node.op == "get_attr":
            return []
        chain = self._chains.get(node)
        if chain and node is not chain[-1]:
            return []  # inside a fused operation there is no tensor
        return [self._float(node, self._floats.get(node) or self._reason(node))]

    def _reason(self, node: fx.Node) -> str:
        name = self._backend.name
        if node not in self._scope:
            return "outside of the stubs"
        if node.op != "placeholder" and node not in self._kinds:
            return f"{_described(node)} is not an operation Detent knows"
        if all(user.op == "output" for user in node.users):
            return "network outputs stay float"
        users = [user for user in node.users if user.op != "output"]
        unknown = [user for user in users if user not in self._kinds]
        if unknown:
            return f"{_described(unknown[0])} is not an operation Detent knows"
        excluded = [user for user in users if self._kinds[user].name in self._backend.rules and not self._wanted(user)]
        if excluded:
            return f"the recipe excludes {self._layer(excluded[0])}"
        return f"{name} does not quantize what {self._kinds[users[0]].name} takes in" if users else "nothing uses it"

    def _float(self, node: fx.Node, reason: str) -> FloatTensor:
        return FloatTensor(tensor=self._tensor(node), kind=self._name_of_kind(node), reason=reason)

    # ---- names and scope ----

    def _layer(self, node: fx.Node) -> str:
        return str(node.target) if node.op == "call_module" else node.name

    def _tensor(self, node: fx.Node) -> str:
        return self._tensor_of(node.name)

    def _tensor_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _name_of_kind(self, node: fx.Node) -> str:
        kind = self._kinds.get(node)
        return kind.name if kind else "input" if node.op == "placeholder" else _described(node)

    def _stubs(self) -> set[fx.Node]:
        return {node for node, kind in self._kinds.items() if kind.name == "quant_stub"}

    def _in_scope(self) -> set[fx.Node]:
        """From each quant stub on, up to the dequant stubs."""
        scope: set[fx.Node] = set()
        for node in self._graph.nodes:
            kind = self._kinds.get(node)
            if kind is not None and kind.name == "quant_stub":
                scope.add(node)
            elif kind is not None and kind.name == "dequant_stub":
                continue
            elif any(source in scope for source in node.all_input_nodes):
                scope.add(node)
        return scope


def _scheme(offer: Offer, request: TensorRequest, granularity: Granularity, *, signed: bool) -> Scheme:
    kind = _GRIDS[request.grid] if request.grid else offer.grids[0]
    bits = request.bits or offer.bits[0]
    narrow = offer.narrow[0] if request.narrow is None else request.narrow
    if kind is IntGrid:
        grid: Grid = IntGrid(bits, signed=signed, narrow=narrow and signed)
    else:
        grid = ApotGrid(bits, signed=signed) if kind is ApotGrid else LogGrid(bits)
    return Scheme(
        grid,
        symmetric=offer.symmetric[0] if request.symmetric is None else request.symmetric,
        granularity=granularity,
        scale=request.scale or offer.scales[0],
        rounding=request.rounding or offer.roundings[0],
    )


def _observer(request: TensorRequest, quantizer: str, offer: Offer, scheme: Scheme) -> str:
    """What was asked; else the method's own, where it suits the scheme; else the target's."""
    if request.observer:
        OBSERVERS[request.observer].requires.check(request.observer, scheme)
        return request.observer
    own = QUANTIZERS[quantizer].default_observer
    choices = [own, offer.observer, "minmax"] if quantizer != "fixed" else [offer.observer, "minmax"]
    for name in choices:
        try:
            OBSERVERS[name].requires.check(name, scheme)
        except SchemeError:
            continue
        return name
    raise SchemeError(f"an observer for {scheme}", f"none of {', '.join(choices)} takes it", "name one in the recipe")


def _described(node: fx.Node) -> str:
    target: Any = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return f"{node.op.removeprefix('call_')} {name}"
