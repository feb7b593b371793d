"""Unary and binary elementwise operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Op, clip_bounds
from detent.targets.ncnn.file.lowering import Dims, NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value

__all__ = [
    "BINARY",
    "LARGEST",
    "TRUNCATE",
    "UNARY",
    "binary",
    "broadcast",
    "clip",
    "finite_bounds",
    "named",
    "prelu",
    "scalar",
]

Array = npt.NDArray[Any]

LARGEST = float(np.finfo(np.float32).max)

BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5}
_REVERSED = {"Sub": 7, "Div": 8}
"""The same with the scalar on the left."""

UNARY = {
    "Abs": 0,
    "Neg": 1,
    "Floor": 2,
    "Ceil": 3,
    "Sqrt": 5,
    "Exp": 7,
    "Log": 8,
    "Sin": 9,
    "Cos": 10,
    "Tan": 11,
    "Reciprocal": 15,
    "Round": 18,
    "Sign": 20,
}

TRUNCATE = 19

_NAMED: dict[str, tuple[str, dict[int, str | float]]] = {
    "Relu": ("ReLU", {}),
    "Sigmoid": ("Sigmoid", {}),
    "Tanh": ("TanH", {}),
    "Softplus": ("Softplus", {}),
    "Mish": ("Mish", {}),
    "HardSwish": ("HardSwish", {0: 1 / 6, 1: 0.5}),
    "HardSigmoid": ("HardSigmoid", {0: "alpha", 1: "beta"}),
    "LeakyRelu": ("ReLU", {0: "alpha"}),
    "Elu": ("ELU", {0: "alpha"}),
    "Celu": ("CELU", {0: "alpha"}),
    "Selu": ("SELU", {0: "alpha", 1: "gamma"}),
}
"""ncnn's layer, and its parameters by id: the ONNX attribute, or a number."""


def named(low: NcnnLowering, op: Op) -> None:
    """A unary function for which ncnn has a layer."""
    source = [low.blob(low.data(op))]
    if op.type in UNARY:
        low.layer("UnaryOp", op, source, {0: UNARY[op.type]})
    elif op.type == "Gelu":
        low.layer("GELU", op, source, {0: int(op.attribute("approximate") == "tanh")})
    else:
        type_, held = _NAMED[op.type]
        values = {key: op.attribute(value) if isinstance(value, str) else value for key, value in held.items()}
        low.layer(type_, op, source, {key: float(value) for key, value in values.items()})


def clip(low: NcnnLowering, op: Op) -> None:
    least, greatest = finite_bounds(low, op)
    low.layer("Clip", op, [low.blob(low.data(op))], {0: least, 1: greatest})


def finite_bounds(low: NcnnLowering, op: Op) -> tuple[float, float]:
    """The bounds of a Clip, which must be constant; a missing bound is the limit of float32."""
    bounds = clip_bounds(low.graph, op)
    if bounds is None:
        refuse(op, "its bounds are computed", "give constant bounds")
    return max(bounds[0], -LARGEST), min(bounds[1], LARGEST)


def prelu(low: NcnnLowering, op: Op) -> None:
    """Slopes for each channel, or one for all."""
    slope, tensor = low.constant(op.inputs[1]), low.data(op)
    if slope is None:
        refuse(op, "its slopes are computed", "give constant slopes")
    shape, dims = slope.shape, low.dims(tensor)
    shape = shape[1:] if len(shape) == len(dims) + 1 and shape[0] == 1 else shape
    along_channels = slope.size == 1 or (slope.size == shape[0] == dims[0] and len(shape) == len(dims))
    if not along_channels:
        refuse(op, f"slopes of shape {slope.shape}", "give one slope, or one for each channel")
    low.layer("PReLU", op, [low.blob(tensor)], {0: slope.size}, [slope.astype(np.float32).ravel()])


def binary(low: NcnnLowering, op: Op) -> None:
    """Two tensors that broadcast as in numpy, or a tensor and a scalar."""
    if len(op.inputs) != 2:
        refuse(op, f"it has {len(op.inputs)} inputs", "give it two")
    if op.type == "Pow":
        _power(low, op)
        return
    if op.type == "Div" and not low.is_float(op.outputs[0]):
        _whole_quotient(low, op)
        return
    first, second = low.data(op, 0), low.data(op, 1)
    left, right = low.constant(op.inputs[0]), low.constant(op.inputs[1])
    kind = BINARY[op.type]
    if right is not None and right.size == 1 and low.dims(first) == low.dims(op.outputs[0]):
        low.layer("BinaryOp", op, [low.blob(first)], scalar(kind, right))
    elif left is not None and left.size == 1 and low.dims(second) == low.dims(op.outputs[0]):
        low.layer("BinaryOp", op, [low.blob(second)], scalar(_REVERSED.get(op.type, kind), left))
    else:
        blobs = [broadcast(low, op, tensor) for tensor in (first, second)]
        low.layer("BinaryOp", op, blobs, {0: kind})


def _whole_quotient(low: NcnnLowering, op: Op) -> None:
    """Of integers by a constant. ncnn multiplies with a reciprocal, so the quotient is taken half a step from where a
    whole number begins."""
    divisor = low.constant(op.inputs[1])
    if divisor is None or divisor.size != 1 or not divisor.any():
        refuse(op, "integers are divided by a computed number, or by several", "divide by one constant")
    source, names = low.blob(low.data(op)), [f"{op.outputs[0]}:{part}" for part in ("sign", "half", "moved", "real")]
    low.part("UnaryOp", op, "sign", [source], names[:1], {0: UNARY["Sign"]})
    low.part("BinaryOp", op, "half", names[:1], names[1:2], scalar(BINARY["Mul"], np.array(0.5)))
    low.part("BinaryOp", op, "moved", [source, names[1]], names[2:3], {0: BINARY["Add"]})
    low.part("BinaryOp", op, "real", names[2:3], names[3:], scalar(BINARY["Div"], divisor))
    low.layer("UnaryOp", op, names[3:], {0: TRUNCATE})


def _power(low: NcnnLowering, op: Op) -> None:
    """ncnn computes a power from a logarithm, wrong for what is below zero: only the square and the root are safe."""
    exponent = low.constant(op.inputs[1])
    kind = None
    if exponent is not None and exponent.size == 1:
        kind = {2.0: 4, 0.5: UNARY["Sqrt"]}.get(float(exponent.item()))
    if kind is None:
        refuse(op, "its exponent is computed, or neither 2 nor 0.5", "multiply, or take the root")
    low.layer("UnaryOp", op, [low.blob(low.data(op))], {0: kind})


def scalar(kind: int, number: Array) -> dict[int, Value]:
    return {0: kind, 1: 1, 2: float(number.reshape(()))}


def broadcast(low: NcnnLowering, op: Op, tensor: str) -> str:
    """A blob with as many dimensions as the result: ncnn guesses which axes are meant if there are fewer."""
    dims = low.dims(op.outputs[0])
    rank = len(low.shape(op.outputs[0])) - low.drops(op.outputs[0])
    if rank != len(dims):
        if low.shape(tensor) != low.shape(op.outputs[0]):
            refuse(op, f"it broadcasts tensors of {rank} dimensions", "ncnn has 4 at most")
        return low.blob(tensor)
    shape = low.shape(tensor)
    aligned: Dims = (1,) * (rank - len(shape)) + shape[max(len(shape) - rank, 0) :]
    return low.view(tensor, aligned)
