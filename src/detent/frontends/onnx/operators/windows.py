"""Reads and checks the sliding windows of convolutions and pools."""

from __future__ import annotations

from detent.frontends.onnx.call import Call
from detent.ir.windows import SlidingWindow, same_padding

__all__ = ["pads_given", "positive", "window_of"]


def window_of(call: Call, kernel: tuple[int, ...]) -> SlidingWindow:
    """The window of a forward convolution or a pooling; pads of `auto_pad` are worked out."""
    rank, mode = len(kernel), call.text("auto_pad", "NOTSET")
    if not 1 <= rank <= 3:
        call.refuse(f"{rank} spatial axes", "1 to 3 are imported")
    strides, dilations = positive(call, "strides", rank), positive(call, "dilations", rank)
    if min(kernel) < 1:
        call.refuse(f"the kernel {kernel}", "export the model again")
    none = (0,) * rank
    begin, end = pads_given(call, rank) if mode == "NOTSET" else (none, none)
    ceil_mode = bool(call.integer("ceil_mode"))
    if mode in ("NOTSET", "VALID"):
        return SlidingWindow(kernel, strides, dilations, begin, end, ceil_mode=ceil_mode)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.refuse(f"auto_pad {mode!r}", "export the model again")
    window = SlidingWindow(kernel, strides, dilations, begin, end, mode, ceil_mode)
    return window.resolve(_sizes(call, window))


def positive(call: Call, name: str, rank: int) -> tuple[int, ...]:
    numbers = call.integers(name) or [1] * rank
    if len(numbers) != rank or min(numbers) < 1:
        call.refuse(f"{name} {numbers} for {rank} spatial axes", "export the model again")
    return tuple(numbers)


def pads_given(call: Call, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pads = call.integers("pads") or [0] * (2 * rank)
    if len(pads) != 2 * rank or min(pads) < 0 or max(pads) > 2**20:
        call.refuse(f"pads {pads} for {rank} spatial axes", "export the model with pads that are not negative")
    return tuple(pads[:rank]), tuple(pads[rank:])


def _sizes(call: Call, window: SlidingWindow) -> list[int]:
    """The sizes that the pads of `auto_pad` depend on; one that they do not depend on may be unknown."""
    mode, rank = window.auto_pad, window.rank
    if call.node.op_type != "Conv" and set(window.dilations) != {1}:
        call.refuse(f"auto_pad {mode} with dilations, which runtimes pad differently", "export it with explicit pads")
    dims = call.dims(0)
    known: tuple[int | None, ...] = dims[2:] if dims is not None and len(dims) == rank + 2 else (None,) * rank
    sizes = []
    for size, extent, stride in zip(known, window.extent, window.strides, strict=True):
        if size is None and stride != 1:
            call.refuse(
                f"auto_pad {mode} with a stride and an input of unknown size",
                call.how_to_fix() or "export it with explicit pads or a fixed size",
            )
        # With a stride of 1 the pads are those of any size.
        sizes.append(1 if stride == 1 or size is None else size)
        if same_padding(sizes[-1], extent, stride) < 0 and call.node.op_type != "Conv":
            call.refuse(
                f"auto_pad {mode} with a kernel smaller than the stride, which runtimes pad differently",
                "export it with explicit pads",
            )
    return sizes
