"""Rewrites complex tensors of a captured graph as real and imaginary parts, because no target has complex numbers.

Rotary embeddings (`torch.polar`, `view_as_complex`) become products and sums of real numbers. What has no such form
here (`torch.fft`) stays one operation, in float, that takes and gives real numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.overrides import resolve_name

from detent.errors import CaptureError
from detent.graph.decompositions.spectra import stft_channels
from detent.graph.region import Region

__all__ = ["in_reals", "write_in_reals"]


class Parts(NamedTuple):
    """The real and imaginary part of complex numbers: nodes in a graph, or tensors when it runs."""

    real: Any
    imag: Any


def write_in_reals(region: Region, graph: fx.Graph) -> bool:
    """Rewrite `graph` of `region`, whose nodes have recorded types; returns whether anything changed."""
    writer = _Writer(region, graph)
    for node in list(graph.nodes):
        if node.op != "output" and (_is_complex(node) or any(each in writer.parts for each in node.all_input_nodes)):
            writer.rewrite(node)
    for node in graph.nodes:
        if node.op == "output" and any(each in writer.parts for each in node.all_input_nodes):
            raise CaptureError("capture", "it returns complex numbers", "return torch.view_as_real of them")
    for node in reversed(list(graph.nodes)):
        if node in writer.parts and not node.users:
            graph.erase_node(node)
    return bool(writer.parts)


def in_reals(name: str, args: Any, kwargs: Any) -> Any:
    """A function of torch, or a method, called with complex numbers; what is complex is given as `torch.view_as_real`
    gives it."""
    made = operator.attrgetter(name.removeprefix("torch."))(torch)(*_joined(args), **_joined(kwargs))
    return torch.view_as_real(made) if isinstance(made, Tensor) and made.is_complex() else made


def _joined(value: Any) -> Any:
    if isinstance(value, Parts):
        return torch.complex(value.real, value.imag)
    if isinstance(value, (list, tuple)):
        return type(value)(_joined(part) for part in value)
    return {key: _joined(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _is_complex(node: fx.Node) -> bool:
    dtype = node.meta.get("dtype")
    return isinstance(dtype, torch.dtype) and dtype.is_complex


class _Writer:
    """The state of rewriting one graph. `parts` are those of each node with complex output."""

    def __init__(self, region: Region, graph: fx.Graph):
        self._region, self._graph = region, graph
        self.parts: dict[fx.Node, Parts] = {}

    def rewrite(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            raise CaptureError(
                "capture", f"its input {node.target!r} is complex", "give it as torch.view_as_real gives"
            )
        with self._graph.inserting_before(node.next if node.op == "get_attr" else node):
            made = self._read(node) if node.op == "get_attr" else self._written(node)
        if isinstance(made, Parts):
            self.parts[node] = made
        else:
            node.replace_all_uses_with(made)
            self._graph.erase_node(node)

    def _read(self, node: fx.Node) -> Parts:
        held = _attribute(self._region, str(node.target))
        if isinstance(held, nn.Parameter):
            return Parts(*(self._graph.call_function(getattr, (node, which)) for which in Parts._fields))
        names = [f"{str(node.target).replace('.', '_')}_{which}" for which in Parts._fields]
        for name, part in zip(names, torch.view_as_real(held).unbind(-1), strict=True):
            if not hasattr(self._region, name):
                self._region.register_buffer(name, part.clone(), persistent=False)
        return Parts(*(self._graph.create_node("get_attr", name) for name in names))

    def _written(self, node: fx.Node) -> Any:
        tracer = fx.proxy.GraphAppendingTracer(self._graph)

        def proxied(value: Any) -> Any:
            if isinstance(value, fx.Node):
                found = self.parts.get(value)
                return fx.Proxy(value, tracer) if found is None else Parts(*(fx.Proxy(each, tracer) for each in found))
            return value

        args, kwargs = _mapped(node.args, proxied), _mapped(node.kwargs, proxied)
        name = _name(node)
        made: Any = NotImplemented
        if name in _RULES:
            made = _RULES[name](*args, **kwargs)
        elif name in _MOVES and any(isinstance(part, Parts) for part in _tensors(args)):
            # Only the sizes of complex numbers count where real ones come out: `x.expand_as(z)`.
            which = Parts._fields if _is_complex(node) else Parts._fields[:1]
            parts = [_called(node, name, _picked(args, each), _picked(kwargs, each)) for each in which]
            made = Parts(*parts) if _is_complex(node) else parts[0]
        if made is NotImplemented:
            given_args = (_resolved(node), *_mapped((args, kwargs), _noded))
            given = self._graph.create_node("call_function", in_reals, given_args, name=f"{node.name}_in_reals")
            whole: Any = fx.Proxy(given, tracer)
            made = Parts(whole[..., 0], whole[..., 1]) if _is_complex(node) else whole
        return _mapped(made, _noded)


def _noded(value: Any) -> Any:
    return value.node if isinstance(value, fx.Proxy) else value


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with its leaves changed; parts of complex numbers stay together."""
    if isinstance(value, Parts):
        return Parts(*(_mapped(part, change) for part in value))
    if isinstance(value, (list, tuple)):
        parts = [_mapped(part, change) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, slice):
        return slice(*(_mapped(end, change) for end in (value.start, value.stop, value.step)))
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    return change(value)


def _tensors(value: Any) -> list[Any]:
    """The leaves of lists and tuples."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Parts):
        return [leaf for part in value for leaf in _tensors(part)]
    return [value]


def _picked(value: Any, which: str) -> Any:
    """One part of all complex numbers in `value`."""
    if isinstance(value, Parts):
        return getattr(value, which)
    if isinstance(value, (list, tuple)):
        return type(value)(_picked(part, which) for part in value)
    return {key: _picked(part, which) for key, part in value.items()} if isinstance(value, Mapping) else value


def _name(node: fx.Node) -> str:
    if node.target is getattr:
        return str(node.args[1])
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))


def _resolved(node: fx.Node) -> str:
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    found: str | None = resolve_name(node.target) if node.op == "call_function" else None
    if found is None:
        raise CaptureError(
            "capture", f"{_name(node)} of complex numbers", "compute with their real and imaginary parts"
        )
    return found


def _attribute(holder: Any, path: str) -> Any:
    return operator.attrgetter(path)(holder)


# --- operations on the parts


def _called(node: fx.Node, name: str, args: Any, kwargs: Any) -> Any:
    if name == "view":
        return args[0].reshape(*args[1:])  # a part does not lie in one piece
    if node.op == "call_method":
        return getattr(args[0], name)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _both(value: Any) -> Parts:
    if isinstance(value, complex):
        return Parts(value.real, value.imag)
    return value if isinstance(value, Parts) else Parts(value, None)


def _plus(left: Any, right: Any) -> Any:
    return right if left is None else left if right is None else left + right


def _minus(left: Any, right: Any) -> Any:
    return left if right is None else -right if left is None else left - right


def _times(left: Any, right: Any, product: Callable[[Any, Any], Any]) -> Any:
    return None if left is None or right is None else product(left, right)


def _product(product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(left: Any, right: Any) -> Any:
        a, b = _both(left), _both(right)
        real = _minus(_times(a.real, b.real, product), _times(a.imag, b.imag, product))
        return Parts(real, _plus(_times(a.real, b.imag, product), _times(a.imag, b.real, product)))

    return rule


def _add(left: Any, right: Any) -> Any:
    a, b = _both(left), _both(right)
    return Parts(a.real + b.real, _plus(a.imag, b.imag))


def _sub(left: Any, right: Any) -> Any:
    a, b = _both(left), _both(right)
    return Parts(a.real - b.real, _minus(a.imag, b.imag))


def _div(left: Any, right: Any) -> Any:
    if isinstance(right, (Parts, complex)):
        return NotImplemented
    return Parts(left.real / right, left.imag / right)


def _abs(value: Parts) -> Any:
    # Not by products: squares of small numbers are less than a step of their grid.
    return torch.linalg.vector_norm(torch.stack([value.real, value.imag], -1), dim=-1)


def _polar(abs: Any, angle: Any) -> Parts:  # noqa: A002 - torch's name
    return Parts(abs * torch.cos(angle), abs * torch.sin(angle))


def _stft(
    input: Any,  # noqa: A002 - torch's name
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    if align_to_window or not return_complex:
        return NotImplemented
    half = onesided is None or onesided
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    given = (input, n_fft, hop, length, window, center, pad_mode, normalized, half)
    made = input.tracer.create_proxy("call_function", stft_channels, given, {})
    count = n_fft // 2 + 1 if half else n_fft
    return Parts(made[..., :count, :], made[..., count:, :])


_RULES: Mapping[str, Callable[..., Any]] = {
    "polar": _polar,
    "complex": Parts,
    "view_as_complex": lambda x: Parts(x[..., 0], x[..., 1]),
    "view_as_real": lambda z: torch.stack([z.real, z.imag], -1),
    "real": lambda z, *_: z.real if isinstance(z, Parts) else z,
    "imag": lambda z, *_: z.imag,
    "conj": lambda z: Parts(z.real, -z.imag),
    "resolve_conj": lambda z: z,
    "abs": _abs,
    "neg": lambda z: Parts(-z.real, -z.imag),
    "mul": _product(operator.mul),
    "matmul": _product(torch.matmul),
    "bmm": _product(torch.matmul),
    "add": _add,
    "sub": _sub,
    "div": _div,
    "truediv": _div,
    "stft": _stft,
}
"""By the names of functions and methods; proxies go in and come out."""

_MOVES = frozenset((
    *("getitem", "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose"),
    *("contiguous", "clone", "detach", "expand", "expand_as", "repeat", "narrow", "select", "roll", "flip", "cat"),
    *("concat", "stack", "sum", "mean", "repeat_interleave", "index_select", "movedim", "swapaxes", "zeros_like"),
))  # fmt: skip
"""What is done to the parts alike."""
