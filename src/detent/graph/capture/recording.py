"""Records the calls of a module while it runs, as the fx graph that symbolic tracing would have produced.

The module runs on tensors instead of proxies, so its Python code may do anything with sizes, keyword arguments and
structure. Calls are intercepted where torch functions can be overridden (`torch.overrides`), as in symbolic tracing:
functions, tensor methods and modules are the same, and so are their names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property

from detent.errors import CaptureError
from detent.graph.capture.item_assignment import assigned
from detent.graph.capture.replaying import NumericSizes
from detent.graph.capture.running import calling_line, flat
from detent.graph.capture.symbolic_sizes import SymbolicSizes
from detent.graph.decompositions.table import DECOMPOSED_FUNCTIONS, decomposed_modules

__all__ = ["CallRecorder"]

_CALL = nn.Module.__call__

_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "matmul": operator.matmul,
    "pow": operator.pow,
    "remainder": operator.mod,
    "floor_divide": operator.floordiv,
    "neg": operator.neg,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "bitwise_not": operator.invert,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__floordiv__": operator.floordiv,
    "__mod__": operator.mod,
    "__getitem__": operator.getitem,
}
"""Under these names tensors have the operators of Python."""

_REFLECTED: Mapping[str, Callable[..., Any]] = {
    "__rsub__": operator.sub,
    "__rdiv__": operator.truediv,
    "__rtruediv__": operator.truediv,
    "__rpow__": operator.pow,
    "__rfloordiv__": operator.floordiv,
    "__rmod__": operator.mod,
    "__rmatmul__": operator.matmul,
}

_MAY_DO_NOTHING = ("to", "type", "type_as", "float", "contiguous")
"""Methods that give the tensor itself where it has the type, or the place in memory, that is asked for."""

Shapes = Mapping[int, Sequence[Sequence[int]]]

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format, type(None), type(...))


class CallRecorder(TorchFunctionMode):
    """While it is active, calls that give tensors become nodes of `graph`.

    `is_leaf(module, path)` says which modules of `root` are one node. Tensors are told apart by identity: those that go
    in are given by `add_input`, parameters and buffers are known by name, and others that exist already are constants.
    """

    def __init__(
        self,
        root: nn.Module,
        is_leaf: Callable[[nn.Module, str], bool],
        *,
        sizes: NumericSizes | None = None,
        check: Callable[[Callable[..., Any], Sequence[Any], Sequence[fx.Node]], None] | None = None,
    ):
        """Sizes are symbols unless `sizes` are given. `check` is called before each call, with its function, its
        arguments and the nodes among these."""
        super().__init__()
        self.graph = fx.Graph()
        self.sizes = sizes or SymbolicSizes(self.graph)
        self._check = check
        self.inputs: dict[fx.Node, tuple[Any, ...]] = {}  # the shapes of the tensors that go in
        self.constants: dict[str, Tensor] = {}
        self.dropped: list[str] = []  # classes of returned values that are no tensor, list, dict or dataclass
        self._root, self._is_leaf = root, is_leaf
        # By their attributes: torch.export hands out stand-ins of modules, which share these.
        self._parts = {id(vars(module)): (module, path) for path, module in root.named_modules() if path}
        self._nodes: dict[int, fx.Node] = {}
        self._held: list[Any] = []  # an id is a tensor's own for as long as it lives
        self._device: tuple[torch.device, fx.Node] | None = None
        self._tracer = fx.proxy.GraphAppendingTracer(self.graph)
        self._device_node: fx.Node | None = None
        self._paused = False
        held = (*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False))
        self._names = {id(tensor): name for name, tensor in reversed(held)}

    def add_input(self, value: Any, node: fx.Node, shapes: Shapes) -> None:
        """What `node`, a placeholder, stands for: a tensor, or what has tensors in it. `shapes` are, by the
        id of a tensor, examples of its shape."""
        if isinstance(value, Tensor):
            self._keep(value, node)
            self.inputs[node] = tuple(value.shape)
            self.sizes.add_input(node, value, shapes[id(value)])
            self._device = self._device or (value.device, node)
        elif isinstance(value, Mapping):
            for key, part in value.items():
                self._add_part(part, operator.getitem, node, key, shapes)
        elif isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                self._add_part(part, operator.getitem, node, index, shapes)
        elif is_dataclass(value):
            for each in fields(value):
                self._add_part(getattr(value, each.name), getattr, node, each.name, shapes)

    def _add_part(self, part: Any, read: Callable[..., Any], node: fx.Node, key: Any, shapes: Shapes) -> None:
        if any(isinstance(each, Tensor) for each in flat(part)):
            self.add_input(part, self.graph.call_function(read, (node, key)), shapes)

    def record(self, run: Callable[[], Any]) -> Any:
        """The result of `run`, whose calls are recorded up to the output of the graph."""
        recorder = self

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            part, path = recorder._parts.get(id(vars(module)), (module, ""))
            if recorder._paused or not path or not recorder._is_leaf(part, path):
                return _CALL(module, *args, **kwargs)
            with recorder._pausing():
                given = _CALL(module, *args, **kwargs)
            recorder._add("call_module", path, args, kwargs, given)
            return given

        with mock.patch.object(nn.Module, "__call__", call), decomposed_modules(), self:
            result = run()
        self.graph.output(self._output(result))
        return result

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        named = dict(kwargs or {})
        if self._paused:
            return func(*args, **named)
        if self._check is not None:
            tensors = [part for part in flat((args, named)) if isinstance(part, Tensor)]
            self._check(func, args, [self._nodes[id(one)] for one in tensors if id(one) in self._nodes])
        if func is Tensor.__setitem__:
            self._assign(*args)
            return func(*args, **named)
        if func in DECOMPOSED_FUNCTIONS:
            with self:
                made = DECOMPOSED_FUNCTIONS[func](*args, **named)
            if made is not NotImplemented:
                return made
        result = func(*args, **named)
        if any(isinstance(part, Tensor) for part in flat(result)):
            self._add_call(func, args, named, result)
        return result

    # --- nodes

    def _add_call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        if name in _MAY_DO_NOTHING and args and result is args[0]:
            return
        if func in (torch.cat, torch.concat) and args:
            # torch takes tensors of no elements, of whatever rank, for nothing: an empty cache.
            args = ([part for part in args[0] if tuple(part.shape) != (0,)], *args[1:])
        if name == "__get__":
            self._add("call_function", getattr, (*args, func.__self__.__name__), {}, result)  # type: ignore[attr-defined]
        elif not is_tensor_method_or_property(func) and getattr(Tensor, name, None) is not func:
            self._add("call_function", func, args, kwargs, result)
        elif name in _REFLECTED:
            self._add("call_function", _REFLECTED[name], args[::-1], kwargs, result)
        elif name in _OPERATORS and not kwargs and len(args) <= 2:
            self._add("call_function", _OPERATORS[name], args, kwargs, result)
        elif isinstance(args[0], Tensor):
            self._add("call_method", name, args, kwargs, result)
        else:
            raise CaptureError("capture", f"a call of Tensor.{name} without a tensor", "")

    def _add(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        node = self.graph.create_node(op, target, self._argument(args), self._argument(kwargs))
        if (line := calling_line()) is not None:
            node.meta["line"] = line
        self._keep(result, node)

    def _keep(self, value: Any, node: fx.Node) -> None:
        """From now on `value` is the output of `node`; an in-place operation returns its input."""
        if isinstance(value, Tensor):
            self._nodes[id(value)] = node
            self._held.append(value)
        elif isinstance(value, (list, tuple)):
            for index, part in enumerate(value):
                if any(isinstance(each, Tensor) for each in flat(part)):
                    self._keep(part, self.graph.call_function(operator.getitem, (node, index)))
        elif isinstance(value, Mapping):
            for key, part in value.items():
                if any(isinstance(each, Tensor) for each in flat(part)):
                    self._keep(part, self.graph.call_function(operator.getitem, (node, key)))

    def _assign(self, held: Tensor, index: Any, value: Any) -> None:
        """`held[index] = value`."""
        tensors: dict[int, Tensor] = {}

        def proxy(tensor: Tensor) -> fx.Proxy:
            made = self._proxy(tensor)
            tensors[id(made)] = tensor
            return made

        whole, place, given = self._converted(proxy, (held, index, value))
        made = assigned(whole, place, given, lambda one: self._examples(tensors[id(one)]))
        if made is None:
            raise CaptureError(
                "capture", "an assignment to a part of a tensor that is neither slices, numbers nor a mask", ""
            )
        self._keep(held, made.node)

    def _examples(self, tensor: Tensor) -> list[Any]:
        return [torch.empty(shape, dtype=tensor.dtype) for shape in self.sizes.examples(tensor.shape)]

    def _proxy(self, tensor: Tensor) -> fx.Proxy:
        return fx.Proxy(self._tensor(tensor), self._tracer)

    def _converted(self, change: Callable[[Tensor], Any], values: Any) -> Any:
        return fx.node.map_aggregate(values, lambda each: change(each) if isinstance(each, Tensor) else each)

    # --- what nodes take

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return self.sizes.node(value)
        if isinstance(value, torch.device):
            return self._device_of(value)
        if isinstance(value, slice):
            return slice(*(self._argument(part) for part in (value.start, value.stop, value.step)))
        if isinstance(value, (list, tuple)):
            parts = [self._argument(part) for part in value]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, Mapping):
            return {key: self._argument(part) for key, part in value.items()}
        if isinstance(value, _PLAIN):
            return value
        raise CaptureError("capture", f"an operation is given a {type(value).__name__}", "")

    def _tensor(self, tensor: Tensor) -> fx.Node:
        if id(tensor) in self._nodes:
            return self._nodes[id(tensor)]
        name = self._names.get(id(tensor)) or self._new_constant(tensor)
        node = self.graph.create_node("get_attr", name)
        self._keep(tensor, node)
        return node

    def _new_constant(self, tensor: Tensor) -> str:
        if type(tensor) not in (Tensor, nn.Parameter):
            raise CaptureError("capture", "it computes with a tensor that was made outside of the traced code", "")
        count = 0
        while hasattr(self._root, name := f"_tensor_constant{count}") or name in self.constants:
            count += 1
        self.constants[name] = tensor
        return name

    def _device_of(self, device: torch.device) -> Any:
        """The device of the inputs, wherever the model is moved to."""
        if self._device is None or self._device[0] != device:
            return device
        if self._device_node is None:
            self._device_node = self.graph.call_function(getattr, (self._device[1], "device"))
        return self._device_node

    def _output(self, value: Any) -> Any:
        """The same structure, of nodes. What has no form in a graph, as a cache, is not given back."""
        if isinstance(value, (Tensor, torch.SymInt, torch.SymFloat, *_PLAIN)):
            return self._argument(value)
        if is_dataclass(value):
            parts = {each.name: self._output(getattr(value, each.name)) for each in fields(value)}
            return self.graph.call_function(type(value), (), parts)
        if isinstance(value, Mapping):
            return {key: self._output(part) for key, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self.graph.call_function(type(value), tuple(self._output(part) for part in value))
        if isinstance(value, (list, tuple)):
            parts_ = [self._output(part) for part in value]
            return parts_ if isinstance(value, list) else tuple(parts_)
        self.dropped.append(type(value).__name__)
        return None
