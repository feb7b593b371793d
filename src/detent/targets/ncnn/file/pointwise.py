"""Operations on each number, and on pairs of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from detent.ir import Op, clip_bounds
from detent.targets.ncnn.file.lowering import Dims, NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value

__all__ = ["binary", "cast", "clip", "finite_bounds", "named", "prelu", "where"]

Array = npt.NDArray[Any]

_LARGEST = float(np.finfo(np.float32).max)

_BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5}
_REVERSED = {"Sub": 7, "Div": 8}
"""The same with the scalar on the left."""

_UNARY = {
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
}

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
    """A function of one number that ncnn has under a name of its own."""
    source = [low.blob(low.data(op))]
    if op.type in _UNARY:
        low.layer("UnaryOp", op, source, {0: _UNARY[op.type]})
    elif op.type == "Gelu":
        low.layer("GELU", op, source, {0: int(op.attribute("approximate") == "tanh")})
    else:
        type_, held = _NAMED[op.type]
        values = {key: op.attribute(value) if isinstance(value, str) else value for key, value in held.items()}
        low.layer(type_, op, source, {key: float(value) for key, value in values.items()})


def cast(low: NcnnLowering, op: Op) -> None:
    """To float, of what is float already or of flags that the network takes in, which are handed over as floats."""
    port = low.graph.inputs.get(low.data(op))
    if op.attributes["to"] != onnx.TensorProto.FLOAT or (port is not None and port.dtype not in ("bool", "float32")):
        refuse(op, "it turns integers into floats, or floats into integers", "keep integers for indices")
    low.reshape(op)


def clip(low: NcnnLowering, op: Op) -> None:
    least, greatest = finite_bounds(low, op)
    low.layer("Clip", op, [low.blob(low.data(op))], {0: least, 1: greatest})


def finite_bounds(low: NcnnLowering, op: Op) -> tuple[float, float]:
    """The bounds of a Clip, which must be constant; where there is none, the end of float32."""
    bounds = clip_bounds(low.graph, op)
    if bounds is None:
        refuse(op, "its bounds are computed", "give constant bounds")
    return max(bounds[0], -_LARGEST), min(bounds[1], _LARGEST)


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
    """Two tensors of sizes that broadcast as in numpy, or a tensor and a number."""
    if len(op.inputs) != 2:
        refuse(op, f"it has {len(op.inputs)} inputs", "give it two")
    if op.type == "Pow":
        _power(low, op)
        return
    first, second = low.data(op, 0), low.data(op, 1)
    left, right = low.constant(op.inputs[0]), low.constant(op.inputs[1])
    kind = _BINARY[op.type]
    if right is not None and right.size == 1 and low.dims(first) == low.dims(op.outputs[0]):
        low.layer("BinaryOp", op, [low.blob(first)], _scalar(kind, right))
    elif left is not None and left.size == 1 and low.dims(second) == low.dims(op.outputs[0]):
        low.layer("BinaryOp", op, [low.blob(second)], _scalar(_REVERSED.get(op.type, kind), left))
    else:
        blobs = [_broadcast(low, op, tensor) for tensor in (first, second)]
        low.layer("BinaryOp", op, blobs, {0: kind})


def _power(low: NcnnLowering, op: Op) -> None:
    """ncnn computes a power from a logarithm, wrong for what is below zero: only the square and the root are safe."""
    exponent = low.constant(op.inputs[1])
    kind = {2.0: 4, 0.5: _UNARY["Sqrt"]}.get(float(exponent)) if exponent is not None and exponent.size == 1 else None
    if kind is None:
        refuse(op, "its exponent is computed, or neither 2 nor 0.5", "multiply, or take the root")
    low.layer("UnaryOp", op, [low.blob(low.data(op))], {0: kind})


def _scalar(kind: int, number: Array) -> dict[int, Value]:
    return {0: kind, 1: 1, 2: float(number.reshape(()))}


def _broadcast(low: NcnnLowering, op: Op, tensor: str) -> str:
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


def where(low: NcnnLowering, op: Op) -> None:
    """With a constant condition: what is not chosen is held between bounds that are what is chosen instead."""
    condition = low.constant(op.inputs[0])
    if condition is None:
        refuse(op, "its condition is computed", "ncnn compares nothing; add a mask instead")
    chosen = condition.astype(bool)
    held = [low.constant(read) for read in op.inputs[1:3]]
    if held[0] is None and held[1] is None:
        parts = [f"{op.outputs[0]}:part{index}" for index in (1, 2)]
        for index, keep, part in zip((1, 2), (chosen, ~chosen), parts, strict=True):
            _held_between(low, op, index, keep, np.zeros(()), part)
        low.layer("BinaryOp", op, parts, {0: _BINARY["Add"]})
        return
    index = 1 if held[0] is None else 2
    other = held[2 - index]
    assert other is not None
    _held_between(low, op, index, chosen if index == 1 else ~chosen, other, op.outputs[0])


def _held_between(low: NcnnLowering, op: Op, index: int, keep: Array, other: Array, target: str) -> None:
    """A tensor where `keep` says so, and numbers elsewhere: at least these there, and at most."""
    blob = _broadcast(low, op, low.data(op, index))
    for kind, bound in (("Min", np.inf), ("Max", -np.inf)):
        limits = np.broadcast_to(np.where(keep, bound, other), low.shape(op.outputs[0])).astype(np.float32)
        memory = low.memory(op, f"{kind.lower()}{index}", limits.reshape(low.dims(op.outputs[0])))
        given = f"{target}:least" if kind == "Min" else target
        low.part("BinaryOp", op, f"{kind.lower()}_{index}", [blob, memory], [given], {0: _BINARY[kind]})
        blob = given
