"""Bilinear resizing of int8 codes: XNNPACK with weights of 11 bits, LiteRT's own kernels with weights of 10."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detent.ir import Encoding, Network, Op
from detent.targets.litert.arithmetic.common_steps import shift_of
from detent.twin.arithmetic import Kernel

__all__ = ["own_resize", "xnnpack_resize"]

Integers = npt.NDArray[np.int64]
f32 = np.float32

_BITS, _OWN_BITS = 11, 10


def _linear_resize(graph: Network, op: Op) -> tuple[int, int, str] | None:
    """The output rows and columns of a bilinear Resize, its coordinate mode; None for other modes and free sizes."""
    sizes = graph.shapes.get(op.outputs[0], ())[2:]
    where = str(op.attribute("coordinate_transformation_mode"))
    known = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    if op.attribute("mode") != "linear" or len(sizes) != 2 or where not in known:
        return None
    rows, columns = sizes
    return (rows, columns, where) if isinstance(rows, int) and isinstance(columns, int) else None


def xnnpack_resize(graph: Network, op: Op) -> Kernel | None:
    found = _linear_resize(graph, op)
    if found is None:
        return None
    rows, columns, where = found

    def kernel(codes: Tensor) -> Tensor:
        x = codes.to(torch.int64).numpy()
        top, bottom, down = _neighbors(x.shape[2], rows, where)
        left, right, across = _neighbors(x.shape[3], columns, where)
        upper, lower = x[:, :, top], x[:, :, bottom]
        first = (upper[..., left] << _BITS) + (upper[..., right] - upper[..., left]) * across
        second = (lower[..., left] << _BITS) + (lower[..., right] - lower[..., left]) * across
        total = (first << _BITS) + (second - first) * down[:, None]
        return torch.from_numpy(((total + (1 << (2 * _BITS - 1))) >> (2 * _BITS)).astype(f32))

    return kernel


def _neighbors(size: int, count: int, where: str) -> tuple[Integers, Integers, Integers]:
    """For each output row: the two input rows it lies between, its distance from the first with 11 fractional bits."""
    if where == "align_corners":
        scale = f32(size - 1) / f32(count - 1) if count > 1 else f32(0)
    else:
        scale = f32(size) / f32(count)
    offset = f32(0.5) * scale - f32(0.5) if "half_pixel" in where else f32(0)
    # The product and the sum are fused.
    exact = np.arange(count, dtype=np.float64) * float(scale) + float(offset)
    position = np.clip(exact.astype(f32), f32(0), f32(size - 1))
    before = position.astype(np.int64)
    behind = np.minimum(before + 1, size - 1)
    return before, behind, np.rint((position - before.astype(f32)) * 2**_BITS).astype(np.int64)


def own_resize(graph: Network, op: Op, x: Encoding) -> Kernel | None:
    found = _linear_resize(graph, op)
    if found is None:
        return None
    rows, columns, where = found
    shift = shift_of(x)

    def kernel(codes: Tensor) -> Tensor:
        raw = codes.to(torch.int64).numpy() - shift
        top, bottom, down = _own_neighbors(raw.shape[2], rows, where)
        left, right, across = _own_neighbors(raw.shape[3], columns, where)
        unit = 1 << _OWN_BITS
        upper, lower = raw[:, :, top], raw[:, :, bottom]
        first = upper[..., left] * (unit - across) + upper[..., right] * across
        second = lower[..., left] * (unit - across) + lower[..., right] * across
        total = first * (unit - down)[:, None] + second * down[:, None]
        half = np.where(total > 0, 1 << (2 * _OWN_BITS - 1), -(1 << (2 * _OWN_BITS - 1)))
        rounded = np.trunc((total + half) / (1 << (2 * _OWN_BITS)))
        return torch.from_numpy((rounded + shift).astype(f32))

    return kernel


def _own_neighbors(size: int, count: int, where: str) -> tuple[Integers, Integers, Integers]:
    unit = 1 << _OWN_BITS
    if where == "align_corners" and count > 1:
        scale = (unit * (size - 1) + (count - 1) // 2) // (count - 1)
    else:
        scale = (unit * size + count // 2) // count
    position = np.arange(count, dtype=np.int64) * scale
    if "half_pixel" in where:
        position += scale // 2 - unit // 2
    before = np.maximum(np.trunc(position / unit).astype(np.int64), 0)
    behind = np.minimum(np.trunc((position + unit - 1) / unit).astype(np.int64), size - 1)
    return before, behind, position - unit * before
