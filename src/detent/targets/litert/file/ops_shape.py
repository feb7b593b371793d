"""Data movement, which works on codes as on real numbers and keeps the encoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Operand, is_output
from detent.targets.litert.file.fusing import TfliteNode
from detent.targets.litert.file.kernels import is_wide
from detent.targets.litert.file.lowering import Lowerer, TfliteLowering, Variant, last_order, refusal

__all__ = ["SHAPES", "constants", "moved", "picked", "taken"]


def _data(node: TfliteNode) -> Operand:
    read = node.main.inputs[0]
    assert read is not None
    return read


def taken(low: TfliteLowering, read: Operand, *, last: bool, wide: bool = True) -> tuple[int, Variant]:
    """The input as codes if it is quantized; `wide` if the operator supports 16-bit codes."""
    codes = read.encoding is not None and (wide or not is_wide(low.encoding(read)))
    index = low.take(read, last=last, integer=codes)
    return index, Variant(low.tensors[index].encoding, last)


def moved(low: TfliteLowering, tensor: str, variant: Variant, source: int) -> int:
    """The tensor with the values of `source`, of whatever type."""
    return low.make(tensor, variant, low.tensors[source].dtype)


def constants(low: TfliteLowering, node: TfliteNode, position: int) -> list[int] | None:
    """A constant input that is a parameter of the operation; None if it is absent."""
    inputs = node.main.inputs
    if len(inputs) <= position or inputs[position] is None:
        return None
    values = low.values(inputs[position])
    if values is None:
        raise refusal(node.main, f"its input {position} is computed", "give constants")
    return [int(value) for value in np.ravel(values)]


def reshape(low: TfliteLowering, node: TfliteNode) -> None:
    """Also Flatten, Squeeze and Unsqueeze: the new shape is known.

    Where channels-last data would have to be turned only to be multiplied with a constant matrix, that matrix is
    turned instead.
    """
    read = _data(node)
    before, after = low.shape(read.tensor), low.shape(node.output)
    last = low.made_last(read) and _one_order(low.signature(read.tensor, last=False))
    if not last and low.made_last(read) and _only_linear_layers(low, node, before, after):
        low.flattened[node.output] = before[1:]
        last = True
    index, variant = taken(low, read, last=last)
    turned = len(after) == 4 and _one_order(low.signature(node.output, last=False))
    made = moved(low, node.output, Variant(variant.encoding, turned), index)
    signature = low.signature(node.output, last=turned)
    if sum(size < 0 for size in signature) > 1:
        if low.free_sizes:
            raise refusal(node.main, "two sizes of its output are free", low.fix_sizes)
        raise refusal(node.main, "two sizes of its output depend on the batch", "keep the batch in one axis")
    low.emit("RESHAPE", [index, low.integers("shape", signature)], [made], newShape=list(signature))


def _one_order(signature: Sequence[int]) -> bool:
    """Whether channels second and channels last are the same order in memory, for every batch (whose size is -1)."""
    return len(signature) > 2 and (signature[1] == 1 or all(size == 1 for size in signature[2:]))


def _only_linear_layers(low: TfliteLowering, node: TfliteNode, before: Sequence[int], after: Sequence[int]) -> bool:
    if len(before) != 4 or len(after) != 2 or after[0] != before[0]:
        return False
    if is_output(low.graph, node.output):
        return False
    return all(op.type == "Gemm" and low.is_constant(op.inputs[1]) for op, _ in low.graph.readers(node.output))


def identity(low: TfliteLowering, node: TfliteNode) -> None:
    read = _data(node)
    index, variant = taken(low, read, last=low.made_last(read))
    low.alias(node.output, variant, index)


def transpose(low: TfliteLowering, node: TfliteNode) -> None:
    read = _data(node)
    rank = low.rank(read.tensor)
    order = [int(axis) for axis in node.main.attribute("perm", rank)]
    last = low.made_last(read)
    index, variant = taken(low, read, last=last)
    if last:
        order = [last_order(rank).index(axis) for axis in order]
    if order == list(range(rank)):
        low.alias(node.output, Variant(variant.encoding), index)
        return
    made = moved(low, node.output, Variant(variant.encoding), index)
    low.emit("TRANSPOSE", [index, low.integers("order", order)], [made])


def concat(low: TfliteLowering, node: TfliteNode) -> None:
    """Inputs on another grid than the output are requantized first."""
    reads = [read for read in node.main.inputs if read is not None]
    rank = low.rank(node.output)
    encoding = low.integer_output(node, *reads)
    same = {read.encoding for read in reads}
    if encoding is None and len(same) == 1 and None not in same:
        encoding = low.encoding(reads[0])
    last = any(low.made_last(read) for read in reads)
    if encoding is None:
        inputs = [low.take(read, last=last, integer=False) for read in reads]
    else:
        inputs = [low.requantized(read, encoding, last=last) for read in reads]
    axis = _place(int(node.main.attributes["axis"]) % rank, rank, last)
    low.emit("CONCATENATION", inputs, [low.make(node.output, Variant(encoding, last))], axis=axis)


def _place(axis: int, rank: int, last: bool) -> int:
    return last_order(rank).index(axis) if last else axis


def slice_(low: TfliteLowering, node: TfliteNode) -> None:
    read = _data(node)
    shape, rank = low.shape(read.tensor), low.rank(read.tensor)
    starts, ends = constants(low, node, 1), constants(low, node, 2)
    axes, steps = constants(low, node, 3), constants(low, node, 4)
    assert starts is not None
    assert ends is not None
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if 0 in (axes if low.signature(read.tensor)[0] < 0 else []):
        raise refusal(node.main, "it cuts along the batch", "slice along other axes")
    last = low.made_last(read)
    index, variant = taken(low, read, last=last)
    if any(step < 1 for step in steps):
        picks = {
            _place(axis, rank, last): np.arange(shape[axis])[slice(start, None if end < -shape[axis] else end, step)]
            for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
        }
        low.alias(node.output, variant, picked(low, index, picks, node.output))
        return
    cuts = {axis: slice(*cut).indices(shape[axis]) for axis, *cut in zip(axes, starts, ends, steps, strict=True)}
    made = moved(low, node.output, variant, index)
    _strided_slice(low, index, made, {_place(axis, rank, last): cut for axis, cut in cuts.items()}, rank)


def picked(low: TfliteLowering, index: int, picks: Mapping[int, npt.NDArray[Any]], name: str) -> int:
    """The elements at these places along these axes of a tensor of the file."""
    for axis, places in picks.items():
        source = low.tensors[index]
        shape, free = list(source.shape), list(source.signature)
        shape[axis] = free[axis] = len(places)
        made = low.temporary(f"{name}_picked", index, shape, free)
        low.emit("GATHER", [index, low.constant("places", places.astype(np.int32))], [made], axis=axis)
        index = made
    return index


def tile(low: TfliteLowering, node: TfliteNode) -> None:
    read, repeats = _data(node), constants(low, node, 1)
    assert repeats is not None
    if repeats[0] != 1 and low.signature(read.tensor)[0] < 0:
        raise refusal(node.main, "it repeats the batch", "repeat along other axes")
    index, variant = taken(low, read, last=False)
    low.emit("TILE", [index, low.integers("repeats", repeats)], [moved(low, node.output, variant, index)])


def _strided_slice(
    low: TfliteLowering, index: int, made: int, cuts: dict[int, tuple[int, int, int]], rank: int
) -> None:
    """Whole axes are masked, so that the batch may be any size."""
    begin, end, step = (
        [cuts[axis][part] if axis in cuts else default for axis in range(rank)]
        for part, default in enumerate((0, 0, 1))
    )
    mask = sum(1 << axis for axis in range(rank) if axis not in cuts)
    inputs = [index, low.integers("begin", begin), low.integers("end", end), low.integers("step", step)]
    low.emit("STRIDED_SLICE", inputs, [made], beginMask=mask, endMask=mask)


def split(low: TfliteLowering, node: TfliteNode) -> None:
    read = _data(node)
    rank = low.rank(read.tensor)
    axis = int(node.main.attribute("axis")) % rank
    last = low.made_last(read)
    index, variant = taken(low, read, last=last)
    names = node.main.outputs
    sizes = [low.shape(name)[axis] for name in names]
    made = [moved(low, name, variant, index) for name in names]
    place = low.constant("axis", np.array(_place(axis, rank, last), np.int32))
    if len(set(sizes)) == 1:
        low.emit("SPLIT", [place, index], made, numSplits=len(made))
    else:
        low.emit("SPLIT_V", [index, low.integers("sizes", sizes), place], made, numSplits=len(made))


def gather(low: TfliteLowering, node: TfliteNode) -> None:
    read, chosen = node.main.inputs
    assert read is not None
    assert chosen is not None
    rank = low.rank(read.tensor)
    axis = int(node.main.attribute("axis")) % rank
    integer = read.encoding is not None and read.encoding.per_tensor
    data = low.take(read, last=False, integer=integer)
    fixed = low.values(chosen)
    if fixed is None:
        index = low.take(chosen, last=False, integer=False)
    else:
        size = low.shape(read.tensor)[axis]
        index = low.constant(chosen.tensor, np.where(fixed < 0, fixed + size, fixed).astype(np.int32))
    made = moved(low, node.output, Variant(low.tensors[data].encoding), data)
    low.emit("GATHER", [data, index], [made], axis=axis)


def gather_elements(low: TfliteLowering, node: TfliteNode) -> None:
    """Numbers of a constant, at computed places along an axis: LiteRT picks them from one row."""
    read, chosen = node.main.inputs
    held, fixed = low.values(read), low.values(chosen)
    assert chosen is not None
    if held is None or fixed is not None:
        raise refusal(node.main, "it picks from a computed tensor", "pick from a constant")
    axis, places = int(node.main.attribute("axis")) % held.ndim, low.shape(chosen.tensor)
    coordinates = np.indices(places)
    coordinates[axis] = 0
    start = np.ravel_multi_index(tuple(coordinates), held.shape)
    step = math.prod(held.shape[axis + 1 :])
    index = low.take(chosen, last=False, integer=False)
    source = low.tensors[index]
    for kind, values in (("MUL", np.array(step)), ("ADD", start)):
        if values.any() and not (values == 1).all():
            moved_to = low.temporary(f"{node.output}_places", index, source.shape, source.signature)
            low.emit(kind, [index, low.constant("places", values.astype(source.dtype))], [moved_to])
            low.fixed_batch = low.fixed_batch or (kind == "ADD" and -1 in source.signature)
            index = moved_to
    row = low.constant(f"{node.output}_row", held.reshape(-1))
    low.emit("GATHER", [row, index], [moved(low, node.output, Variant(None), row)], axis=0)


def expand(low: TfliteLowering, node: TfliteNode) -> None:
    read = _data(node)
    if -1 in low.signature(node.output):
        low.fixed_batch = True  # the shape is a constant that holds the batch
    index, variant = taken(low, read, last=False)
    if low.shape(read.tensor) == low.shape(node.output) and -1 not in low.signature(node.output):
        low.alias(node.output, variant, index)
        return
    made = moved(low, node.output, variant, index)
    low.emit("BROADCAST_TO", [index, low.integers("shape", low.shape(node.output))], [made])


def depth_to_space(low: TfliteLowering, node: TfliteNode) -> None:
    """LiteRT takes the block from the front of the channels; torch's pixel shuffle from their end."""
    read = _data(node)
    block = int(node.main.attributes["blocksize"])
    index, variant = taken(low, read, last=True, wide=False)
    if node.main.attribute("mode") == "CRD":
        channels = low.shape(read.tensor)[1]
        order = np.arange(channels, dtype=np.int32).reshape(-1, block * block).T.reshape(-1)
        source = low.tensors[index]
        turned = low.temporary(f"{read.tensor}_blocks", index, source.shape, source.signature)
        low.emit("GATHER", [index, low.constant("order", order)], [turned], axis=3)
        index = turned
    low.emit("DEPTH_TO_SPACE", [index], [low.make(node.output, variant)], blockSize=block)


def cast(low: TfliteLowering, node: TfliteNode) -> None:
    read, to = _data(node), int(node.main.attributes["to"])
    if to not in _CASTS:
        raise refusal(node.main, f"to the ONNX type {to}", f"cast to {', '.join(_CASTS.values())}")
    last = low.made_last(read)
    index = low.take(read, last=last, integer=False)
    low.emit("CAST", [index], [low.make(node.output, Variant(None, last), _CASTS[to])])


_CASTS = {1: "float32", 6: "int32", 7: "int64", 9: "bool"}

SHAPES: dict[str, Lowerer] = {
    "Identity": identity,
    "Reshape": reshape,
    "Flatten": reshape,
    "Squeeze": reshape,
    "Unsqueeze": reshape,
    "Transpose": transpose,
    "Concat": concat,
    "Slice": slice_,
    "Split": split,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Expand": expand,
    "Tile": tile,
    "DepthToSpace": depth_to_space,
    "Cast": cast,
}
