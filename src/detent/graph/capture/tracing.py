"""Tracing with torch.fx: what stays one node, what is a constant, and where tracing must stop."""

from __future__ import annotations

import inspect
import math
import operator
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, fx, nn

from detent.errors import CaptureError
from detent.graph.capture.custom_tracer import CustomTracer
from detent.graph.capture.item_assignment import assigned, becomes
from detent.graph.capture.out_of_place import CONSTANT, write_out_of_place
from detent.graph.capture.parameter_facts import read_facts
from detent.graph.capture.running import Inputs, calling_line, explained, flat, join, shapes
from detent.graph.capture.shape_guards import Deciding, as_traced
from detent.graph.capture.unused import drop_unused
from detent.graph.decompositions.table import (
    DECOMPOSED_FUNCTIONS,
    decomposed_modules,
    is_decomposed_module,
    is_wrapped_function,
)
from detent.graph.torch_ops import is_known_module
from detent.quantizers import Quantizer
from detent.traversal import dependencies_first

__all__ = ["Leaves", "Tracer", "constants_of", "skipping"]

_MAKERS = ("arange", "full", "ones", "zeros")
"""Functions of torch that make tensors; of sizes that are proxies they take some, and refuse others."""


class Leaves(NamedTuple):
    """What stays one node: modules by name or class, functions, and what a user's tracer decides."""

    modules: Sequence[str | type[nn.Module]] = ()
    functions: Sequence[Callable[..., Any]] = ()
    tracer: CustomTracer | fx.Tracer | None = None

    @property
    def rewrites(self) -> bool:
        """Whether the tracer's graphs are the user's own, which may compute something else than the model."""
        return self.tracer is not None and type(self.tracer).trace not in (CustomTracer.trace, fx.Tracer.trace)


class Tracer(fx.Tracer):
    def __init__(self, leaves: Leaves, path: str, opened: Container[nn.Module] = ()):
        """`opened` are modules that are traced into, though their classes are known."""
        homes = {sys.modules[function.__module__] for function in leaves.functions if function.__module__}
        super().__init__(autowrap_modules=(math, *homes), autowrap_functions=tuple(leaves.functions))  # type: ignore[arg-type]
        self._leaves, self._path, self._opened = leaves, path, opened
        self.graph_breaks: dict[str, str] = {}
        self.in_place: set[str] = set()  # modules that must not work in place any more

    def graph_of(self, module: nn.Module, constants: Mapping[str, Any], inputs: Inputs) -> fx.Graph:
        self._deciding = Deciding(module, inputs)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(fx.Proxy, "__len__", self._length))
            stack.enter_context(mock.patch.object(fx.Proxy, "__setitem__", self._assign, create=True))
            stack.enter_context(decomposed_modules())
            for name in _MAKERS:
                stack.enter_context(mock.patch.object(torch, name, _one_node(getattr(torch, name))))
            graph = self._by_custom_tracer(module, constants)
        for node in graph.nodes:
            if not is_wrapped_function(node.target):
                node.meta.pop("is_wrapped", None)  # what such a function gave, which is not a call of it
        read_facts(graph, module, lambda node: isinstance(self._deciding.example(node), Tensor))
        del self._deciding  # and with it what the example gave inside
        _drop_constant_inputs(graph, module, constants)
        self.in_place |= write_out_of_place(graph, module, owns_inputs=not self._path)
        drop_unused(graph, module)
        graph.lint()
        return graph

    def _by_custom_tracer(self, module: nn.Module, constants: Mapping[str, Any]) -> fx.Graph:
        custom = self._leaves.tracer
        if custom is None:
            return self.trace(module, concrete_args=dict(constants))
        if isinstance(custom, CustomTracer):
            custom.usual = self
        try:
            return custom.trace(module, concrete_args=dict(constants))
        finally:
            if isinstance(custom, CustomTracer):
                custom.usual = None

    def to_bool(self, obj: fx.Proxy) -> bool:
        """An `if` or `assert`, decided by sizes."""
        truth = self._deciding.truth(obj.node)
        if truth is None:
            return super().to_bool(obj)
        self.create_proxy("call_function", as_traced, (obj, truth), {})
        return truth

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """A `for`, or a call of `list`, over as many elements as the example has."""
        count = self._deciding.count(obj.node)
        return super().iter(obj) if count is None else iter([operator.getitem(obj, index) for index in range(count)])

    @staticmethod
    def _length(proxy: fx.Proxy) -> int:
        """Also asked for by `list(x)` and `f(*x)`."""
        tracer = proxy.tracer
        assert isinstance(tracer, Tracer)
        count = tracer._deciding.count(proxy.node)
        if count is None:
            raise fx.proxy.TraceError("len() of something whose length depends on the batch, or that has none")
        return count

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if (line := calling_line()) is not None:
            node.meta["line"] = line
        return node

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Proxy:
        if kind == "call_function" and target is getattr and (place := self._field(*args)) is not None:
            target, args = operator.getitem, (args[0], place)
        if kind == "call_method" and target == "__setitem__" and self._is_made(args[0]):
            held, index, value = args
            made = self.create_arg(held)
            assert isinstance(made, fx.Node)
            self._assign(self.proxy(made), index, value)
            return self.proxy(made)
        if kind == "call_method" and isinstance(args[0], fx.Proxy):
            changed = self._change_part(target, *args, **kwargs)
            if changed is not None:
                return changed
        if kind == "call_function" and target in DECOMPOSED_FUNCTIONS and target not in self._leaves.functions:
            made = DECOMPOSED_FUNCTIONS[target](*map(self._as_proxy, args), **kwargs)
            if made is not NotImplemented:
                return made  # type: ignore[no-any-return]
        if kind == "call_function" and target not in self._leaves.functions and is_wrapped_function(target):
            inlined = self._inlined(target, args, kwargs)
            if inlined is not None:
                return inlined
        return super().create_proxy(kind, target, args, kwargs, *rest, **options)

    def _inlined(self, function: Callable[..., Any], args: Any, kwargs: Any) -> fx.Proxy | None:
        """The result of a function that is wrapped against tracing; None if tracing cannot follow it."""
        before = set(self.graph.nodes)
        try:
            made = function(*args, **kwargs)
        except Exception:
            made = None
        if isinstance(made, fx.Proxy):
            return made
        self._erase_behind(before)
        return None

    def _acts_in_training(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Whether a module that gives what it takes in does more in training mode, as stochastic depth."""
        before, training = set(self.graph.nodes), m.training
        m.training = True
        try:
            acts = forward(*args, **kwargs) is not args[0]
        except Exception:
            acts = True  # on sizes, or numbers drawn, that tracing does not follow
        finally:
            m.training = training
            self._erase_behind(before)
        return acts

    def _erase_behind(self, before: Container[fx.Node]) -> None:
        for node in reversed([node for node in self.graph.nodes if node not in before]):
            self.graph.erase_node(node)

    def example(self, proxy: fx.Proxy) -> Any:
        """The value of a proxy for the example inputs."""
        return self._deciding.example(proxy.node)

    def _as_proxy(self, value: Any) -> Any:
        """A buffer, or a tensor that forward makes, as a node, so that what is computed of it follows it."""
        if not isinstance(value, Tensor):
            return value
        held = self.create_arg(value)
        assert isinstance(held, fx.Node)
        return self.proxy(held)

    def _is_made(self, held: Any) -> bool:
        """Whether forward creates the tensor and the model does not keep it."""
        kept = any(held is one for one in (*self.root.parameters(), *self.root.buffers()))
        return not kept and str(self.tensor_attrs.get(held, CONSTANT)).startswith(CONSTANT)

    @staticmethod
    def _assign(proxy: fx.Proxy, index: Any, value: Any) -> None:
        """`proxy[index] = value`."""
        tracer = proxy.tracer
        assert isinstance(tracer, Tracer)
        made = assigned(proxy, index, value, lambda one: tracer._deciding.examples(one.node))
        if made is None:
            raise fx.proxy.TraceError("an assignment to a part of a tensor that is neither slices, numbers nor a mask")
        tracer.create_proxy("call_function", becomes, (proxy, made), {})

    def _change_part(self, method: str, part: Any, *args: Any, **kwargs: Any) -> fx.Proxy | None:
        """`y[a:b].add_(z)` is `y[a:b] = y[a:b].add(z)`; None for any other call."""
        name = method.removesuffix("_")
        is_change = method.endswith("_") and not method.endswith("__")
        if not is_change or part.node.op != "call_function" or part.node.target is not operator.getitem:
            return None
        whole, index = part.node.args
        if not isinstance(whole, fx.Node) or not isinstance(self._deciding.example(whole), Tensor):
            return None
        if name in ("zero", "fill"):
            value = torch.full_like(part, args[0] if args else kwargs.get("value", 0.0))
        elif callable(getattr(Tensor, name, None)):
            value = getattr(part, name)(*args, **kwargs)
        else:
            return None
        index = fx.node.map_aggregate(index, self._known)
        self._assign(self.proxy(whole), index, value)
        behind: fx.Proxy = operator.getitem(self.proxy(whole), index)
        return behind

    def _field(self, whole: Any, name: str, *default: Any) -> int | None:
        """The index of a named field, as in `x.max(1).values`, in the tuple; None for attributes of anything else."""
        if default or not isinstance(whole, fx.Proxy) or inspect.isdatadescriptor(getattr(Tensor, name, None)):
            return None  # x.shape, x.dtype and the like need no example
        found = self._deciding.example(whole.node)
        value = getattr(found, name, None) if isinstance(found, tuple) else None
        return next((place for place, part in enumerate(found) if part is value), None)

    def _known(self, value: Any) -> Any:
        """A number computed from sizes, if it is the same for every batch."""
        found = self._deciding.examples(value) if isinstance(value, fx.Node) else [value]
        return found[0] if all(type(one) is int and one == found[0] for one in found) else value

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        name = join(self._path, module_qualified_name)
        for leaf in self._leaves.modules:
            if (name == leaf) if isinstance(leaf, str) else isinstance(m, leaf):
                return True
        custom = self._leaves.tracer
        ours = isinstance(m, Quantizer) or isinstance(getattr(m, "kind", None), str)
        # A user's own subclass of Conv2d is still a convolution, with a weight to be quantized.
        known = is_known_module(m) and m not in self._opened
        if ours or known or m in self._opened or is_decomposed_module(m):
            return ours or known
        if custom is not None:
            return custom.is_leaf_module(m, module_qualified_name)
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if isinstance(m, fx.GraphModule) and m not in (self.submodule_paths or {}):
            return forward(*args, **kwargs)  # what runs a Region that was captured before
        before = set(self.graph.nodes)
        try:
            made = super().call_module(m, forward, args, kwargs)
            if args and made is args[0] and self._acts_in_training(m, forward, args, kwargs):
                vars(m)["kind"] = "dropout"  # it stays one node, so that training still has it
                return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
            return made
        except Exception as reason:
            # The deepest module that failed gets here first: it is the smallest one that cannot be traced.
            self._erase_behind(before)
            name = self.path_of_module(m)
            self.graph_breaks[name] = explained(reason)
            return self.create_proxy("call_module", name, args, kwargs)


@contextmanager
def skipping(methods: Sequence[str]) -> Iterator[None]:
    """A context for tracing, in which a call of any of these methods with a proxy becomes one node."""
    with ExitStack() as stack:
        for dotted in methods:
            owner, name = _resolve_method(dotted)
            stack.enter_context(mock.patch.object(owner, name, _one_node(getattr(owner, name))))
        yield


def _one_node(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        proxies = [value for value in flat((args, kwargs)) if isinstance(value, fx.Proxy)]
        if not proxies:
            return method(*args, **kwargs)
        tracer: Any = proxies[0].tracer
        if not args or not isinstance(args[0], nn.Module):
            if isinstance(tracer, Tracer):
                return fx.Tracer.create_proxy(tracer, "call_function", method, args, kwargs)
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


def constants_of(module: nn.Module, inputs: Inputs, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of forward that are constants: those the user named, and those the example leaves out.

    An optional argument that is not given must keep its default, or `if mask is not None` takes the wrong way.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    try:
        bound = inspect.signature(module.forward).bind_partial(*inputs.args, **inputs.kwargs).arguments
    except TypeError as error:
        raise CaptureError(f"forward({shapes(inputs)})", str(error), "give example inputs that forward takes") from None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    left_out = {p.name: p.default for p in parameters if p.name not in bound and p.kind not in kinds}
    return {**{k: v for k, v in left_out.items() if v is not inspect.Parameter.empty}, **given}


def _drop_constant_inputs(graph: fx.Graph, module: nn.Module, constants: Mapping[str, Any]) -> None:
    """fx keeps a placeholder and an assertion for each constant; the graph no longer takes them.

    They are told apart by position, because fx may give a constant the name of another argument.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for name in inspect.signature(module.forward).parameters:
        count = len(list(flat(constants[name]))) if name in constants else 1
        taken, placeholders = placeholders[:count], placeholders[count:]
        for node in taken if name in constants else ():
            for user in dependencies_first([node], lambda one: one.users):
                graph.erase_node(user)
