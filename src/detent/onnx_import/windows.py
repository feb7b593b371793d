"""What convolutions and poolings share: kernel, strides, dilations and pads."""

from __future__ import annotations

from typing import NamedTuple

from detent.onnx_import.call import Call

__all__ = ["Window", "torch_pads", "window_of"]


class Window(NamedTuple):
    """Per spatial axis. `begin` and `end` are the pads before and after."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def symmetric(self) -> bool:
        return self.begin == self.end

    @property
    def reach(self) -> tuple[int, ...]:
        """How many elements the kernel spans with its dilation."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def torch_pads(begin: tuple[int, ...], end: tuple[int, ...]) -> list[int]:
    """As `F.pad` takes them: the last axis first."""
    return [pad for pair in reversed(list(zip(begin, end, strict=True))) for pad in pair]


def window_of(call: Call, kernel: tuple[int, ...]) -> Window:
    """The window of a forward convolution or a pooling; pads of `auto_pad` are worked out."""
    rank = len(kernel)
    if not 1 <= rank <= 3:
        call.refuse(f"{rank} spatial axes", "1 to 3 are imported")
    strides, dilations = positive(call, "strides", rank), positive(call, "dilations", rank)
    if min(kernel) < 1:
        call.refuse(f"the kernel {kernel}", "export the model again")
    begin, end = _pads(call, kernel, strides, dilations)
    return Window(kernel, strides, dilations, begin, end)


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


def _pads(
    call: Call, kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    mode, rank = call.text("auto_pad", "NOTSET"), len(kernel)
    if mode == "NOTSET":
        return pads_given(call, rank)
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        call.refuse(f"auto_pad {mode!r}", "export the model again")
    if call.node.op_type != "Conv" and set(dilations) != {1}:
        call.refuse(f"auto_pad {mode} with dilations, which runtimes pad differently", "export it with explicit pads")
    dims = call.dims(0)
    sizes: tuple[int | None, ...] = dims[2:] if dims is not None and len(dims) == rank + 2 else (None,) * rank
    less, more = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (k - 1) * d + 1
        if s == 1:
            total = reach - 1
        elif size is not None:
            total = ((size + s - 1) // s - 1) * s + reach - size
            if total < 0 and call.node.op_type != "Conv":
                call.refuse(
                    f"auto_pad {mode} with a kernel smaller than the stride, which runtimes pad differently",
                    "export it with explicit pads",
                )
            total = max(total, 0)
        else:
            call.refuse(
                f"auto_pad {mode} with a stride and an input of unknown size",
                "export it with explicit pads or a fixed size",
            )
        less.append(total // 2)
        more.append(total - total // 2)
    return (tuple(less), tuple(more)) if mode == "SAME_UPPER" else (tuple(more), tuple(less))
