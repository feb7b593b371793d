"""ONNX operations in float32 as torch computes them: what an engine runs between a DequantizeLinear and a
QuantizeLinear, and what only moves values and so runs on codes as well.

Every function takes the operation and one tensor for each of its inputs, None for an absent one. They follow ONNX
Runtime to the last bit where they can; those of `detent.deploy.torch_functions` are what torch's compilers take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.deploy import Op, QdqGraph
from detent.deploy.torch_elementwise import BINARY, UNARY
from detent.errors import DeployError
from detent.twin.arithmetic import Kernel
from detent.twin.float_moves import MOVE_OPS
from detent.twin.float_windows import WINDOW_OPS
from detent.twin.foreign import foreign_kernel

__all__ = ["FLOAT_OPS", "MOVES", "float_kernel", "only_moves"]

MOVES = frozenset(MOVE_OPS) - {"Concat", "Pad", "Shape", "Where"} | {"MaxPool", "GlobalMaxPool", "Identity"}
"""Operations with one data input whose output values are input values (`Resize` if its mode is nearest)."""


def only_moves(op: Op) -> bool:
    """Whether the values that `op` gives are values of its first input."""
    return op.type in MOVES and (op.type != "Resize" or op.attributes.get("mode", "nearest") == "nearest")


def float_kernel(graph: QdqGraph, op: Op) -> Kernel:
    """The function of `op`, on one tensor for each of its inputs. One that is not in the table is run by ONNX Runtime;
    an operation of another domain than ONNX's is refused."""
    if op.domain not in ("", "ai.onnx", "com.microsoft"):
        raise DeployError(
            f"compute {op.domain}.{op.type} {op.name!r}",
            f"the twin has no such operation, as of opset {graph.opset}",
            "leave it out of the network that is verified, or write it with operations of ONNX",
        )
    if op.type not in FLOAT_OPS:
        return foreign_kernel(graph, op)
    return partial(FLOAT_OPS[op.type], op)


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    return lambda _op, a, b: function(a, b)


def _unary(function: Callable[[Tensor], Tensor]) -> Kernel:
    return lambda _op, x: function(x)


def _clip(op: Op, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    least = op.attributes.get("min") if low is None else low.item()
    greatest = op.attributes.get("max") if high is None else high.item()
    return x if least is None and greatest is None else x.clamp(least, greatest)


def _gemm(op: Op, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = float(op.attributes.get("alpha", 1.0)), float(op.attributes.get("beta", 1.0))
    a = a.mT if op.attributes.get("transA") else a
    b = b.mT if op.attributes.get("transB") else b
    product = a @ b if alpha == 1 else alpha * (a @ b)
    if c is None:
        return product
    return product + (c if beta == 1 else beta * c)


def _hard_sigmoid(op: Op, x: Tensor) -> Tensor:
    alpha, beta = float(op.attributes.get("alpha", 0.2)), float(op.attributes.get("beta", 0.5))
    return (x * alpha + beta).clamp_(0, 1)


def _hard_swish(_op: Op, x: Tensor) -> Tensor:
    return x * (x * (1 / 6) + 0.5).clamp_(0, 1)


def _softmax(op: Op, x: Tensor) -> Tensor:
    return x.softmax(int(op.attributes.get("axis", -1)))


def _gelu(op: Op, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=str(op.attributes.get("approximate", "none")))


def _prelu(_op: Op, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _layer_norm(op: Op, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    axis = int(op.attributes.get("axis", -1)) % x.ndim
    shape = x.shape[axis:]
    shift = None if bias is None else bias.expand(shape)
    return F.layer_norm(x, shape, scale.expand(shape), shift, float(op.attributes.get("epsilon", 1e-5)))


def _batch_norm(op: Op, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, float(op.attributes.get("epsilon", 1e-5)))


def _instance_norm(op: Op, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, None, None, scale, bias, True, 0.0, float(op.attributes.get("epsilon", 1e-5)))


def _group_norm(op: Op, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, int(op.attributes["num_groups"]), scale, bias, float(op.attributes.get("epsilon", 1e-5)))


def _reduce(function: Callable[..., Tensor]) -> Kernel:
    def reduce(op: Op, x: Tensor, axes: Tensor | None = None) -> Tensor:
        given = op.attributes.get("axes") if axes is None else axes.tolist()
        if not given and op.attributes.get("noop_with_empty_axes"):
            return x
        return function(x, dim=tuple(given or range(x.ndim)), keepdim=bool(op.attributes.get("keepdims", 1)))

    return reduce


_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
}
"""By their numbers in ONNX."""


def _cast(op: Op, x: Tensor) -> Tensor:
    kind = int(op.attributes["to"])
    if kind not in _TYPES:
        raise DeployError(
            f"compute Cast {op.name!r}", f"it casts to the ONNX type {kind}", "cast to float32, float16 or integers"
        )
    return x.to(_TYPES[kind])


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    def fold(_op: Op, first: Tensor, *rest: Tensor) -> Tensor:
        for each in rest:
            first = function(first, each)
        return first

    return fold


_OWN: dict[str, Kernel] = {
    **{name: _unary(function) for name, function in UNARY.items()},
    **{name: _binary(function) for name, function in BINARY.items()},
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Dropout": lambda _op, x, *_rest: x,
    "Elu": lambda op, x: F.elu(x, float(op.attributes.get("alpha", 1.0))),
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": lambda _op, x: x,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda op, x: F.leaky_relu(x, float(op.attributes.get("alpha", 0.01))),
    "LogSoftmax": lambda op, x: x.log_softmax(int(op.attributes.get("axis", -1))),
    "Max": _variadic(torch.maximum),
    "Mean": lambda _op, *xs: sum(xs[1:], xs[0]) / len(xs),
    "Min": _variadic(torch.minimum),
    "PRelu": _prelu,
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceSum": _reduce(torch.sum),
    "Softmax": _softmax,
    "Sum": _variadic(torch.add),
}

FLOAT_OPS: Mapping[str, Callable[..., Any]] = {**MOVE_OPS, **WINDOW_OPS, **_OWN}
