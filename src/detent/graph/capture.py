"""From any `nn.Module` to fx graphs, never giving up: what cannot be traced becomes an island.

An island is the smallest submodule whose Python code depends on data. It stays Python; its children are captured
each in turn.
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from detent.errors import CaptureError
from detent.graph.kinds import is_known_module
from detent.graph.region import Region
from detent.quantizers import Quantizer

__all__ = ["Captured", "capture"]


@dataclass(frozen=True)
class Captured:
    """What capturing gives: the module to run, the regions in it, why each island is one, and the tensors of the
    model under the names they had."""

    module: nn.Module
    regions: Mapping[str, Region]
    islands: Mapping[str, str]
    float_tensors: Mapping[str, Tensor]


class _Inputs(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def capture(
    model: nn.Module,
    example_inputs: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    leaf_modules: Sequence[str | type[nn.Module]] = (),
    skip_methods: Sequence[str] = (),
    concrete_args: Mapping[str, Any] | None = None,
    modes: Mapping[str, Mapping[str, Any]] | None = None,
    inplace: bool = False,
) -> Captured:
    """Trace `model`, which is left as it was unless `inplace`.

    `leaf_modules` are names or classes that stay one node. `skip_methods` are dotted names
    (`package.module.Class.method`) whose calls stay one node. `concrete_args` are arguments of forward that are
    constants, and that the result no longer takes. `modes` names several sets of them, each a graph of its own over
    the same parts, chosen by calling with `mode=<name>`.
    """
    if concrete_args and modes:
        raise CaptureError("concrete_args and modes", "modes are sets of concrete args", "put them into each mode")
    _refuse_two_devices(model)
    _refuse_prepared(model)
    root = model if inplace else copy.deepcopy(model)
    _refuse_unknown_leaves(root, leaf_modules)
    inputs = _Inputs(tuple(example_inputs), dict(example_kwargs or {}))
    float_tensors = dict(root.state_dict(keep_vars=True))
    flags = {module: module.training for module in root.modules()}
    root.eval()
    run = _Capture(root, inputs, leaf_modules, dict(modes or {"forward": dict(concrete_args or {})}))
    try:
        with _skipping(skip_methods):
            captured = run.module(root, "", inputs, run.modes)
    finally:
        # Each its own: a batch norm that was frozen stays so.
        for module, training in flags.items():
            module.training = training
        for region, module in run.made_from.items():
            region.training = flags.get(module, False)
            for part in region.children():
                part.training = flags.get(part, part.training if isinstance(part, Region) else region.training)
    return Captured(captured, run.regions, run.islands, float_tensors)


class _Capture:
    """One run of `capture`: walks from the root inwards and collects regions and islands."""

    def __init__(
        self,
        root: nn.Module,
        inputs: _Inputs,
        leaf_modules: Sequence[str | type[nn.Module]],
        modes: Mapping[str, Mapping[str, Any]],
    ):
        self._root, self._inputs = root, inputs
        self.leaf_modules, self.modes = leaf_modules, modes
        self.regions: dict[str, Region] = {}
        self.islands: dict[str, str] = {}
        self.made_from: dict[Region, nn.Module] = {}

    def module(
        self, module: nn.Module, path: str, inputs: _Inputs, modes: Mapping[str, Mapping[str, Any]]
    ) -> nn.Module:
        """A Region for `module`, or `module` itself, with captured children, if it is an island."""
        if isinstance(module, Region):
            return self._captured_before(module, path, inputs)
        constants = {mode: _constants(module, inputs, given) for mode, given in modes.items()}
        expected = {mode: _run(module, _Inputs(inputs.args, {**inputs.kwargs, **modes[mode]})) for mode in modes}
        try:
            tracers = {mode: _Tracer(self.leaf_modules, path) for mode in modes}
            region = Region(module, {m: tracer.graph_of(module, constants[m]) for m, tracer in tracers.items()})
            for mode, runner in region.runners.items():
                if not _same(expected[mode], _record(runner, module, inputs)):
                    raise CaptureError("trace", "the traced graph computes something else", "")
        except Exception as reason:  # whatever Python did with a proxy: the module ran, so tracing is the cause
            self.islands[path] = reason.found if isinstance(reason, CaptureError) else _brief(reason)
            self._children(module, path)
            return module
        if any(node.target is F.dropout for graph in region.graphs.values() for node in graph.nodes):
            module.train()
            _dropout_as_modules(
                region, {m: _Tracer(self.leaf_modules, path).graph_of(module, constants[m]) for m in modes}
            )
            module.eval()
        for tracer in tracers.values():
            self._islands_in(module, path, tracer.islands)
        region.recompile()
        self.regions[path], self.made_from[region] = region, module
        return region

    def _captured_before(self, region: Region, path: str, inputs: _Inputs) -> Region:
        """A model that was captured and wrapped: its graphs are taken as they are."""
        for runner in region.runners.values():
            _record(runner, runner, inputs)
        for name, part in region.named_modules():
            if isinstance(part, Region):
                self.regions[_join(path, name)], self.made_from[part] = part, part
        return region

    def _islands_in(self, module: nn.Module, path: str, found: Mapping[str, str]) -> None:
        for name, why in found.items():
            where = _join(path, name)
            if where not in self.islands:
                self.islands[where] = why
                self._children(module.get_submodule(name), where)

    def _children(self, island: nn.Module, path: str) -> None:
        """Capture each child of an island that is called when the whole model runs, in its place."""
        parts = _called_parts(island)
        calls = _calls_of(parts, self._root, _Inputs(self._inputs.args, {**self._inputs.kwargs, **self._constants()}))
        for name, child in parts.items():
            arguments = calls[name]
            if arguments is None or isinstance(child, (Quantizer, Region)):
                continue
            where = _join(path, name)
            if _Tracer(self.leaf_modules, path).is_leaf_module(child, name):
                part: nn.Module = self.regions.setdefault(where, _region_of_one(child, arguments))
                self.made_from[self.regions[where]] = child
            else:
                part = self.module(child, where, arguments, {"forward": {}})
            owner, _, last = name.rpartition(".")
            setattr(island.get_submodule(owner), last, part)

    def _constants(self) -> Mapping[str, Any]:
        return next(iter(self.modes.values()))


def _called_parts(island: nn.Module) -> dict[str, nn.Module]:
    """The children, with lists and dicts of modules, which are never called themselves, opened up."""
    parts: dict[str, nn.Module] = {}
    for name, child in island.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            parts.update({f"{name}.{inner}": part for inner, part in _called_parts(child).items()})
        else:
            parts[name] = child
    return parts


def _calls_of(parts: Mapping[str, nn.Module], root: nn.Module, inputs: _Inputs) -> dict[str, _Inputs | None]:
    """The arguments of the first call of each part when `root` runs; None for parts that are not called."""
    calls: dict[str, _Inputs | None] = dict.fromkeys(parts)

    def remember(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if calls[name] is None:
                calls[name] = _Inputs(args, kwargs)

        return hook

    with ExitStack() as stack:
        for name, part in parts.items():
            stack.callback(part.register_forward_pre_hook(remember(name), with_kwargs=True).remove)
        _run(root, inputs)
    return calls


def _region_of_one(op: nn.Module, inputs: _Inputs) -> Region:
    """A single operation inside an island, as a graph of one node."""
    graph = fx.Graph()
    args = tuple(graph.placeholder(f"input_{index}") for index in range(len(inputs.args)))
    kwargs: dict[str, Any] = {name: graph.placeholder(name) for name in inputs.kwargs}
    graph.output(graph.create_node("call_module", "op", args, kwargs))
    holder = nn.Module()
    holder.add_module("op", op)
    region = Region(holder, {"forward": graph})
    fresh = _fresh(inputs)
    with torch.no_grad():
        _Recorder(region.runners["forward"]).run(*fresh.args, *fresh.kwargs.values())
    return region


class _Tracer(fx.Tracer):
    def __init__(self, leaf_modules: Sequence[str | type[nn.Module]], path: str):
        super().__init__()
        self._leaf_modules, self._path = leaf_modules, path
        self.islands: dict[str, str] = {}

    def graph_of(self, module: nn.Module, constants: Mapping[str, Any]) -> fx.Graph:
        graph = self.trace(module, concrete_args=dict(constants))
        _drop_constant_inputs(graph, module, constants)
        graph.lint()
        return graph

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        name = _join(self._path, module_qualified_name)
        for leaf in self._leaf_modules:
            if (name == leaf) if isinstance(leaf, str) else isinstance(m, leaf):
                return True
        ours = isinstance(m, Quantizer) or isinstance(getattr(m, "kind", None), str)
        # A user's own subclass of Conv2d is still a convolution, with a weight to be quantized.
        return ours or is_known_module(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(m, fx.GraphModule) and m not in (self.submodule_paths or {}):
            return forward(*args, **kwargs)  # what runs a Region that was captured before
        before = set(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as reason:
            # The deepest module that failed gets here first: it is the smallest one that cannot be traced.
            for node in reversed([node for node in self.graph.nodes if node not in before]):
                self.graph.erase_node(node)
            name = self.path_of_module(m)
            self.islands[name] = _brief(reason)
            return self.create_proxy("call_module", name, args, kwargs)


@contextmanager
def _skipping(methods: Sequence[str]) -> Iterator[None]:
    """While tracing, a call of any of these methods with a proxy becomes one node."""
    with ExitStack() as stack:
        for dotted in methods:
            owner, name = _resolve_method(dotted)
            stack.enter_context(mock.patch.object(owner, name, _one_node(getattr(owner, name))))
        yield


def _one_node(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        proxies = [value for value in _flat((args, kwargs)) if isinstance(value, fx.Proxy)]
        if not proxies:
            return method(*args, **kwargs)
        tracer: Any = proxies[0].tracer
        if not isinstance(args[0], nn.Module):
            return tracer.create_proxy("call_function", method, args, kwargs)
        path = tracer.path_of_module(args[0]) if args[0] is not tracer.root else ""
        name = f"{path}.{method.__name__}".lstrip(".").replace(".", "_")
        if not path:
            name += "_call"  # the root has an attribute of the bare name: the method
        if not hasattr(tracer.root, name):
            tracer.root.add_module(name, _MethodCall(args[0], method))
        return tracer.create_proxy("call_module", name, args[1:], kwargs)

    return call


class _MethodCall(nn.Module):
    """A method of another module as a node. The owner keeps its place, and its parameters their names."""

    def __init__(self, owner: nn.Module, method: Callable[..., Any]):
        super().__init__()
        self._owner = (owner,)  # in a tuple, so that it is not registered a second time
        self._method = method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(self._owner[0], *args, **kwargs)


def _resolve_method(dotted: str) -> tuple[type, str]:
    parts = dotted.split(".")
    for cut in range(len(parts) - 2, 0, -1):
        try:
            owner: Any = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:-1]:
            owner = getattr(owner, part, None)
        if isinstance(owner, type) and callable(getattr(owner, parts[-1], None)):
            return owner, parts[-1]
    raise CaptureError(f"skip_methods {dotted!r}", "no such method", "give 'package.module.Class.method'")


def _constants(module: nn.Module, inputs: _Inputs, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of forward that are constants: those the user named, and those the example leaves out.

    An optional argument that is not given must keep its default, or `if mask is not None` takes the wrong way.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    try:
        bound = inspect.signature(module.forward).bind_partial(*inputs.args, **inputs.kwargs).arguments
    except TypeError as error:
        raise CaptureError(
            f"forward({_shapes(inputs)})", str(error), "give example inputs that forward takes"
        ) from None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    left_out = {p.name: p.default for p in parameters if p.name not in bound and p.kind not in kinds}
    return {**{k: v for k, v in left_out.items() if v is not inspect.Parameter.empty}, **given}


def _drop_constant_inputs(graph: fx.Graph, module: nn.Module, constants: Mapping[str, Any]) -> None:
    """fx keeps a placeholder and an assertion for each constant; the graph no longer takes them.

    They are told apart by position, because fx may give a constant the name of another argument.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for name in inspect.signature(module.forward).parameters:
        count = len(list(_flat(constants[name]))) if name in constants else 1
        taken, placeholders = placeholders[:count], placeholders[count:]
        for node in taken if name in constants else ():
            for user in reversed(_all_users(node)):
                graph.erase_node(user)
            graph.erase_node(node)


def _all_users(node: fx.Node) -> list[fx.Node]:
    found: dict[fx.Node, None] = {}
    for user in node.users:
        found[user] = None
        found.update(dict.fromkeys(_all_users(user)))
    return list(found)


class _Recorder(fx.Interpreter):
    """Runs a graph and notes of every value whether it is a real tensor, and its shape."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["is_real"] = isinstance(value, Tensor) and value.is_floating_point()
        if isinstance(value, Tensor):
            n.meta["shape"] = tuple(value.shape)
        elif isinstance(value, (list, tuple)) and value and all(isinstance(part, Tensor) for part in value):
            n.meta["is_real"] = all(part.is_floating_point() for part in value)
            n.meta["parts"] = len(value)
        return value


def _record(runner: fx.GraphModule, module: nn.Module, inputs: _Inputs) -> Any:
    fresh = _fresh(inputs)
    bound = inspect.signature(module.forward).bind_partial(*fresh.args, **fresh.kwargs).arguments
    flat: list[Any] = []
    for node in runner.graph.nodes:
        if node.op != "placeholder":
            continue
        name = str(node.target)
        if name.startswith("**"):
            flat.append(bound.get(name[2:], {}))
        elif name.startswith("*"):
            flat.extend(bound.get(name[1:], ()))
        else:
            flat.append(bound[name] if name in bound else node.args[0])
    with torch.no_grad():
        return _Recorder(runner).run(*flat)


def _dropout_as_modules(region: Region, in_training: Mapping[str, fx.Graph]) -> None:
    """`F.dropout(x, p, self.training)` was traced in eval mode, as a constant: give it back its two modes."""
    for mode, graph in region.graphs.items():
        twins = [node for node in in_training[mode].nodes if node.target is F.dropout]
        for node, twin in zip([n for n in graph.nodes if n.target is F.dropout], twins, strict=True):
            if _dropout_training(node) or not _dropout_training(twin):
                continue  # dropout always, or never: as written
            probability = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
            name = f"{node.name}_module"
            region.add_module(name, nn.Dropout(float(probability)))
            with graph.inserting_after(node):
                source = node.args[0] if node.args else node.kwargs["input"]
                module = graph.create_node("call_module", name, (source,))
            module.meta = dict(node.meta)
            node.replace_all_uses_with(module)
            graph.erase_node(node)


def _dropout_training(node: fx.Node) -> bool:
    return bool(node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True))


def _run(module: nn.Module, inputs: _Inputs) -> Any:
    fresh = _fresh(inputs)
    try:
        with torch.no_grad():
            return module(*fresh.args, **fresh.kwargs)
    except Exception as error:
        raise CaptureError(
            f"run the model on example inputs ({_shapes(inputs)})",
            f"{type(error).__name__}: {_brief(error)}",
            "give example inputs that the float model takes",
        ) from error


def _fresh(inputs: _Inputs) -> _Inputs:
    """Copies, because a model may write into what it is given."""
    return _Inputs(copy.deepcopy(inputs.args), copy.deepcopy(inputs.kwargs))


def _same(left: Any, right: Any) -> bool:
    pairs = zip(_flat(left), _flat(right), strict=False)
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) if isinstance(a, Tensor) else True
        for a, b in pairs
        if isinstance(a, Tensor) == isinstance(b, Tensor)
    )


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from _flat(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _flat(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from _flat(getattr(value, part.name))
    else:
        yield value


def _refuse_two_devices(model: nn.Module) -> None:
    devices = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise CaptureError("capture a model", f"its tensors are on {sorted(devices)}", "move it to one device first")


def _refuse_prepared(model: nn.Module) -> None:
    if any(isinstance(module, Quantizer) for module in model.modules()):
        raise CaptureError("capture a model", "it has quantizers already", "start from the float model")


def _refuse_unknown_leaves(model: nn.Module, leaves: Sequence[str | type[nn.Module]]) -> None:
    known = dict(model.named_modules())
    for leaf in leaves:
        if isinstance(leaf, str) and leaf not in known:
            near = difflib.get_close_matches(leaf, known, n=1)
            raise CaptureError(
                f"leaf_modules {leaf!r}",
                "the model has no such module",
                f"did you mean {near[0]!r}?" if near else "give a name from model.named_modules()",
            )


def _shapes(inputs: _Inputs) -> str:
    described = [str(tuple(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for v in inputs.args]
    described += [f"{name}=..." for name in inputs.kwargs]
    return ", ".join(described)


def _brief(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
