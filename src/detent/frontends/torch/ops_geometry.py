"""Sampling grids, distances and spectra, in float."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder, Read
from detent.frontends.torch.values import Ref
from detent.graph.decompositions.spectra import stft_kernels

__all__ = ["affine_grid", "cdist", "stft"]

_FEW = 25
"""So many rows torch compares one by one, and more by a product."""


def affine_grid(b: Builder, theta: Ref, size: Any, align_corners: bool | None = None) -> Ref:
    """The places of a grid of `size`, from -1 to 1, moved by a matrix for each sample."""
    lengths = [_fixed(b, length) for length in list(size)[2:]]
    unmoved = F.affine_grid(torch.eye(len(lengths), len(lengths) + 1)[None], [1, 1, *lengths], align_corners)
    places = F.pad(unmoved.reshape(-1, len(lengths)), (0, 1), value=1.0)
    turned = b.emit("Transpose", [theta], perm=[0, 2, 1])
    moved = b.emit("MatMul", [b.constant(places), turned])
    return b.final("Reshape", [moved, b.integers([-1, *lengths, len(lengths)])])


def _fixed(b: Builder, length: Any) -> int:
    if not isinstance(length, int):
        raise DeployError(f"write {b.current!r}", "the size of its grid is free", "give it a fixed size")
    return length


def cdist(b: Builder, x1: Ref, x2: Ref, p: float = 2.0, compute_mode: str | None = None) -> Ref:
    """The distance of each row of `x1` from each of `x2`."""
    if p not in (1, 2):
        raise DeployError(f"write {b.current!r}", f"distances of the norm {p}", "use p=1 or p=2")
    rows = [size if isinstance(size, int) else _FEW + 1 for size in (x1.shape[-2], x2.shape[-2])]
    by_product = compute_mode == "use_mm_for_euclid_dist" or (
        compute_mode != "donot_use_mm_for_euclid_dist" and max(rows) > _FEW
    )
    if p == 2 and by_product:
        return b.final("Sqrt", [_squares_by_product(b, x1, x2)])
    last = b.integers([-1])
    apart = b.emit("Sub", [b.emit("Unsqueeze", [x1, b.integers([-2])]), b.emit("Unsqueeze", [x2, b.integers([-3])])])
    if p == 1:
        return b.final("ReduceSum", [b.emit("Abs", [apart]), last], keepdims=0)
    return b.final("Sqrt", [b.emit("ReduceSum", [b.emit("Mul", [apart, apart]), last], keepdims=0)])


def _squares_by_product(b: Builder, x1: Ref, x2: Ref) -> Read:
    """|x|^2 + |y|^2 - 2 x y, and not less than 0."""
    last = b.integers([-1])
    lengths = [b.emit("ReduceSum", [b.emit("Mul", [each, each]), last], keepdims=1) for each in (x1, x2)]
    order = [*range(x2.ndim - 2), x2.ndim - 1, x2.ndim - 2]
    turned, across = (b.emit("Transpose", [each], perm=order) for each in (x2, lengths[1]))
    twice = b.emit("Mul", [b.emit("MatMul", [x1, turned]), b.constant(np.float32(2))])
    return b.emit("Relu", [b.emit("Sub", [b.emit("Add", [lengths[0], across]), twice])])


def stft(
    b: Builder,
    input: Ref,
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: Ref | None,
    center: bool,
    pad_mode: str,
    normalized: bool,
    onesided: bool,
) -> Ref:
    """A convolution whose kernels are waves under the window."""
    if window is not None and window.name not in b.constants:
        raise DeployError(f"write {b.current!r}", "its window is computed from the inputs", "give it a constant window")
    if pad_mode not in _PADDING:
        raise DeployError(f"write {b.current!r}", f"it pads by {pad_mode!r}", f"use {', '.join(_PADDING)}")
    shape = None if window is None else torch.from_numpy(b.constants[window.name])
    kernels = stft_kernels(n_fft, win_length, shape, normalized=normalized, onesided=onesided)
    axes = [1] if input.ndim == 2 else [0, 1]
    x = b.emit("Unsqueeze", [input, b.integers(axes)])
    if center:
        half = n_fft // 2
        x = b.emit("Pad", [x, b.integers([0, 0, half, 0, 0, half])], mode=_PADDING[pad_mode])
    held = b.constant(kernels)
    options = {"kernel_shape": [n_fft], "strides": [hop_length], "pads": [0, 0], "dilations": [1], "group": 1}
    if input.ndim == 2:
        return b.final("Conv", [x, held], **options)
    return b.final("Squeeze", [b.emit("Conv", [x, held], **options), b.integers([0])])


_PADDING = {"reflect": "reflect", "replicate": "edge", "constant": "constant"}
