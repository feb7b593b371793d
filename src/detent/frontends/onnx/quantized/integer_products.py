"""MatMulInteger and ConvInteger of dynamically quantized files."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detent.errors import OnnxError
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.onnx_function import OnnxFunction
from detent.frontends.onnx.operators.windows import window_of
from detent.frontends.onnx.quantized.quantization import quantize
from detent.ir.reference.padding import pad_axes
from detent.ir.windows import SlidingWindow

__all__ = ["CONVERTERS", "refuse_codes"]

_CONVS = (F.conv1d, F.conv2d, F.conv3d)


def _matmul(call: Call) -> Any:
    return call.op(integer_matmul, *map(call.optional, range(4)))


def integer_matmul(left: Tensor, right: Tensor, left_zero: Tensor | None, right_zero: Tensor | None) -> Tensor:
    """MatMulInteger in float64, which holds every sum of an int32 exactly. A zero point is there once, or for each row
    or column."""
    a, b = left.double(), right.double()
    if left_zero is not None:
        a = a - (left_zero.double().unsqueeze(-1) if left_zero.ndim == 1 and left_zero.numel() > 1 else left_zero)
    if right_zero is not None:
        b = b - right_zero.double()
    return torch.matmul(a, b).to(torch.int32)


def _conv(call: Call) -> Any:
    kernel, dims = call.integers("kernel_shape"), call.dims(1)
    if kernel is None and dims is not None and None not in dims:
        kernel = [size for size in dims[2:] if size is not None]
    if not kernel:
        call.refuse("the size of its kernel is not known", "export it with the attribute kernel_shape")
    window = window_of(call, tuple(kernel))
    return call.op(integer_conv, *map(call.optional, range(4)), window=window, groups=call.integer("group"))


def integer_conv(
    x: Tensor, weight: Tensor, x_zero: Tensor | None, w_zero: Tensor | None, *, window: SlidingWindow, groups: int
) -> Tensor:
    """ConvInteger in float64, which holds every sum of an int32 exactly. The pads are zeros of the real numbers."""
    images, kernels = x.double(), weight.double()
    if x_zero is not None:
        images = images - x_zero.double()
    if w_zero is not None:
        kernels = kernels - w_zero.double().reshape(-1, *[1] * (weight.ndim - 1))
    conv = _CONVS[len(window.kernel) - 1]
    padded = pad_axes(images, window.pads)
    return conv(padded, kernels, stride=window.strides, dilation=window.dilations, groups=groups).to(torch.int32)


def refuse_codes(network: nn.Module) -> None:
    """An imported network that computes with codes runs, but has nothing that could be trained or deployed again."""
    for path, module in network.named_modules():
        if isinstance(module, OnnxFunction) and module.function in (integer_matmul, integer_conv, quantize):
            raise OnnxError(
                "quantize an ONNX model",
                f"{path!r} computes codes that are not only dequantized, or whose scale is measured while it runs",
                "quantize the float model that it was made from",
            )


CONVERTERS: dict[str, Converter] = {"MatMulInteger": _matmul, "ConvInteger": _conv}
