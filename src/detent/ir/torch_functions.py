"""The reference kernels in the variant that torch's compilers and its quantized kernels take.

They take float tensors; kernels that only move or select values also take quantized tensors. Where ONNX has a tensor
and torch takes Python numbers (shapes, axes, bounds), the tensor is best constant in the network: then nothing waits
for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from detent.ir.network import Op
from detent.ir.reference import REFERENCE, Kernel, KernelCall
from detent.ir.reference.resizing import resize
from detent.ir.windows import SlidingWindow

__all__ = ["FUNCTIONS", "call"]


def call(
    op: Op,
    values: Sequence[Tensor | None],
    constants: Mapping[str, npt.NDArray[Any]],
    functions: Mapping[str, Kernel] | None = None,
) -> tuple[Tensor, ...]:
    """The output of an operation, one tensor for each of its outputs; `functions` stand in for `FUNCTIONS`."""
    functions = FUNCTIONS if functions is None else functions
    held = [None if read is None else constants.get(read.tensor) for read in op.inputs]
    run = KernelCall(op.type, values, op.attributes, held, len(op.outputs), op.name)
    if op.type not in functions:
        raise run.refusal("Detent knows no torch function for this type")
    found = functions[op.type](run)
    return found if isinstance(found, tuple) else (found,)


# --- one function of torch where the definition has several, for compilers to find and quantized kernels to run ---


def _average_pool(call: KernelCall) -> Tensor | tuple[Tensor, ...]:
    window = SlidingWindow.of(call.attributes).resolve(call[0].shape[2:])
    narrow = all(begin <= size // 2 for begin, size in zip(window.begin, window.kernel, strict=True))
    if not window.is_symmetric or not narrow or set(window.dilations) != {1}:
        return REFERENCE["AveragePool"](call)
    function: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[window.rank - 1]
    counted = bool(call.attribute("count_include_pad")) or not any(window.begin)
    return function(  # type: ignore[no-any-return]
        call[0], window.kernel, window.strides, window.begin, ceil_mode=window.ceil_mode, count_include_pad=counted
    )


def _global_average_pool(call: KernelCall) -> Tensor:
    functions: Any = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
    return functions[call[0].ndim - 3](call[0], 1)  # type: ignore[no-any-return]


def _gemm(call: KernelCall) -> Tensor | tuple[Tensor, ...]:
    bias, plain = call.optional(2), call.attribute("alpha") == call.attribute("beta") == 1.0
    if not plain or call.attribute("transA") or not call.attribute("transB") or (bias is not None and bias.ndim != 1):
        return REFERENCE["Gemm"](call)
    return F.linear(call[0], call[1], bias)


def _interpolation(call: KernelCall) -> str | None:
    """What `F.interpolate` calls the mode; None if it has no such rule."""
    mode, coordinates = call.attribute("mode"), call.attribute("coordinate_transformation_mode")
    if mode == "nearest":
        rule = (coordinates, call.attribute("nearest_mode"))
        if rule == ("half_pixel", "round_prefer_ceil") and not call[0].is_quantized:
            return "nearest-exact"
        return "nearest" if rule == ("asymmetric", "floor") else None
    if coordinates not in ("half_pixel", "pytorch_half_pixel", "align_corners") or call.attribute("antialias"):
        return None
    names = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    return names.get((mode, call[0].ndim))


def _resize(call: KernelCall) -> Tensor:
    x, sizes, scales, mode = call[0], call.integers(3), call.array(2), _interpolation(call)
    axes = [int(axis) % x.ndim for axis in call.attribute("axes") or range(x.ndim)]
    unchanged = list(x.shape) if sizes else [1.0] * x.ndim
    asked = dict(enumerate(unchanged)) | dict(zip(axes, sizes or scales.tolist(), strict=True))  # type: ignore[union-attr]
    if mode is None or [asked[0], asked[1]] != unchanged[:2]:
        return resize(call)
    wanted: Any = {"size" if sizes else "scale_factor": [asked[axis] for axis in range(2, x.ndim)]}
    aligned = (
        None if mode.startswith("nearest") else call.attribute("coordinate_transformation_mode") == "align_corners"
    )
    return F.interpolate(x, **wanted, mode=mode, align_corners=aligned)


FUNCTIONS: Mapping[str, Kernel] = {
    **REFERENCE,
    "AveragePool": _average_pool,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "HardSwish": lambda call: F.hardswish(call[0]),
    "Resize": _resize,
}
"""By ONNX operation type."""
