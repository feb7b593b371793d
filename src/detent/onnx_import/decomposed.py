"""A layer norm that a file has in single steps, as exporters wrote it before opset 17, is `nn.LayerNorm` again.

    (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias

Quantized step by step it would lose most of its precision: the squares span twice the range of `x` in powers of two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from detent.onnx_import.builder import Constant
from detent.onnx_import.call import Call
from detent.onnx_import.op import Op

__all__ = ["layer_norm"]


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
    inner = [name for node in nodes if (name := call.builder.tensors.get(node.name))]
    readers = [reader for name in inner for reader in call.readers(name)]
    # x - mean is read twice, the others once: nobody else takes a step, and none is on a grid of its own.
    if len(inner) != len(nodes) or len(readers) != len(nodes) + 1 or call.builder.encodings.keys() & set(inner):
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
    """The tensor that is normalised, the number under the root, and the steps in their order."""
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
    """What a function is taken of, if the node is a call of it."""
    if node is None or node.target is not function or not isinstance(node.args[0], fx.Node):
        return None
    return node.args[0]


def _is_square(call: Call, node: fx.Node, of: fx.Node) -> bool:
    if node.target is torch.mul:
        return node.args[0] is of and node.args[1] is of
    module = call.builder.root.get_submodule(str(node.target)) if node.op == "call_module" else None
    power = node.target is torch.pow or (isinstance(module, Op) and module.function.__name__ == "power")
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
