"""`If`, `Loop`, `Scan`: takes a branch that is known; keeps what depends on data as one float operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import GraphProto
from torch import Tensor, fx

from detent.errors import RunError
from detent.frontends.onnx.builder import Value
from detent.frontends.onnx.call import Call, Converter
from detent.ir.one_node import OneNode, captured_names
from detent.traversal import reachable

__all__ = ["CONVERTERS", "branch_of", "one_operation"]

_NEWEST = 26
"""The opset that ONNX Runtime 1.31 knows."""


def branch_of(call: Call) -> GraphProto | None:
    """The branch that an `If` takes; None if it depends on data. Where sizes or inputs of one number decide it, it is
    refused until these are fixed: the layers of a branch are quantized, those of an `If` are not."""
    condition = call.constant(0)
    if condition is None or condition.numel() != 1:
        if call.how_to_fix(values=True) and _decided_by_sizes(call):
            call.refuse("its condition is computed by the network", call.how_to_fix(values=True))
        return None
    attribute = call.attribute("then_branch" if bool(condition) else "else_branch")
    if attribute is None or not attribute.HasField("g"):
        call.refuse("the branch it takes is missing", "export the model again")
    return attribute.g


def _decided_by_sizes(call: Call) -> bool:
    """Whether the condition is computed from sizes and inputs of one number alone."""
    condition, single = call.value(0), set(call.builder.inference.single)
    if not isinstance(condition, fx.Node):
        return False

    def before(node: fx.Node) -> list[fx.Node]:
        return [] if set(node.meta.get("types", ())) & {"Shape", "Size"} else node.all_input_nodes

    read = {call.builder.tensors[node.name] for node in reachable([condition], before) if node.op == "placeholder"}
    return read <= single


def one_operation(call: Call) -> tuple[Any, ...]:
    """A node with graphs inside, as ONNX Runtime computes it."""
    if call.opset > _NEWEST:
        call.refuse(f"ONNX Runtime does not compute it in opset {call.opset}", f"convert the model to opset {_NEWEST}")
    captured: list[Value] = []
    for name in captured_names(call.node):
        if name not in call.builder.values:
            call.refuse(f"nothing computes {name!r}, which the graph inside of it reads", "export the model again")
        captured.append(call.builder.values[name])
    inputs = [call.optional(index) for index in range(len(call.inputs))]
    return call.parts(run_node, *inputs, *captured, node=OneNode(call.node, call.opset))


def run_node(*inputs: Tensor | None, node: OneNode) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in inputs):
        found = _WithoutGradient.apply(node, *inputs)  # type: ignore[no-untyped-call]
    else:
        found = _computed(node, inputs)
    return tuple(found)


def _computed(node: OneNode, inputs: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    found = node(*(None if value is None else value.detach().numpy() for value in inputs))
    if not all(isinstance(value, np.ndarray) for value in found):
        raise RunError(f"run {node}", "it gives a sequence", "give a model whose operations give tensors")
    values = iter(found)
    return tuple(torch.from_numpy(next(values)) if name else torch.empty(0) for name in node.node.output)


class _WithoutGradient(torch.autograd.Function):
    """Runs; only who asks for the gradient learns that there is none."""

    @staticmethod
    def forward(ctx: Any, node: OneNode, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        ctx.node = node
        return _computed(node, inputs)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RunError(
            f"the gradient of {ctx.node}",
            "ONNX Runtime computes it, without gradients",
            "train what is behind it: set requires_grad of the parameters before it to False",
        )


CONVERTERS: dict[str, Converter] = {"Loop": one_operation, "Scan": one_operation}
