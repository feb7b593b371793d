"""A user's autograd Function as operations: its `symbolic` is called with a graph that writes down what it asks for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from detent.errors import DeployError
from detent.ir import Op, Operand

__all__ = ["Applied", "SymbolicGraph", "Value", "applied_in"]


@dataclass(frozen=True)
class Value:
    """A tensor of the graph, by its name."""

    name: str


class SymbolicGraph:
    """The `g` of a `symbolic`: `g.op("domain::Type", *inputs, some_i=1, outputs=1)` appends an operation.

    Inputs are values, or tensors, which become constants. The end of an attribute's name says what it is, as in
    torch: `_i`, `_f`, `_s`, `_t`, one or a list. `stem` begins the names of all that is made.
    """

    def __init__(self, stem: str):
        self.stem = stem
        self.ops: list[Op] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}

    def op(self, opname: str, *raw_args: Any, outputs: int = 1, **attributes: Any) -> Any:
        """The value that the new operation gives, or a tuple of them."""
        domain, _, kind = opname.rpartition("::")
        name = f"{self.stem}/{kind}" if not self.ops else f"{self.stem}/{kind}_{len(self.ops)}"
        made = tuple(f"{name}_output" if outputs == 1 else f"{name}_output_{index}" for index in range(outputs))
        inputs = tuple(Operand(self._named(one, f"{name}_input_{index}")) for index, one in enumerate(raw_args))
        said = dict(_attribute(key, value) for key, value in attributes.items())
        self.ops.append(Op(kind, name, inputs, made, said, domain))
        values = tuple(Value(one) for one in made)
        return values[0] if outputs == 1 else values

    def constant(self, tensor: Tensor, name: str) -> Value:
        self.constants[name] = tensor.detach().cpu().numpy()
        return Value(name)

    def _named(self, given: Any, name: str) -> str:
        if isinstance(given, Tensor):
            return self.constant(given, name).name
        if isinstance(given, Value):
            return given.name
        raise DeployError(
            f"an input {given!r} of g.op for {self.stem!r}", "inputs are values and tensors", "make it an attribute"
        )


_KINDS = {"i": int, "f": float, "s": str}


def _attribute(key: str, value: Any) -> tuple[str, Any]:
    name, _, kind = key.rpartition("_")
    if kind == "t" and name:
        return name, torch.as_tensor(value).cpu().numpy()
    if kind not in _KINDS or not name:
        raise DeployError(f"the attribute {key!r} of g.op", "its name does not end in _i, _f, _s or _t", "say its type")
    cast = _KINDS[kind]
    return name, [cast(one) for one in value] if isinstance(value, (list, tuple)) else cast(value)


@dataclass(frozen=True, eq=False)
class Applied:
    """A Function as it was applied: `arguments[0]` is the tensor to quantize."""

    function: Any
    arguments: tuple[Any, ...]

    def write(self, graph: SymbolicGraph, source: Value) -> Value:
        """What `symbolic` makes of the same arguments, with `source` as the tensor."""
        names = [*inspect.signature(self.function.symbolic).parameters][2:]
        names += [f"argument_{place}" for place in range(len(names), len(self.arguments) - 1)]
        rest = [
            graph.constant(one, f"{graph.stem}/{name}") if isinstance(one, Tensor) else one
            for name, one in zip(names, self.arguments[1:], strict=False)
        ]
        try:
            given = self.function.symbolic(graph, source, *rest)
        except (AttributeError, TypeError) as error:
            raise DeployError(
                f"{self.function.__name__}.symbolic for {graph.stem!r}",
                str(error),
                "take g and as many arguments as forward takes, and make nodes by g.op only",
            ) from error
        if not isinstance(given, Value):
            raise DeployError(f"{self.function.__name__}.symbolic", f"it gives {given!r}", "return what g.op gives")
        return given


def applied_in(module: nn.Module, x: Tensor) -> Applied | None:
    """The Function with a `symbolic` that `module(x)` applies to `x`; None if there is none."""
    with torch.no_grad(), _noting() as calls:
        output = module(x)
    found = [(function, args, result) for function, args, result in calls if hasattr(function, "symbolic")]
    if not found:
        return None
    function, arguments, result = found[0]
    if len(found) > 1 or not torch.equal(arguments[0], x) or not torch.equal(result, output):
        names = ", ".join(function.__name__ for function, _, _ in found)
        raise DeployError(
            f"{type(module).__name__} in ONNX, by the symbolic of {names}",
            "its forward does more than to apply one Function to what it is given",
            "let it give ExampleQuant.apply(X, ...) for the X it is given",
        )
    return Applied(function, arguments)


@contextmanager
def _noting() -> Iterator[list[tuple[Any, tuple[Any, ...], Any]]]:
    """Every Function that is applied, but for those that another one applies: class, arguments, result."""
    base: Any = torch.autograd.Function
    plain = base.__dict__["apply"]
    calls: list[tuple[Any, tuple[Any, ...], Any]] = []
    depth = 0

    def apply(cls: Any, *args: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            result = plain.__func__(cls, *args)
        finally:
            depth -= 1
        if depth == 0:
            calls.append((cls, args, result))
        return result

    base.apply = classmethod(apply)
    try:
        yield calls
    finally:
        base.apply = plain
