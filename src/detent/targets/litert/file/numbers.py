"""The encodings that a .tflite file supports: activations of int8, or int16 around zero, with one scale; symmetric
weights of int8 or int4; biases of int32, or int64 where sums of 16-bit activations need it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import DeployError
from detent.ir import Encoding
from detent.ir.qparams import BOUNDS
from detent.numerics import IntGrid
from detent.targets.litert.spec import LITERT

__all__ = ["activation_encoding", "bias_codes", "is_held", "weight_codes"]

Array = npt.NDArray[Any]

_SHIFT = 128
"""From the codes of uint8 to those of int8."""

_WEIGHTS = IntGrid(8, narrow=all(LITERT.weight.narrow))
"""The codes that weights may have, which is the planner's choice too."""


def is_held(encoding: Encoding) -> bool:
    """Whether a file can store an activation with this encoding."""
    known = encoding.dtype in ("int8", "uint8") or (encoding.dtype == "int16" and encoding.symmetric)
    return known and encoding.per_tensor and encoding.full


def activation_encoding(encoding: Encoding, tensor: str) -> Encoding:
    """The same numbers as codes of the file: those of uint8 are shifted by 128, zero point included, so nothing
    changes."""
    if not is_held(encoding):
        bounds = "" if encoding.full else f" with codes {encoding.qmin} to {encoding.qmax}"
        around = "" if encoding.symmetric else f" around {encoding.zero_point}"
        scales = "one scale" if encoding.per_tensor else f"scales along axis {encoding.axis}"
        raise DeployError(
            f"write the activation {tensor!r} as .tflite",
            f"it is {encoding.dtype}{bounds}{around} with {scales}",
            "quantize activations to 8 bits, or symmetrically to int16, with one scale and all codes",
        )
    if encoding.dtype != "uint8":
        return encoding
    return Encoding(encoding.scale, encoding.zero_point - _SHIFT, "int8")


def weight_codes(codes: Array, encoding: Encoding, name: str, *, int4: bool = False) -> tuple[Array, Encoding]:
    """Codes of `_WEIGHTS` with zero point 0, of one scale or one per channel. Narrower weights are held in int8 too,
    those of four bits in int4 where an operator takes that."""
    shift = _SHIFT if encoding.dtype == "uint8" else 0
    codes, zero_point = codes.astype(np.int64) - shift, encoding.zero_point - shift
    fault = (
        f"groups of {encoding.block}"
        if encoding.block is not None
        else f"{encoding.dtype} codes"
        if encoding.dtype in ("int16", "uint16", "int32")
        else "a zero point that is not 0"
        if zero_point.any()
        else f"the code {codes.min()}"
        if codes.min(initial=0) < _WEIGHTS.qmin
        else None
    )
    if fault is not None:
        raise DeployError(
            f"write the weight {name!r} as .tflite",
            f"it has {fault}",
            f"quantize weights symmetrically to 8 bits or fewer, {_WEIGHTS.qmin} to {_WEIGHTS.qmax}, per tensor or per "
            "channel",
        )
    dtype = "int4" if int4 and encoding.dtype == "int4" else "int8"
    return codes.astype(np.int8), Encoding(encoding.scale, zero_point, dtype, encoding.axis)


def bias_codes(values: Array, scale: npt.NDArray[np.float32], name: str, *, wide: bool = False) -> Array:
    """A float bias on the grid of the accumulator, which is the only one the format has; `wide` for 16-bit layers."""
    codes = np.rint(values.astype(np.float64) / scale.astype(np.float64))
    if wide:
        return codes.astype(np.int64)
    least, greatest = BOUNDS["int32"]
    if codes.min(initial=0) < least or codes.max(initial=0) > greatest:
        raise DeployError(
            f"write the bias {name!r} as .tflite",
            "it does not fit in 32 bits on the scale of input times weight",
            "give the weights of that channel a larger scale",
        )
    return codes.astype(np.int32)
