"""One ONNX node for its converter: its inputs, its attributes, and methods that add torch operations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from onnx import AttributeProto, NodeProto
from torch import Tensor, fx, nn

from detent.errors import OnnxError
from detent.frontends.onnx.builder import Constant, FxBuilder, Value
from detent.frontends.onnx.onnx_function import OnnxFunction
from detent.ir import schema_defaults

__all__ = ["Call", "Converter", "label"]


def label(node: NodeProto) -> str:
    """The node's name, or that of its first output."""
    return node.name or next((name for name in node.output if name), node.op_type)


class Call:
    """A converter is called with one of these and returns the values of the outputs.

    `outputs` are the names those values get; `absorb` replaces them by the next node's.
    """

    def __init__(self, node: NodeProto, builder: FxBuilder, opset: int, users: Mapping[str, Sequence[NodeProto]]):
        self.node, self.opset = node, opset
        self.outputs = list(node.output)
        self.names: tuple[str, ...] = (label(node),)
        self.absorbed: list[NodeProto] = []
        self._builder, self._users = builder, users
        self._attributes = {attribute.name: attribute for attribute in node.attribute}
        self.inputs: list[Value | None] = [self._value(name) if name else None for name in node.input]

    # ---- inputs ----

    def _value(self, name: str) -> Value:
        if name not in self._builder.values:
            self.refuse(
                f"it reads {name!r}, which no input, initializer or node before it gives",
                "the graph has a cycle, is not in order or lacks a part: export it again",
            )
        return self._builder.values[name]

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            self.refuse(f"its input {index} is missing", "export the model again")
        if isinstance(value, Constant) and value.stored is not None:
            self.refuse(f"its input {index} has the type {value.stored}", "only Q/DQ nodes may have such")
        return value

    def optional(self, index: int) -> Value | None:
        return self.value(index) if self.has(index) else None

    def given(self) -> list[Value]:
        return [self.value(index) for index in range(len(self.inputs))]

    def constant(self, index: int) -> Tensor | None:
        """The tensor, if the input exists and is known at import."""
        value = self.optional(index)
        return value.tensor if isinstance(value, Constant) else None

    def known(self, index: int, what: str) -> Tensor:
        """The tensor of an input that must be known at import."""
        found = self.constant(index)
        if found is None:
            self.refuse(f"its {what} is computed by the network", f"export the model with a constant {what}")
        return found

    def numbers(self, index: int) -> list[int] | None:
        """The integers of a constant input; None if it is absent or computed."""
        found = self.constant(index)
        return None if found is None else [int(number) for number in found.reshape(-1).tolist()]

    def dims(self, index: int) -> tuple[int | None, ...] | None:
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Constant):
            return tuple(value.tensor.shape)
        return None if value is None else self._builder.inference.info(self.node.input[index]).dims

    def rank(self, index: int = 0) -> int | None:
        dims = self.dims(index)
        return None if dims is None else len(dims)

    def dtype(self, index: int = 0) -> torch.dtype | None:
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Constant):
            return value.tensor.dtype
        return None if value is None else self._builder.inference.info(self.node.input[index]).dtype

    def is_real(self, index: int = 0) -> bool:
        """Whether it is known to be floating point."""
        dtype = self.dtype(index)
        return dtype is not None and dtype.is_floating_point

    def used(self, output: int) -> bool:
        return output < len(self.node.output) and bool(self.node.output[output])

    # ---- attributes ----

    def _attribute(self, name: str, kind: int) -> AttributeProto | None:
        attribute = self._attributes.get(name)
        if attribute is not None and (
            attribute.ref_attr_name or attribute.type not in (kind, AttributeProto.UNDEFINED)
        ):
            self.refuse(f"its attribute {name!r} is of another type than ONNX wants", "export the model again")
        return attribute

    def integer(self, name: str) -> int:
        """An integer attribute; ONNX's default, or 0, if the node does not have it."""
        attribute = self._attribute(name, AttributeProto.INT)
        return int(self._default(name) or 0) if attribute is None else int(attribute.i)

    def real(self, name: str) -> float:
        attribute = self._attribute(name, AttributeProto.FLOAT)
        return float(self._default(name) or 0.0) if attribute is None else float(attribute.f)

    def text(self, name: str, default: str = "") -> str:
        """A text attribute; `default` is for operators that do not have it."""
        attribute = self._attribute(name, AttributeProto.STRING)
        return str(self._default(name) or default) if attribute is None else attribute.s.decode("utf-8", "replace")

    def _default(self, name: str) -> Any:
        """The default in the model's opset, or in the newest if that opset does not have the operator or attribute."""
        op_type = self.node.op_type
        return {**schema_defaults(op_type), **schema_defaults(op_type, self.opset)}.get(name)

    def integers(self, name: str) -> list[int] | None:
        attribute = self._attribute(name, AttributeProto.INTS)
        return None if attribute is None else [int(number) for number in attribute.ints]

    def reals(self, name: str) -> list[float] | None:
        attribute = self._attribute(name, AttributeProto.FLOATS)
        return None if attribute is None else [float(number) for number in attribute.floats]

    def texts(self, name: str) -> list[str] | None:
        attribute = self._attribute(name, AttributeProto.STRINGS)
        return None if attribute is None else [text.decode("utf-8", "replace") for text in attribute.strings]

    def attribute(self, name: str) -> AttributeProto | None:
        return self._attributes.get(name)

    # ---- results ----

    def apply(self, function: Callable[..., Any], *args: Any, step: str = "", **kwargs: Any) -> Any:
        """A torch function. With `step` it is an intermediate operation with that name."""
        return self._builder.function(self._named(step), function, args, kwargs)

    def op(
        self, compute: Callable[..., Any], /, *inputs: Value | None, kind: str = "", step: str = "", **attributes: Any
    ) -> Any:
        """A function of this package, of the kind that the table of kinds has for it. `step` as in `apply`."""
        path = f"{label(self.node)}_{step}" if step else label(self.node)
        made = OnnxFunction(compute, kind, attributes, operator=self.node.op_type)
        return self._builder.op(self._named(step), path, made, inputs)

    def parts(
        self, compute: Callable[..., Any], /, *inputs: Value | None, kind: str = "", **attributes: Any
    ) -> tuple[Any, ...]:
        """A function of this package with several outputs."""
        path = label(self.node)
        made = OnnxFunction(compute, kind, attributes, operator=self.node.op_type)
        whole = self._builder.op(f"{self._named('')}_parts", path, made, inputs)
        return self.members(whole)

    def members(self, whole: Any) -> tuple[Any, ...]:
        """The tensors of a node that gives a tuple, one for each output."""
        if not isinstance(whole, fx.Node):
            return tuple(whole)
        return tuple(
            self._builder.function(name, operator.getitem, (whole, index), {}) if name else None
            for index, name in enumerate(self.outputs)
        )

    def module(self, module: nn.Module, *inputs: Value | None, step: str = "", **held: Constant | None) -> fx.Node:
        """A module of torch; `held` are the constants that its parameters and buffers were made from."""
        return self._builder.module(self._named(step), self.names[0], module, inputs, **held)

    def parameter(self, constant: Constant) -> nn.Parameter:
        return self._builder.parameter(constant)

    def users(self) -> Sequence[NodeProto]:
        """The nodes that read the first output."""
        return self._users.get(self.node.output[0], ())

    def next(self, op_type: str) -> NodeProto | None:
        """The only reader of the first output, if it has this type."""
        users = self.users()
        return users[0] if len(users) == 1 and users[0].op_type == op_type else None

    def readers(self, name: str) -> Sequence[NodeProto]:
        """The nodes that read a tensor, and the outputs of the graph that are it."""
        return self._users.get(name, ())

    def absorb(self, node: NodeProto) -> None:
        """Make the result the output of `node`, which is part of the same operation."""
        self.outputs = list(node.output)
        self.names = (*self.names, label(node))
        self.absorbed.append(node)

    def of_next(self, node: NodeProto, index: int) -> Value | None:
        """An input of a following node, if it has been converted by now."""
        return self._builder.values.get(node.input[index])

    @property
    def builder(self) -> FxBuilder:
        return self._builder

    def _named(self, step: str) -> str:
        name = next((name for name in self.outputs if name), label(self.node))
        return f"{name}_{step}" if step else name

    def how_to_fix(self, *, values: bool = False) -> str:
        """The options that fix free sizes of the inputs, and with `values` scalar inputs."""
        known = self.builder.inference
        ways = [f"--size {name}=SIZE" for name in known.free]
        ways += [f"--set {name}=NUMBER" for name in known.single] if values else []
        return f"fix {' or '.join(ways)} (sizes, values of detent.load)" if ways else ""

    def refuse(self, found: str, to_do: str) -> NoReturn:
        raise OnnxError(f"import the {self.node.op_type} node {label(self.node)!r}", found, to_do)


Converter = Callable[[Call], Any]
