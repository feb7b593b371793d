"""Pools, reductions and resizing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from detent.ir import Encoding, Operand, Trait, clip_bounds, ops_with, reduced_axes
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.kernels import is_wide, sums_fit
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, last_order, refusal
from detent.targets.litert.file.padding import SAME, VALID, Pads, explicit_pads, padded, same_pads
from detent.targets.litert.file.schema import code_of, schema
from detent.targets.litert.file.signals import each, give, image

__all__ = ["POOLS", "axes_of"]


@dataclass(frozen=True)
class _Window:
    """What a pool slides over, as an image, and how; `pads` are its paddings with those that rounding sizes up adds."""

    read: Operand
    spatial: int
    sizes: tuple[int, ...]
    kernel: list[int]
    strides: list[int]
    declared: Pads
    pads: Pads

    @property
    def is_same(self) -> bool:
        return self.pads == same_pads(self.sizes, self.kernel, self.strides, (1, 1))


def _window(low: TfliteLowering, node: TfliteNode) -> _Window:
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    spatial = low.rank(read.tensor) - 2
    if spatial not in (1, 2):
        raise refusal(op, f"LiteRT pools images and signals, and this has {low.rank(read.tensor)} axes")
    if any(int(d) != 1 for d in op.attribute("dilations")) or len(op.outputs) > 1:
        raise refusal(op, "LiteRT's pools have no dilation and give no indices")
    kernel, strides = each(op, "kernel_shape", spatial), each(op, "strides", spatial)
    sizes, given = low.shape(read.tensor)[2:], low.shape(node.output)[2:]
    declared = explicit_pads(op, sizes, kernel[-spatial:])
    if spatial == 1:
        sizes, given, declared = (1, *sizes), (1, *given), ((0, 0), *declared)
    needed = [(g - 1) * s + k for g, s, k in zip(given, strides, kernel, strict=True)]
    pads = tuple(
        (before, max(after, need - size - before))
        for (before, after), need, size in zip(declared, needed, sizes, strict=True)
    )
    return _Window(read, spatial, sizes, kernel, strides, declared, pads)


def _pool(
    low: TfliteLowering,
    node: TfliteNode,
    kind: str,
    window: _Window,
    index: int,
    encoding: Encoding | None,
    padding: int,
) -> None:
    options = {
        "padding": padding,
        "filterHeight": window.kernel[0],
        "filterWidth": window.kernel[1],
        "strideH": window.strides[0],
        "strideW": window.strides[1],
    }
    give(low, node, kind, [index], options, encoding, window.spatial)


def max_pool(low: TfliteLowering, node: TfliteNode) -> None:
    window = _window(low, node)
    read, pads = window.read, window.pads
    index = image(low, low.take(read, last=True, integer=read.encoding is not None), window.spatial)
    encoding = low.tensors[index].encoding
    padding = VALID
    if any(map(any, pads)):
        if window.is_same:
            padding = SAME
        elif _never_negative(low, read):
            index = padded(low, index, pads)  # zero is the least number, so padding with it changes no maximum
        else:
            least = float(np.finfo(np.float32).min) if encoding is None else encoding.qmin
            index = padded(low, index, pads, value=least)
    _pool(low, node, "MAX_POOL_2D", window, index, encoding, padding)


def _never_negative(low: TfliteLowering, read: Operand) -> bool:
    if read.encoding is not None and low.encoding(read).zero_point == low.encoding(read).qmin:
        return True
    maker = low.graph.producer(read.tensor)
    bounds = None if maker is None else clip_bounds(low.graph, maker)
    return bounds is not None and bounds[0] >= 0


def average_pool(low: TfliteLowering, node: TfliteNode) -> None:
    window, op = _window(low, node), node.main
    read, pads = window.read, window.pads
    encoding = low.integer_output(node, read)
    if encoding is not None and low.encoding(read) != encoding:
        encoding = None  # LiteRT's average pool stays on the grid of its input
    index = image(low, low.take(read, last=True, integer=encoding is not None), window.spatial)
    padding = VALID
    if any(map(any, pads)):
        if op.attribute("count_include_pad") and pads == window.declared:
            index = padded(low, index, pads)
        elif not op.attribute("count_include_pad") and window.is_same:
            padding = SAME
        else:
            raise refusal(op, "it counts its padding in another way than LiteRT does", "use count_include_pad=True")
    _pool(low, node, "AVERAGE_POOL_2D", window, index, encoding, padding)


def _reduction(kind: str) -> Lowerer:
    """MEAN, SUM or a maximum over some axes; a global pool keeps those that it reduces."""

    def write(low: TfliteLowering, node: TfliteNode) -> None:
        op, read = node.main, node.main.inputs[0]
        assert read is not None
        rank = low.rank(read.tensor)
        axes = axes_of(low, node, rank)
        keep = op.type in ops_with(Trait.POOL) or bool(op.attribute("keepdims"))
        order = last_order(rank) if rank > 2 else tuple(range(rank))
        left = [axis for axis in order if axis not in axes]
        last = low.made_last(read) and (keep or left == sorted(left))
        encoding = low.integer_output(node, read)
        if kind in ("REDUCE_MAX", "REDUCE_MIN"):
            encoding = low.encoding(read) if read.encoding is not None else None
        elif encoding is not None and not sums_fit(encoding, math.prod(low.shape(read.tensor)[axis] for axis in axes)):
            encoding = None
        index = low.take(read, last=last, integer=encoding is not None)
        places = [order.index(axis) for axis in axes] if last else axes
        made = low.make(node.output, Variant(encoding, last and keep))
        low.emit(kind, [index, low.integers("axes", sorted(places))], [made], keepDims=keep)

    return write


def place_of_extreme(low: TfliteLowering, node: TfliteNode) -> None:
    """The place of the greatest or least along an axis, of codes as of real numbers."""
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    if op.attribute("select_last_index"):
        raise refusal(op, "of several equal values it takes the last", "use select_last_index=0")
    rank = low.rank(read.tensor)
    axis, order = int(op.attribute("axis")) % rank, last_order(rank)
    left = [other for other in order if other != axis]
    last = low.made_last(read) and left == sorted(left)  # without the axis the others are as ONNX has them
    codes = read.encoding is not None and not is_wide(low.encoding(read))
    index = low.take(read, last=last, integer=codes)
    place = low.integers("axis", [order.index(axis) if last else axis])
    given = low.make(node.output, Variant(None), "int64")
    made = given
    if op.attribute("keepdims"):
        shape, signature = (
            [size for other, size in enumerate(sizes) if other != axis]
            for sizes in (low.shape(node.output), low.signature(node.output))
        )
        made = low.add(f"{node.output}_without_axis", shape, signature, dtype="int64")
    kind = "ARG_MAX" if op.type == "ArgMax" else "ARG_MIN"
    low.emit(kind, [index, place], [made], outputType=code_of(schema().TensorType, "INT64"))
    if made != given:
        sizes = low.signature(node.output)
        low.emit("RESHAPE", [made, low.integers("shape", sizes)], [given], newShape=list(sizes))


def top_k(low: TfliteLowering, node: TfliteNode) -> None:
    """For equal values LiteRT takes the first ones, as ONNX specifies."""
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    count, rank = low.values(op.inputs[1]), low.rank(read.tensor)
    if count is None or int(op.attribute("axis")) % rank != rank - 1 or not op.attribute("largest"):
        raise refusal(op, "LiteRT finds a known number of greatest values along the last axis", "transpose or negate")
    index = low.take(read, last=False, integer=False)
    held = low.constant("k", np.array(count.reshape(-1)[0], np.int32))
    values, places = op.outputs
    found = low.add(f"{places}_int32", low.shape(places), low.signature(places), dtype="int32")
    low.emit("TOPK_V2", [index, held], [low.make(values, Variant(None)), found])
    low.emit("CAST", [found], [low.make(places, Variant(None), "int64")])


def cumsum(low: TfliteLowering, node: TfliteNode) -> None:
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    axis = low.values(op.inputs[1])
    if axis is None:
        raise refusal(op, "its axis is computed", "give a constant axis")
    rank, last = low.rank(read.tensor), low.made_last(read)
    place = int(axis.reshape(-1)[0]) % rank
    index = low.take(read, last=last, integer=False)
    held = low.integers("axis", [last_order(rank).index(place) if last else place])
    options = {name: bool(op.attribute(name)) for name in ("exclusive", "reverse")}
    low.emit("CUMSUM", [index, held], [low.make(node.output, Variant(None, last))], **options)


def axes_of(low: TfliteLowering, node: TfliteNode, rank: int) -> list[int]:
    axes = reduced_axes(low.graph, node.main, rank)
    if axes is None:
        raise refusal(node.main, "its axes are computed", "give constant axes")
    return list(axes)


def resize(low: TfliteLowering, node: TfliteNode) -> None:
    op, read = node.main, node.main.inputs[0]
    assert read is not None
    shape, given = low.shape(read.tensor), low.shape(node.output)
    if len(shape) != 4 or shape[:2] != given[:2]:
        raise refusal(op, "LiteRT resizes rows and columns of images")
    mode = op.attribute("mode")
    where = op.attribute("coordinate_transformation_mode")
    nearest = op.attribute("nearest_mode")
    ways = {
        ("nearest", "asymmetric"): (False, False),
        ("nearest", "half_pixel"): (False, True),
        ("linear", "asymmetric"): (False, False),
        ("linear", "half_pixel"): (False, True),
        ("linear", "pytorch_half_pixel"): (False, True),
        ("linear", "align_corners"): (True, False),
    }
    whole = all(b % a == 0 for a, b in zip(shape[2:], given[2:], strict=True))
    floors = nearest == "floor" or (where == "half_pixel" and whole)
    if (mode, where) not in ways or (mode == "nearest" and not floors):
        raise refusal(op, f"mode {mode} with {where} and {nearest}", "resize as torch's nearest or bilinear do")
    align, half = ways[mode, where]
    integer = read.encoding is not None
    if mode == "linear":
        encoding = low.integer_output(node, read)
        integer = encoding is not None and low.encoding(read) == encoding
    index = low.take(read, last=True, integer=integer)
    made = low.make(node.output, Variant(low.tensors[index].encoding, True))
    kind = "RESIZE_BILINEAR" if mode == "linear" else "RESIZE_NEAREST_NEIGHBOR"
    low.emit(kind, [index, low.integers("size", given[2:])], [made], alignCorners=align, halfPixelCenters=half)


POOLS: dict[str, Lowerer] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalAveragePool": _reduction("MEAN"),
    "GlobalMaxPool": _reduction("REDUCE_MAX"),
    "ReduceMean": _reduction("MEAN"),
    "ReduceSum": _reduction("SUM"),
    "ReduceMax": _reduction("REDUCE_MAX"),
    "ReduceMin": _reduction("REDUCE_MIN"),
    "ArgMax": place_of_extreme,
    "ArgMin": place_of_extreme,
    "TopK": top_k,
    "CumSum": cumsum,
    "Resize": resize,
}
