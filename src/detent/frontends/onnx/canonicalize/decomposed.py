"""Fuses operations that exporters decompose, as they were in the code that was exported.

- a layer norm, as exporters wrote it before opset 17: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
- a norm by the root of the mean square: x / sqrt(mean(x^2) + eps) * weight
- an activation function, such as a GELU before opset 20.

Quantized step by step they would lose most of their precision: squares span twice the range of `x` in powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from onnx import NodeProto, helper
from torch import fx, nn

from detent import ir
from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call
from detent.frontends.onnx.canonicalize.functions import Steps, function_of, own_swish
from detent.frontends.onnx.onnx_function import OnnxFunction
from detent.ir import Operand

__all__ = ["fused_function", "layer_norm", "rms_norm"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Gelu": F.gelu,
    "Mish": F.mish,
    "HardSwish": F.hardswish,
    "HardSigmoid": F.hardsigmoid,
    "Softplus": F.softplus,
    "LeakyRelu": F.leaky_relu,
    "Swish": F.silu,
}
_ARGUMENTS = {("Gelu", "approximate"): "approximate", ("LeakyRelu", "alpha"): "negative_slope"}
"""What torch calls an attribute; those that are not here are torch's own numbers."""


def fused_function(call: Call) -> fx.Node | None:
    """The activation function that ends in this node, if there is one."""
    builder = call.builder

    def number(read: Operand) -> Any:
        value = builder.values.get(read.tensor)
        small = isinstance(value, Constant) and value.stored is None and value.tensor.numel() == 1
        return value.tensor.double().numpy() if isinstance(value, Constant) and small else None

    def producer(read: Operand) -> ir.Op | None:
        node = builder.makers.get(read.tensor)
        return None if node is None else _step(node)

    known = Steps(producer, lambda name: [next(iter(node.output), "") for node in call.readers(name)], number)
    last = _step(call.node)
    found = function_of(last, known) or own_swish(last, known)
    if found is None or not isinstance(x := builder.values.get(found.x.tensor), fx.Node):
        return None
    info = builder.inference.info(found.x.tensor)
    if info.dtype != torch.float32 or len(info.dims or ()) < found.axes:
        return None
    inner = [op.outputs[0] for op in found.ops[:-1]]
    steps = [value for name in inner if isinstance(value := builder.values.get(name), fx.Node)]
    if any(isinstance(builder.values.get(name), Constant) for name in inner):
        return None
    call.names = (*(name for node in steps for name in builder.nodes[node.name]), *call.names)
    names = {name: _ARGUMENTS.get((found.type, name)) for name in found.attributes}
    kwargs = {torch_name: found.attributes[name] for name, torch_name in names.items() if torch_name}
    made: fx.Node = call.apply(_FUNCTIONS[found.type], x, **kwargs)
    for node in reversed(steps):
        builder.erase(node)
    for name in inner:  # these may be steps of a function that is yet longer
        builder.values.pop(name, None)
    return made


def _step(node: NodeProto) -> ir.Op:
    """A node as an operation on float tensors."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    inputs = tuple(Operand(name) if name else None for name in node.input)
    return ir.Op(node.op_type, node.name, inputs, tuple(node.output), attributes)


def rms_norm(call: Call) -> Any | None:
    """The module, if the product or quotient that is converted is that of a norm by the root of the mean square."""
    pairs = [(0, 1)] if call.node.op_type == "Div" else [(0, 1), (1, 0)]
    for index, other in pairs:
        x, factor, dims = call.inputs[index], call.inputs[other], call.dims(index)
        if not isinstance(x, fx.Node) or not isinstance(factor, fx.Node) or not dims or not isinstance(dims[-1], int):
            continue
        steps = _root_mean_square(call, x, factor, inverse=call.node.op_type == "Mul")
        if steps is None:
            continue
        eps, nodes = steps
        if not _is_last(nodes[1], len(dims)) or not _only_read_inside(call, nodes, extra=0):
            return None
        call.names = (*(name for node in nodes for name in call.builder.nodes[node.name]), *call.names)
        weight = _follower(call, "Mul", dims[-1])
        module = nn.RMSNorm(dims[-1], eps, weight is not None, device="meta")
        if weight is not None:
            module.weight = call.parameter(weight)
        made = call.module(module, x, weight=weight)
        for node in reversed(nodes):
            call.builder.erase(node)
        return made
    return None


def _root_mean_square(call: Call, x: fx.Node, factor: fx.Node, *, inverse: bool) -> tuple[float, list[fx.Node]] | None:
    """The number under the root, and the steps in their order; with `inverse` the factor is one through the root."""
    root: fx.Node | None = factor
    if inverse:
        root = _argument(factor, torch.reciprocal)
        if root is None and factor.target is torch.div and _number(call, factor.args[0]) == 1:
            root = factor.args[1] if isinstance(factor.args[1], fx.Node) else None
    total = _argument(root, torch.sqrt)
    mean = _argument(total, torch.add)
    squares = _argument(mean, torch.mean)
    eps = _number(call, total.args[1]) if total is not None and len(total.args) > 1 else None
    if root is None or total is None or mean is None or squares is None or eps is None or eps <= 0:
        return None
    if not _is_square(call, squares, x):
        return None
    return eps, [squares, mean, total, root, *([factor] if inverse else [])]


def _only_read_inside(call: Call, nodes: list[fx.Node], *, extra: int) -> bool:
    """Whether intermediate results have no other readers and are not quantized; `extra` of them are read twice."""
    inner = [name for node in nodes if (name := call.builder.tensors.get(node.name))]
    readers = [reader for name in inner for reader in call.readers(name)]
    alone = len(inner) == len(nodes) and len(readers) == len(nodes) + extra
    return alone and not call.builder.encodings.keys() & set(inner)


def layer_norm(call: Call) -> Any | None:
    """The module, if the division that is converted is the one of a layer norm over the last axis."""
    above, below = call.inputs[0], call.inputs[1]
    if not isinstance(above, fx.Node) or not isinstance(below, fx.Node):
        return None
    steps = _steps(call, above, below)
    dims = call.dims(0)
    if steps is None or dims is None or not isinstance(dims[-1], int):
        return None
    x, eps, nodes = steps
    if any(not _is_last(node, len(dims)) for node in nodes if node.target is torch.mean):
        return None
    if not _only_read_inside(call, nodes, extra=1):  # x - mean
        return None
    call.names = (*(name for node in nodes for name in call.builder.nodes[node.name]), *call.names)
    weight, bias = _follower(call, "Mul", dims[-1]), None
    if weight is not None:
        bias = _follower(call, "Add", dims[-1])
    module = nn.LayerNorm(dims[-1], eps, weight is not None, bias is not None, device="meta")
    if weight is not None:
        module.weight = call.parameter(weight)
    if bias is not None:
        module.bias = call.parameter(bias)
    made = call.module(module, x, weight=weight, bias=bias)
    for node in reversed(nodes):
        call.builder.erase(node)
    return made


def _steps(call: Call, above: fx.Node, below: fx.Node) -> tuple[fx.Node, float, list[fx.Node]] | None:
    """The tensor that is normalized, the number under the root, and the steps in their order."""
    total = _argument(below, torch.sqrt)
    variance = _argument(total, torch.add)
    squares = _argument(variance, torch.mean)
    mean = above.args[1] if above.target is torch.sub else None
    x = _argument(above, torch.sub)
    if squares is None or not isinstance(mean, fx.Node) or _argument(mean, torch.mean) is not x or x is None:
        return None
    eps = _number(call, total.args[1]) if total is not None else None
    if eps is None or eps <= 0 or not _is_square(call, squares, above):
        return None
    assert total is not None
    assert variance is not None
    return x, eps, [mean, above, squares, variance, total, below]


def _argument(node: fx.Node | None, function: Any) -> fx.Node | None:
    """The argument of a function, if the node calls it."""
    if node is None or node.target is not function or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0]


def _is_square(call: Call, node: fx.Node, of: fx.Node) -> bool:
    if node.target is torch.mul:
        return node.args[0] is of and node.args[1] is of
    module = call.builder.root.get_submodule(str(node.target)) if node.op == "call_module" else None
    power = node.target is torch.pow or (isinstance(module, OnnxFunction) and module.function.__name__ == "power")
    return power and node.args[0] is of and _number(call, node.args[1]) == 2


def _number(call: Call, value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, fx.Node) or value.op != "get_attr":
        return None
    held = getattr(call.builder.root, str(value.target))
    return float(held) if held.numel() == 1 else None


def _is_last(mean: fx.Node, rank: int) -> bool:
    axes = mean.kwargs.get("dim")
    return isinstance(axes, tuple) and axes in ((-1,), (rank - 1,)) and mean.kwargs.get("keepdim") is True


def _follower(call: Call, op_type: str, size: int) -> Constant | None:
    """The vector that the next operation takes, which is then part of this one."""
    follower = call.absorbed[-1] if call.absorbed else call.node
    after = call.readers(follower.output[0])
    if len(after) != 1 or after[0].op_type != op_type or len(set(after[0].input)) != 2:
        return None
    other = 1 if after[0].input[0] == follower.output[0] else 0
    held = call.of_next(after[0], other)
    if not isinstance(held, Constant) or tuple(held.tensor.shape) != (size,) or not held.tensor.is_floating_point():
        return None
    call.absorb(after[0])
    return held
