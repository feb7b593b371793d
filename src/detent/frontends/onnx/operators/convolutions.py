"""Conv and ConvTranspose: torch modules where the weight is constant, torch functions where it is computed."""

from __future__ import annotations

import operator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from detent.frontends.onnx.builder import Constant, Value
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.windows import pads_given, positive, window_of
from detent.frontends.onnx.reading.sizes import bounded
from detent.ir.reference.padding import torch_pads
from detent.ir.windows import SlidingWindow, split_padding

__all__ = ["CONVERTERS"]

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_CONV_FUNCTIONS = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSED_FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def _kernel(call: Call) -> tuple[int, ...]:
    """The size of the kernel, from the weight's shape; the attribute may not contradict it."""
    dims, given = call.dims(1), call.integers("kernel_shape")
    if dims is None or None in dims[2:]:
        if given is None:
            call.refuse("the size of its kernel is not known", "export it with the attribute kernel_shape")
        return tuple(given)
    kernel = tuple(size for size in dims[2:] if size is not None)
    if given is not None and tuple(given) != kernel:
        call.refuse(f"kernel_shape {given} and a weight of {list(kernel)}", "export the model again")
    return kernel


def _held(call: Call) -> tuple[Constant, Constant | None] | None:
    """Weight and bias, if a module can hold them."""
    weight, bias = call.value(1), call.optional(2)
    real = isinstance(weight, Constant) and weight.tensor.is_floating_point()
    if not real or not (bias is None or isinstance(bias, Constant)):
        return None
    assert isinstance(weight, Constant)
    return weight, bias


def conv_pad(x: Tensor, *, pads: list[int]) -> Tensor:
    """Zeros around an image, other than torch's convolutions add them: not as many at the end as at the begin."""
    grown = [
        size + before + after for size, before, after in zip(reversed(x.shape), pads[::2], pads[1::2], strict=False)
    ]
    bounded([*x.shape[: x.ndim - len(grown)], *grown])
    return F.pad(x, pads)


def _conv(call: Call) -> Any:
    x, groups = call.value(0), call.integer("group")
    window = window_of(call, _kernel(call))
    padding: tuple[int, ...] = window.begin
    if not window.is_symmetric:
        x = call.op(conv_pad, x, kind="conv_pad", step="padded", pads=torch_pads(window.pads))
        padding = (0,) * len(window.kernel)
    held, at = _held(call), len(window.kernel) - 1
    if held is None or isinstance(x, Constant):
        return call.apply(
            _CONV_FUNCTIONS[at],
            x,
            call.value(1),
            call.optional(2),
            stride=window.strides,
            padding=padding,
            dilation=window.dilations,
            groups=groups,
        )
    weight, bias = held
    module = _CONVS[at](
        weight.tensor.shape[1] * groups,
        weight.tensor.shape[0],
        window.kernel,  # type: ignore[arg-type]
        window.strides,  # type: ignore[arg-type]
        padding,  # type: ignore[arg-type]
        window.dilations,  # type: ignore[arg-type]
        groups,
        bias is not None,
        device="meta",
    )
    return _filled(call, module, x, weight, bias)


def _filled(call: Call, module: Any, x: Value, weight: Constant, bias: Constant | None, step: str = "") -> Any:
    if bias is not None and tuple(bias.tensor.shape) != tuple(module.bias.shape):
        call.refuse(f"a bias of {list(bias.tensor.shape)} for {module.out_channels} channels", "export the model again")
    module.weight = call.parameter(weight)
    if bias is not None:
        module.bias = call.parameter(bias)
    return call.module(module, x, step=step, weight=weight, bias=bias)


def _conv_transpose(call: Call) -> Any:
    kernel = _kernel(call)
    rank = len(kernel)
    if not 1 <= rank <= 3:
        call.refuse(f"{rank} spatial axes", "1 to 3 are imported")
    window, extra = _transposed_window(call, kernel)
    # What torch cannot pad asymmetrically, or crop, is computed whole and cut.
    cut = not window.is_symmetric
    padding = (0,) * rank if cut else window.begin
    y = _transposed(call, window, padding, extra, step="whole" if cut else "")
    if not cut:
        return y
    inner = tuple(slice(b, -e if e else None) for b, e in window.pads)
    return call.apply(operator.getitem, y, (slice(None), slice(None), *inner))


def _transposed(call: Call, window: SlidingWindow, padding: tuple[int, ...], extra: tuple[int, ...], step: str) -> Any:
    x, groups, at = call.value(0), call.integer("group"), len(window.kernel) - 1
    held = _held(call)
    if held is None or isinstance(x, Constant):
        return call.apply(
            _TRANSPOSED_FUNCTIONS[at],
            x,
            call.value(1),
            call.optional(2),
            stride=window.strides,
            padding=padding,
            output_padding=extra,
            groups=groups,
            dilation=window.dilations,
            step=step,
        )
    weight, bias = held
    module = _TRANSPOSED[at](
        weight.tensor.shape[0],
        weight.tensor.shape[1] * groups,
        window.kernel,  # type: ignore[arg-type]
        window.strides,  # type: ignore[arg-type]
        padding,  # type: ignore[arg-type]
        extra,  # type: ignore[arg-type]
        groups,
        bias is not None,
        window.dilations,  # type: ignore[arg-type]
        device="meta",
    )
    return _filled(call, module, x, weight, bias, step)


def _transposed_window(call: Call, kernel: tuple[int, ...]) -> tuple[SlidingWindow, tuple[int, ...]]:
    """The window and the output padding; those that follow from `output_shape` or `auto_pad` are worked out."""
    rank = len(kernel)
    strides, dilations = positive(call, "strides", rank), positive(call, "dilations", rank)
    extra = tuple(call.integers("output_padding") or [0] * rank)
    mode, wanted = call.text("auto_pad"), call.integers("output_shape")
    if len(extra) != rank or min(extra) < 0:
        call.refuse(f"output_padding {extra}", "export the model again")
    if wanted is None and mode in ("NOTSET", "VALID"):
        begin, end = pads_given(call, rank) if mode == "NOTSET" else ((0,) * rank, (0,) * rank)
        return SlidingWindow(kernel, strides, dilations, begin, end), extra
    dims = call.dims(0)
    totals = []
    for axis, (k, s, d, more) in enumerate(zip(kernel, strides, dilations, extra, strict=True)):
        if wanted is None:
            totals.append((k - 1) * d + 1 + more - s)
            if totals[-1] < 0:
                call.refuse(
                    f"auto_pad {mode} with a kernel smaller than the stride, which runtimes size differently",
                    "export it with pads",
                )
            continue
        size = dims[2 + axis] if dims is not None and len(dims) == rank + 2 else None
        if size is None:
            call.refuse("an output_shape and an input of unknown size", "export it with pads instead")
        totals.append(s * (size - 1) + more + (k - 1) * d + 1 - wanted[-rank:][axis])
    # A total below zero asks for more rows than there are: they come as output padding.
    extra = tuple(more + max(-total, 0) for more, total in zip(extra, totals, strict=True))
    begin, end = split_padding([max(total, 0) for total in totals], mode)
    return SlidingWindow(kernel, strides, dilations, begin, end), extra


CONVERTERS: dict[str, Converter] = {"Conv": _conv, "ConvTranspose": _conv_transpose}
