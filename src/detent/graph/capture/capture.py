"""Captures any `nn.Module` as fx graphs: what cannot be traced becomes a graph break.

Where symbolic tracing cannot go on, torch.export is tried (`exporting`), and then a recording of what runs
(`replaying`). A graph break is the smallest submodule that none takes: its Python code depends on data. It stays
Python; its children are captured each in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from detent.errors import CaptureError, DetentError
from detent.graph.capture.capturable import validate_inputs
from detent.graph.capture.custom_tracer import CustomTracer
from detent.graph.capture.exporting import Attributes, ExportedGraph, Exporter, attributes_of
from detent.graph.capture.functional_dropout import dropout_as_modules
from detent.graph.capture.out_of_place import CONSTANT
from detent.graph.capture.replaying import ReadsNumbersError
from detent.graph.capture.running import Inputs, Recorder, explained, fresh, join, line_of, record, run, same
from detent.graph.capture.shape_guards import doubled, reversed_numbers
from detent.graph.capture.tracing import Leaves, Tracer, constants_of, skipping
from detent.graph.decompositions.complex_numbers import write_in_reals
from detent.graph.region import Region
from detent.graph.torch_ops import is_known_module
from detent.graph.weights.computed_weights import materialize_computed_weights
from detent.graph.weights.own_forward import modules_with_custom_forward
from detent.graph.weights.plain_parameters import copied, materialize_parametrizations, without_compiled
from detent.quantizers import Quantizer

__all__ = ["Captured", "capture"]

_WAYS: Mapping[Callable[..., ExportedGraph], str] = {
    Exporter.export: "came through torch.export",
    Exporter.replay: "was recorded while it ran",
}
"""What is tried, one after the other, where symbolic tracing cannot go on, and what the plan says of it."""


@dataclass(frozen=True)
class Captured:
    """What capturing gives: the module to run, the regions in it, why each graph break is one, the tensors of the model
    under the names they had, the parts of graph breaks that the example inputs did not reach, which classes of
    modules and functions are operations of the user's own, and how and why each region came that was not traced."""

    module: nn.Module
    regions: Mapping[str, Region]
    graph_breaks: Mapping[str, str]
    float_tensors: Mapping[str, Tensor]
    uncalled: Sequence[str] = ()
    own_operations: Sequence[Any] = ()
    exported: Mapping[str, str] = field(default_factory=dict)


def capture(
    model: nn.Module,
    example_inputs: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    leaf_modules: Sequence[str | type[nn.Module]] = (),
    skip_methods: Sequence[str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    modes: Mapping[str, Mapping[str, Any]] | None = None,
    own_operations: Sequence[type[nn.Module] | Callable[..., Any]] = (),
    tracer: CustomTracer | fx.Tracer | None = None,
    inplace: bool = False,
) -> Captured:
    """Trace `model`, which is left as it was unless `inplace`. Computed weights (weight norm, standardized weights)
    become plain ones.

    `leaf_modules` are names or classes that stay one node. `skip_methods` are dotted names
    (`package.module.Class.method`) whose calls stay one node. `concrete_args` are arguments of forward that are
    constants, and that the result no longer takes. `modes` names several sets of them, each a graph of its own over
    the same parts, chosen by calling with `mode=<name>`. `own_operations` are classes of modules and functions of your
    own that stay one node each, and whose inputs are quantized. `tracer` decides in place of the usual one.
    """
    if concrete_args and modes:
        raise CaptureError("concrete_args and modes", "modes are sets of concrete args", "put them into each mode")
    validate_inputs(model, example_inputs, leaf_modules)
    root = without_compiled(model if inplace else copied(model))
    inputs = Inputs(tuple(example_inputs), dict(example_kwargs or {}))
    flags = {module: module.training for module in root.modules()}
    root.eval()
    classes = [one for one in own_operations if isinstance(one, type)]
    functions = [one for one in own_operations if not isinstance(one, type)]
    leaves = Leaves((*leaf_modules, *classes), functions, tracer)
    walk = _Capture(root, inputs, leaves, dict(modes or {"forward": dict(concrete_args or {})}))
    walk.skips = bool(skip_methods)
    try:
        materialize_parametrizations(root)
        materialize_computed_weights(root, walk.example, leaves=(*leaf_modules, *classes))
        walk.attributes = attributes_of(root)
        walk.opened = modules_with_custom_forward(root, walk.example)
        float_tensors = dict(root.state_dict(keep_vars=True))
        with skipping(skip_methods):
            captured = walk.module(root, "", inputs, walk.modes)
    finally:
        # Each its own: a batch norm that was frozen stays so.
        for module, training in flags.items():
            module.training = training
        for region, module in walk.made_from.items():
            region.training = flags.get(module, False)
            for part in region.children():
                part.training = flags.get(part, part.training if isinstance(part, Region) else region.training)
    own = tuple(own_operations)
    return Captured(captured, walk.regions, walk.graph_breaks, float_tensors, walk.uncalled, own, walk.exported)


class _Capture:
    """One run of `capture`: walks from the root inwards and collects regions and graph breaks."""

    def __init__(
        self,
        root: nn.Module,
        inputs: Inputs,
        leaves: Leaves,
        modes: Mapping[str, Mapping[str, Any]],
    ):
        self._root, self._inputs = root, inputs
        self.opened: set[nn.Module] = set()
        self.leaves, self.modes = leaves, modes
        self.regions: dict[str, Region] = {}
        self.graph_breaks: dict[str, str] = {}
        self.exported: dict[str, str] = {}
        self.attributes: Attributes = {}
        self.skips = False
        self.uncalled: list[str] = []
        self.made_from: dict[Region, nn.Module] = {}
        self._refused: dict[str, str] = {}  # why nothing took a module

    def module(self, module: nn.Module, path: str, inputs: Inputs, modes: Mapping[str, Mapping[str, Any]]) -> nn.Module:
        """A Region for `module`, or `module` itself, with captured children, if it is a graph break."""
        if isinstance(module, Region):
            return self._captured_before(module, path, inputs)
        constants = {mode: constants_of(module, inputs, given) for mode, given in modes.items()}
        calls = {mode: Inputs(inputs.args, {**inputs.kwargs, **modes[mode]}) for mode in modes}
        before = self._traced_before(module, constants)
        # A graph that is taken unchanged need not be compared with itself.
        expected = {mode: run(module, call) for mode, call in calls.items()} if before is None else {}
        tracers = {mode: Tracer(self.leaves, path, self.opened) for mode in modes}
        why = ""
        try:
            region: Region | None = before or Region(
                module, {m: tracer.graph_of(module, constants[m], inputs) for m, tracer in tracers.items()}
            )
            assert region is not None
            for mode, call in calls.items():
                given = _recorded_in_reals(region, mode, module, inputs)
                if before is None and not self.leaves.rewrites:
                    if not same(expected[mode], given):
                        raise CaptureError("trace", "the traced graph computes something else", "")
                    if _holds_tensors(region.runners[mode]):
                        _require_same_elsewhere(region.runners[mode], module, reversed_numbers(call))
        except Exception as reason:  # whatever Python did with a proxy: the module ran, so tracing is the cause
            if before is not None:
                for call in calls.values():
                    run(module, call)  # if it does not run either, this says why
            region, why = None, explained(reason)
        breaks = {name: each for tracer in tracers.values() for name, each in tracer.graph_breaks.items()}
        if region is None or breaks:
            why = why or next(f"{name}: {each}" for name, each in breaks.items())
            exported = self._exported(module, path, inputs, modes, why)
            if exported is not None:
                return exported
        if region is None:
            self.graph_breaks[path] = self._refused.get(path, why)
            self._children(module, path)
            return module
        if any(node.target is F.dropout for graph in region.graphs.values() for node in graph.nodes):
            module.train()
            dropout_as_modules(
                region,
                {m: Tracer(self.leaves, path, self.opened).graph_of(module, constants[m], inputs) for m in modes},
            )
            module.eval()
        self._add_graph_breaks(module, path, breaks)
        return self._kept(region, module, path, [name for tracer in tracers.values() for name in tracer.in_place])

    def _kept(self, region: Region, module: nn.Module, path: str, in_place: Iterable[str]) -> Region:
        for name in in_place:
            vars(module.get_submodule(name))["inplace"] = False
        region.recompile()
        self.regions[path], self.made_from[region] = region, module
        return region

    def _exported(
        self, module: nn.Module, path: str, inputs: Inputs, modes: Mapping[str, Mapping[str, Any]], why: str
    ) -> Region | None:
        """A Region whose graphs come from torch.export; None where it is no help."""
        if self.leaves.tracer is not None or self.leaves.functions or self.skips:
            return None  # these are ways of tracing
        is_leaf = Tracer(self.leaves, path, self.opened).is_leaf_module
        calls = {mode: Inputs(inputs.args, {**inputs.kwargs, **given}) for mode, given in modes.items()}
        constants = {mode: constants_of(module, inputs, given) for mode, given in modes.items()}
        exporters = {mode: Exporter(module, call, self.attributes, is_leaf) for mode, call in calls.items()}
        refused = []
        for way, name in _WAYS.items():

            def graphs(way: Any = way) -> dict[str, ExportedGraph]:
                return {m: way(each, constants[m], owns_inputs=not path) for m, each in exporters.items()}

            try:
                made = graphs()
                region = Region(module, {mode: each.graph for mode, each in made.items()})
                for mode in modes:
                    _recorded_in_reals(region, mode, module, calls[mode])
                    _require_same(region.runners[mode], module, calls[mode])
            except Exception as reason:  # whatever torch.export refuses
                line, found = line_of(reason), explained(reason)
                if isinstance(reason, ReadsNumbersError):
                    self._refused[path] = found
                    return None
                if found != why and not (line and line in why) and found not in refused:
                    refused.append(found)
                continue
            if any(node.target is F.dropout for graph in region.graphs.values() for node in graph.nodes):
                module.train()
                with suppress(Exception):  # code that is captured in eval mode alone
                    dropout_as_modules(region, {mode: each.graph for mode, each in graphs().items()})
                module.eval()
            dropped = dict.fromkeys(name for each in made.values() for name in each.dropped)
            without = f"; it does not return its {', '.join(dropped)}" if dropped else ""
            self.exported[path] = f"{name}: {why}{without}"
            return self._kept(region, module, path, [name for each in made.values() for name in each.in_place])
        self._refused[path] = "; torch.export: ".join([why, *refused[:1]])
        return None

    def _traced_before(self, module: nn.Module, constants: Mapping[str, Mapping[str, Any]]) -> Region | None:
        """A region of a model that is a graph already, under the names its nodes have: of an imported ONNX file these
        are the names in the file. None if parts of it are to be traced."""
        if not isinstance(module, fx.GraphModule) or any(self.leaves) or any(constants.values()):
            return None
        parts = dict(module.named_modules())
        for node in module.graph.nodes:
            part = parts[str(node.target)] if node.op == "call_module" else None
            if node.target is F.dropout or not (part is None or is_known_module(part) or hasattr(part, "kind")):
                return None
        graphs = {mode: fx.Graph() for mode in constants}
        for graph in graphs.values():
            graph.output(graph.graph_copy(module.graph, {}))
        return Region(module, graphs)

    def _captured_before(self, region: Region, path: str, inputs: Inputs) -> Region:
        """A model that was captured and wrapped: its graphs are taken as they are."""
        for runner in region.runners.values():
            record(runner, runner, inputs)
        for name, part in region.named_modules():
            if isinstance(part, Region):
                self.regions[join(path, name)], self.made_from[part] = part, part
        return region

    def _add_graph_breaks(self, module: nn.Module, path: str, found: Mapping[str, str]) -> None:
        """Captures modules that symbolic tracing left as they are by torch.export, or records them as graph breaks."""
        calls = _calls_of({name: module.get_submodule(name) for name in found}, self._root, self.example)
        for name, why in found.items():
            where, part, arguments = join(path, name), module.get_submodule(name), calls[name]
            if where in self.graph_breaks:
                continue
            region = arguments and self._exported(part, where, arguments, {"forward": {}}, why)
            if region:
                _replace_part(module, name, region)
            else:
                self.graph_breaks[where] = self._refused.get(where, why)
                self._children(part, where)

    def _children(self, module: nn.Module, path: str) -> None:
        """Capture each child of a graph break that is called when the whole model runs, in place."""
        parts = _called_parts(module)
        calls = _calls_of(parts, self._root, self.example)
        for name, child in parts.items():
            arguments = calls[name]
            where = join(path, name)
            if arguments is None:
                self.uncalled.append(where)
            if arguments is None or isinstance(child, (Quantizer, Region)):
                continue
            if Tracer(self.leaves, path, self.opened).is_leaf_module(child, name):
                part: nn.Module = self.regions.setdefault(where, _region_of_one(child, arguments))
                self.made_from[self.regions[where]] = child
            else:
                part = self.module(child, where, arguments, {"forward": {}})
            _replace_part(module, name, part)

    @property
    def example(self) -> Inputs:
        """The arguments of the root in its first mode."""
        return Inputs(self._inputs.args, {**self._inputs.kwargs, **next(iter(self.modes.values()))})


def _replace_part(module: nn.Module, name: str, part: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, part)


def _called_parts(module: nn.Module) -> dict[str, nn.Module]:
    """The children, with lists and dicts of modules, which are never called themselves, expanded."""
    parts: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            parts.update({f"{name}.{inner}": part for inner, part in _called_parts(child).items()})
        else:
            parts[name] = child
    return parts


def _calls_of(parts: Mapping[str, nn.Module], root: nn.Module, inputs: Inputs) -> dict[str, Inputs | None]:
    """The arguments of the first call of each part when `root` runs; None for parts that are not called."""
    calls: dict[str, Inputs | None] = dict.fromkeys(parts)

    def remember(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if calls[name] is None:
                calls[name] = Inputs(args, kwargs)

        return hook

    with ExitStack() as stack:
        for name, part in parts.items():
            stack.callback(part.register_forward_pre_hook(remember(name), with_kwargs=True).remove)
        if calls:
            run(root, inputs)
    return calls


def _region_of_one(op: nn.Module, inputs: Inputs) -> Region:
    """A single operation inside a graph break, as a graph of one node."""
    graph = fx.Graph()
    args = tuple(graph.placeholder(f"input_{index}") for index in range(len(inputs.args)))
    kwargs: dict[str, Any] = {name: graph.placeholder(name) for name in inputs.kwargs}
    graph.output(graph.create_node("call_module", "op", args, kwargs))
    holder = nn.Module()
    holder.add_module("op", op)
    region = Region(holder, {"forward": graph}, stands_for="op")
    given = fresh(inputs)
    with torch.no_grad():
        Recorder(region.runners["forward"]).run(*given.args, *given.kwargs.values())
    return region


def _recorded_in_reals(region: Region, mode: str, module: nn.Module, inputs: Inputs) -> Any:
    """The output of a graph, which is rewritten without complex numbers, and whose nodes are annotated with their
    types."""
    given = record(region.runners[mode], module, inputs)
    if not write_in_reals(region, region.graphs[mode]):
        return given
    region.recompile()
    return record(region.runners[mode], module, inputs)


def _require_same(runner: fx.GraphModule, module: nn.Module, inputs: Inputs) -> None:
    """Refuse a graph that computes something else than the module, also for a larger batch if both accept it."""
    _require_same_elsewhere(runner, module, doubled(inputs))
    if not same(run(module, inputs), record(runner, module, inputs)):
        raise ValueError("the graph computes something else")


def _require_same_elsewhere(runner: fx.GraphModule, module: nn.Module, others: Inputs) -> None:
    """The same on inputs of a larger batch, or of other numbers, if both take them."""
    with suppress(DetentError):
        expected = run(module, others)
        if not same(expected, record(runner, module, others)):
            raise ValueError("the graph computes something else on other inputs")


def _holds_tensors(runner: fx.GraphModule) -> bool:
    """Whether a graph has tensors that forward made, or found, while it was traced. One that code has kept from an
    earlier call, as a hook does, is no constant."""
    return any(node.op == "get_attr" and str(node.target).startswith(CONSTANT) for node in runner.graph.nodes)
