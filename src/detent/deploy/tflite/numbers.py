"""Which numbers a .tflite file can hold: int8 activations of one scale, symmetric int8 weights, int32 biases."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from detent.deploy.encoding import BOUNDS, Encoding
from detent.errors import DeployError

__all__ = ["activation_encoding", "bias_codes", "weight_codes"]

Array = npt.NDArray[Any]

_SHIFT = 128
"""From the codes of uint8 to those of int8."""


def activation_encoding(encoding: Encoding, tensor: str) -> Encoding:
    """The same numbers as int8 codes: those of uint8 are shifted by 128, zero point included, so nothing changes."""
    if encoding.dtype not in ("int8", "uint8") or not encoding.per_tensor or not encoding.full:
        bounds = "" if encoding.full else f" with codes {encoding.qmin} to {encoding.qmax}"
        scales = "one scale" if encoding.per_tensor else f"scales along axis {encoding.axis}"
        raise DeployError(
            f"write the activation {tensor!r} as .tflite",
            f"it is {encoding.dtype}{bounds} with {scales}",
            "quantize activations to 8 bits with one scale and all 256 codes",
        )
    if encoding.dtype == "int8":
        return encoding
    return Encoding(encoding.scale, encoding.zero_point - _SHIFT, "int8")


def weight_codes(codes: Array, encoding: Encoding, name: str) -> tuple[Array, Encoding]:
    """Codes -127 to 127 with zero point 0, of one scale or one per channel. Narrower weights are held in int8 too."""
    shift = _SHIFT if encoding.dtype == "uint8" else 0
    codes, zero_point = codes.astype(np.int64) - shift, encoding.zero_point - shift
    fault = (
        f"groups of {encoding.block}"
        if encoding.block is not None
        else f"{encoding.dtype} codes"
        if encoding.dtype in ("int16", "uint16", "int32")
        else "a zero point that is not 0"
        if zero_point.any()
        else "the code -128"
        if codes.min(initial=0) < -127
        else None
    )
    if fault is not None:
        raise DeployError(
            f"write the weight {name!r} as .tflite",
            f"it has {fault}",
            "quantize weights symmetrically to 8 bits or fewer, -127 to 127, per tensor or per channel",
        )
    return codes.astype(np.int8), Encoding(encoding.scale, zero_point, "int8", encoding.axis)


def bias_codes(values: Array, scale: npt.NDArray[np.float32], name: str) -> Array:
    """A float bias on the grid of the accumulator, which is the only one the format has."""
    codes = np.rint(values.astype(np.float64) / scale.astype(np.float64))
    least, greatest = BOUNDS["int32"]
    if codes.min(initial=0) < least or codes.max(initial=0) > greatest:
        raise DeployError(
            f"write the bias {name!r} as .tflite",
            "it does not fit in 32 bits on the scale of input times weight",
            "give the weights of that channel a larger scale",
        )
    return codes.astype(np.int32)
