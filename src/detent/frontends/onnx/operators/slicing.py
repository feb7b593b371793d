"""Joining, splitting, cutting and padding."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.errors import OnnxError
from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.reading.sizes import bounded

__all__ = ["CONVERTERS"]

_ENDLESS = 2**31 - 1


def _concat(call: Call) -> Any:
    values = call.given()
    if len(values) == 1:
        return values[0]
    return call.apply(torch.cat, values, dim=call.integer("axis"))


def _split(call: Call) -> Any:
    x, axis, outputs = call.value(0), call.integer("axis"), len(call.outputs)
    if call.opset >= 13 and call.has(1) and call.constant(1) is None:
        return call.parts(split_computed, x, call.value(1), kind="slice", axis=axis)
    sizes = call.numbers(1) if call.opset >= 13 else call.integers("split")
    if sizes is None:
        dims = call.dims(0)
        total = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        if total is None:
            return call.parts(split_evenly, x, kind="slice", axis=axis, count=outputs)
        each = -(-total // outputs)
        sizes = [max(min(each, total - each * index), 0) for index in range(outputs)]
    if len(sizes) != outputs:
        call.refuse(f"{len(sizes)} sizes for {outputs} outputs", "export the model again")
    return call.members(call.apply(torch.split, x, sizes, dim=axis, step="parts"))


def split_evenly(x: Tensor, *, axis: int, count: int) -> tuple[Tensor, ...]:
    """The last part is smaller where the size does not divide."""
    each = -(-x.shape[axis] // count)
    sizes = [max(min(each, x.shape[axis] - each * index), 0) for index in range(count)]
    return tuple(torch.split(x, sizes, dim=axis))


def split_computed(x: Tensor, sizes: Tensor, *, axis: int) -> tuple[Tensor, ...]:
    return tuple(torch.split(x, sizes.tolist(), dim=axis))


def _slice(call: Call) -> Any:
    x, rank = call.value(0), call.rank()
    if call.opset < 10:
        starts, ends, axes, steps = call.integers("starts"), call.integers("ends"), call.integers("axes"), None
    else:
        starts, ends, axes, steps = (call.numbers(index) for index in range(1, 5))
        if any(call.has(index) and call.constant(index) is None for index in range(1, 5)):
            return call.op(cut, x, *(call.optional(index) for index in range(1, 5)), kind="slice")
    if starts is None or ends is None or len(starts) != len(ends):
        call.refuse(f"starts {starts} and ends {ends}", "export the model again")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if (
        (rank is None and min(axes, default=0) < 0)
        or min(steps, default=1) < 1
        or not len(axes) == len(steps) == len(starts)
    ):
        return call.op(cut_at, x, kind="slice", starts=starts, ends=ends, axes=axes, steps=steps)
    ranges = [slice(None)] * (max((axis % (rank or 64) for axis in axes), default=-1) + 1)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        ranges[axis % (rank or 64)] = slice(start, end, step if step != 1 else None)
    return call.apply(operator.getitem, x, tuple(ranges))


def cut(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None, steps: Tensor | None) -> Tensor:
    given = starts.tolist()
    return cut_at(
        x,
        starts=given,
        ends=ends.tolist(),
        axes=list(range(len(given))) if axes is None else axes.tolist(),
        steps=[1] * len(given) if steps is None else steps.tolist(),
    )


def cut_at(x: Tensor, *, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Tensor:
    """Steps may be negative: such an axis is read backward, as Python's slices do."""
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
            continue
        # Python's slices cut to the axis otherwise where a start is beyond its beginning.
        size = x.shape[axis]
        first = max(min(start + size if start < 0 else start, size - 1), 0)
        last = min(max(end + size if end < 0 else end, -1), size - 1)
        if end >= _ENDLESS:
            raise OnnxError(
                f"a slice from {start} to {end} by {step}",
                "the specification calls it empty, runtimes take it for all the rest",
                "export it with the end that is meant",
            )
        indices = torch.arange(first, last, step, device=x.device) if first > last else torch.arange(0, device=x.device)
        x = x.index_select(axis, indices)
    return x


def _pad(call: Call) -> Any:
    mode, rank = call.text("mode"), call.rank()
    if mode not in ("constant", "reflect", "edge", "wrap"):
        call.refuse(f"the mode {mode!r}", "export the model again")
    if call.opset < 11:
        pads, value, axes = call.integers("pads"), call.real("value"), None
    else:
        pads, fill, axes = call.numbers(1), call.constant(2), call.numbers(3)
        computed = call.has(2) and fill is None
        value = 0 if fill is None else fill.item()
        if pads is None or computed or (call.has(3) and axes is None):
            given = (call.value(1), call.optional(2), call.optional(3))
            return call.op(pad_computed, call.value(0), *given, kind="pad", mode=mode)
    if pads is None or len(pads) % 2:
        call.refuse(f"the pads {pads}", "export the model again")
    simple = mode == "constant" and rank is not None and axes is None and len(pads) == 2 * rank
    if simple and call.is_real() and not isinstance(call.value(0), Constant):
        begin, end = pads[: len(pads) // 2], pads[len(pads) // 2 :]
        flat = [number for pair in reversed(list(zip(begin, end, strict=True))) for number in pair]
        while len(flat) > 2 and flat[-2:] == [0, 0]:
            flat = flat[:-2]
        return call.apply(F.pad, call.value(0), flat, value=value)
    return call.op(pad, call.value(0), kind="pad", pads=pads, value=value, mode=mode, axes=axes)


def pad_computed(x: Tensor, pads: Tensor, value: Tensor | None, axes: Tensor | None, *, mode: str) -> Tensor:
    fill, at = 0 if value is None else value.item(), None if axes is None else axes.tolist()
    return pad(x, pads=[int(number) for number in pads.tolist()], value=fill, mode=mode, axes=at)


def pad(x: Tensor, *, pads: list[int], value: float, mode: str, axes: list[int] | None) -> Tensor:
    """Along any axes; negative pads cut."""
    at = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    if len(pads) != 2 * len(at):
        raise ValueError(f"{len(pads)} pads for {len(at)} axes")
    for axis, before, after in zip(at, pads[: len(at)], pads[len(at) :], strict=True):
        bounded([*x.shape[:axis], max(x.shape[axis] + before + after, 0), *x.shape[axis + 1 :]])
        x = _pad_axis(x, axis, before, after, value, mode)
    return x


def _pad_axis(x: Tensor, axis: int, before: int, after: int, value: float, mode: str) -> Tensor:
    size = x.shape[axis]
    if mode == "constant":
        inner = x.narrow(axis, max(-before, 0), max(size + min(before, 0) + min(after, 0), 0))
        shape = list(inner.shape)
        ends = [
            torch.full([*shape[:axis], max(n, 0), *shape[axis + 1 :]], value, dtype=x.dtype, device=x.device)
            for n in (before, after)
        ]
        return torch.cat([ends[0], inner, ends[1]], axis)
    positions = torch.arange(-before, size + after, device=x.device)
    if mode == "edge":
        positions = positions.clamp(0, size - 1)
    elif mode == "wrap":
        positions = positions.remainder(size)
    else:
        period = max(2 * (size - 1), 1)
        positions = positions.remainder(period)
        positions = torch.where(positions >= size, period - positions, positions)
    return x.index_select(axis, positions)


CONVERTERS: dict[str, Converter] = {"Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad}
