"""Data movement: reshape, transpose, slice, concatenate, pad, repeat; and resize."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Op
from detent.targets.ncnn.file.cutting import Cut, around, cut
from detent.targets.ncnn.file.lowering import Dims, NcnnLowering, refuse
from detent.targets.ncnn.file.model import Value

__all__ = [
    "concat",
    "depth_to_space",
    "expand",
    "pad",
    "reshape",
    "resize",
    "slice_",
    "split",
    "tile",
    "transpose",
]

Array = npt.NDArray[Any]

_SIZES_OF_4 = (
    *("WHDC", "HWDC", "WDHC", "DWHC", "HDWC", "DHWC", "WHCD", "HWCD", "WCHD", "CWHD", "HCWD", "CHWD"),
    *("WDCH", "DWCH", "WCDH", "CWDH", "DCWH", "CDWH", "HDCW", "DHCW", "HCDW", "CHDW", "DCHW", "CDHW"),
)
_ORDERS: dict[int, tuple[tuple[int, ...], ...]] = {
    2: ((0, 1), (1, 0)),
    3: ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)),
    4: tuple(tuple("CDHW".index(axis) for axis in reversed(order)) for order in _SIZES_OF_4),
}
"""The permutations of Permute, outermost axis first, in the order of its parameter 0."""

_MOST = max(_ORDERS)


def reshape(low: NcnnLowering, op: Op) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze: other sizes, the same numbers."""
    low.reshape(op)


def transpose(low: NcnnLowering, op: Op) -> None:
    """Axes of size 1 may move freely, and axes that stay neighbors are one: what is left must fit into a blob."""
    source, shape = low.data(op), low.shape(low.data(op))
    perm = op.attribute("perm", len(shape))
    runs = _runs([axis for axis in perm if shape[axis] != 1], shape)
    if len(runs) < 2:
        low.reshape(op)
        return
    ordered = sorted(runs)
    dims = tuple(math.prod(shape[axis] for axis in run) for run in ordered)
    order = tuple(ordered.index(run) for run in runs)
    if len(runs) > _MOST:
        _by_swaps(low, op, dims, order)
        return
    given = tuple(dims[axis] for axis in order)
    low.layer("Permute", op, [low.view(source, dims)], {0: _ORDERS[len(dims)].index(order)}, dims=given)


def _by_swaps(low: NcnnLowering, op: Op, dims: Dims, order: tuple[int, ...]) -> None:
    """For more axes than a blob has: swaps neighboring blocks of axes until all are in order."""
    blob, held, now = low.blob(low.data(op)), low.dims(low.data(op)), list(range(len(dims)))
    for place, wanted in enumerate(order):
        at = now.index(wanted)
        if at == place:
            continue
        stop = at + sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(now[at:], order[place:], strict=False))
        )
        parts = (now[:place], now[place:at], now[at:stop], now[stop:])
        view = tuple(math.prod(dims[axis] for axis in part) for part in parts)
        now = [*parts[0], *parts[2], *parts[1], *parts[3]]
        given = f"{op.outputs[0]}:swap{place}"
        low.part(
            "Permute", op, f"swap{place}", [low.sized(blob, held, view)], [given], {0: _ORDERS[4].index((0, 2, 1, 3))}
        )
        blob, held = given, (view[0], view[2], view[1], view[3])
    low.finish(blob, op.outputs[0])


def _runs(perm: list[int], shape: Dims) -> list[tuple[int, ...]]:
    """Merges axes that are adjacent both before and after; axes of size 1 are ignored."""
    place = {axis: position for position, axis in enumerate(a for a in range(len(shape)) if shape[a] != 1)}
    runs: list[tuple[int, ...]] = []
    for axis in perm:
        if runs and place[axis] == place[runs[-1][-1]] + 1:
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return runs


def concat(low: NcnnLowering, op: Op) -> None:
    tensors = [low.data(op, index) for index in range(len(op.inputs))]
    axis = low.axis(op.outputs[0], op.attributes["axis"])
    if axis is not None and all(low.axis(tensor, op.attributes["axis"]) == axis for tensor in tensors):
        low.layer("Concat", op, [low.blob(tensor) for tensor in tensors], {0: axis})
        return
    views = [around(low, tensor, op.attributes["axis"]) for tensor in tensors]
    total = (views[0][0], sum(dims[1] for dims in views), views[0][2])
    blobs = [low.view(tensor, dims) for tensor, dims in zip(tensors, views, strict=True)]
    low.layer("Concat", op, blobs, {0: 1}, dims=total)


def split(low: NcnnLowering, op: Op) -> None:
    """Split into the sizes of its outputs."""
    source, along = low.data(op), op.attribute("axis")
    axis = low.axis(source, along)
    parts = tuple(low.shape(output)[along] for output in op.outputs)
    if axis is None or any(low.axis(output, along) != axis for output in op.outputs):
        ends = list(itertools.accumulate(parts))
        for output, size, end in zip(op.outputs, parts, ends, strict=True):
            cut(low, op, [Cut(along % len(low.shape(source)), end - size, end)], output)
        return
    low.part("Slice", op, "", [low.blob(source)], op.outputs, {0: parts, 1: axis})


def slice_(low: NcnnLowering, op: Op) -> None:
    """Slice with constant bounds. A step that divides the size is a slice of a reshaped blob."""
    source, shape = low.data(op), low.shape(low.data(op))
    held = [low.constant(read) for read in (*op.inputs[1:], *(None,) * (5 - len(op.inputs)))]
    if held[0] is None or held[1] is None:
        refuse(op, "its bounds are computed", "give constant bounds")
    count = len(held[0])
    axes = [int(axis) % len(shape) for axis in (range(count) if held[2] is None else held[2])]
    steps = [1] * count if held[3] is None else held[3].tolist()
    bounds = list(zip(held[0].tolist(), held[1].tolist(), axes, strict=True))
    if any(step < 1 for step in steps):
        _flip(
            low,
            op,
            [range(shape[axis])[start:end:step] for (start, end, axis), step in zip(bounds, steps, strict=True)],
            axes,
        )
        return
    spans = [slice(start, end).indices(shape[axis])[:2] for start, end, axis in bounds]
    along = [low.axis(source, axis) for axis in axes]
    inside = tuple(axis for axis in along if axis is not None)
    if len(inside) == count and all(step == 1 for step in steps):
        starts, ends = (tuple(ends) for ends in zip(*spans, strict=True))
        low.layer("Crop", op, [low.blob(source)], {9: starts, 10: ends, 11: inside})
        return
    cuts = [Cut(axis, *span, step) for axis, span, step in zip(axes, spans, steps, strict=True)]
    cut(low, op, cuts, op.outputs[0])


def _flip(low: NcnnLowering, op: Op, picked: Sequence[range], axes: Sequence[int]) -> None:
    """Whole axes of a sample, from the end to the beginning."""
    source = low.data(op)
    along = [low.axis(source, axis) for axis in axes]
    whole = all(one == range(low.shape(source)[axis])[::-1] for one, axis in zip(picked, axes, strict=True))
    if not whole or None in along:
        refuse(op, "it goes backward over a part of an axis, or over samples", "slice forward")
    low.layer("Flip", op, [low.blob(source)], {0: tuple(axis for axis in along if axis is not None)})


def expand(low: NcnnLowering, op: Op) -> None:
    """Repeat along axes of size 1."""
    source, shape = low.data(op), low.shape(op.outputs[0])
    held = low.shape(source)
    aligned = (1,) * (len(shape) - len(held)) + held
    if aligned == shape:
        low.reshape(op)
        return
    dims = low.dims(op.outputs[0])
    kept = aligned[low.drops(op.outputs[0]) :]
    if len(kept) != len(dims):
        refuse(op, f"it repeats a tensor of {len(kept)} dimensions", "ncnn has 4 at most")
    repeats = tuple(want // have for want, have in zip(dims, kept, strict=True))
    low.layer("Tile", op, [low.view(source, kept)], {2: repeats})


def tile(low: NcnnLowering, op: Op) -> None:
    """Repeat along axes of one sample."""
    repeats, source = low.constant(op.inputs[1]), low.data(op)
    dropped, dims = low.drops(source), low.dims(source)
    if repeats is None or any(count != 1 for count in repeats[:dropped]) or len(repeats) - dropped != len(dims):
        refuse(op, "how often is computed, or it repeats samples or more than 4 axes", "repeat axes of one sample")
    low.layer("Tile", op, [low.blob(source)], {2: tuple(int(count) for count in repeats[dropped:])})


def pad(low: NcnnLowering, op: Op) -> None:
    """Pad at the ends of the last two axes, and of channels."""
    source = low.data(op)
    pads, value = low.constant(op.inputs[1]), low.constant(op.optional(2))
    axes = low.constant(op.optional(3))
    mode = {"constant": 0, "edge": 1, "reflect": 2}.get(op.attribute("mode"))
    if pads is None or mode is None:
        refuse(op, "its sizes are computed, or its mode is wrap", "give constant sizes")
    rank = len(low.shape(source))
    named_axes = list(range(rank)) if axes is None else [int(axis) % rank for axis in axes]
    sides = {axis: (int(pads[i]), int(pads[i + len(named_axes)])) for i, axis in enumerate(named_axes)}
    dims, dropped = low.dims(source), low.drops(source)
    blob_sides = [sides.get(axis + dropped, (0, 0)) for axis in range(len(dims))]
    beyond = any(any(sides.get(axis, (0, 0))) for axis in range(dropped))
    outside = [pair for pair in blob_sides[:-3] if any(pair)] or (len(dims) == 3 and mode and any(blob_sides[0]))
    if beyond or outside or any(side < 0 for pair in blob_sides for side in pair) or len(dims) > 3:
        refuse(op, f"it pads {sides}", "ncnn pads the last two axes, and with a constant the channels")
    keys = ((2, 3), (0, 1), (7, 8))
    params: dict[int, Value] = {4: mode, 5: 0.0 if value is None else float(value)}
    for (before, behind), pair in zip(keys, reversed(blob_sides), strict=False):
        params |= {before: pair[0], behind: pair[1]}
    low.layer("Padding", op, [low.blob(source)], params)


def resize(low: NcnnLowering, op: Op) -> None:
    """Nearest, linear and cubic, of height and width."""
    source = low.data(op)
    before, after = low.shape(source), low.shape(op.outputs[0])
    if len(before) != 4 or before[:2] != after[:2] or op.attribute("antialias"):
        refuse(op, f"from {before} to {after}", "resize height and width, without antialiasing")
    mode = op.attribute("mode")
    coordinates = op.attribute("coordinate_transformation_mode")
    corners = coordinates == "align_corners"
    if mode == "nearest":
        floor = coordinates == "asymmetric" and op.attribute("nearest_mode") == "floor"
        whole = (
            all(new % old == 0 for old, new in zip(before[2:], after[2:], strict=True)) and "half_pixel" in coordinates
        )
        fits = floor or whole
    else:
        fits = coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners")
        fits = fits and (mode == "linear" or op.attribute("cubic_coeff_a") == -0.75)
    if not fits:
        refuse(op, f"{mode} with {coordinates} coordinates", "use PyTorch's interpolate")
    factors = low.constant(op.optional(2))
    if factors is not None and factors.size == 4 and not corners and not np.allclose(factors * before, after, 1e-6, 0):
        refuse(
            op, f"by {factors[2:]}, and ncnn resizes by the ratio of {after[2:]} to {before[2:]}", "resize to a size"
        )
    kind = {"nearest": 1, "linear": 2, "cubic": 3}[mode]
    low.layer("Interp", op, [low.blob(source)], {0: kind, 3: after[2], 4: after[3], 6: int(corners)})


def depth_to_space(low: NcnnLowering, op: Op) -> None:
    mode = int(op.attribute("mode") == "DCR")
    low.layer("PixelShuffle", op, [low.blob(low.data(op))], {0: op.attributes["blocksize"], 1: mode})
