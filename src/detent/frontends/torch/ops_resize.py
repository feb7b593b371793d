"""Resizing of images, and pixel shuffle."""

from __future__ import annotations

from typing import Any

import numpy as np

from detent.errors import DeployError
from detent.frontends.torch.builder import Builder
from detent.frontends.torch.ops_adaptive import adaptive_pool
from detent.frontends.torch.values import Ref

__all__ = ["channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "resize"]

_HALF_PIXEL = {"coordinate_transformation_mode": "half_pixel"}

_RESIZE_MODES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest-exact": {"mode": "nearest", "nearest_mode": "round_prefer_ceil", **_HALF_PIXEL},
    **{name: {"mode": "linear", **_HALF_PIXEL} for name in ("linear", "bilinear", "trilinear")},
    "bicubic": {"mode": "cubic", "cubic_coeff_a": -0.75, **_HALF_PIXEL},
}


def resize(
    b: Builder,
    input: Ref,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Ref:
    if mode == "area":
        return adaptive_pool("Average")(b, input, size)
    if mode not in _RESIZE_MODES or antialias:
        raise DeployError(
            f"write {b.current!r}", f"mode {mode!r}, antialias {antialias}", "resize by nearest or linear"
        )
    attributes = dict(_RESIZE_MODES[mode])
    if align_corners:
        attributes["coordinate_transformation_mode"] = "align_corners"
    rank = input.ndim - 2
    if size is None and scale_factor is not None and not recompute_scale_factor:
        factors = [float(f) for f in scale_factor] if isinstance(scale_factor, (list, tuple)) else None
        factors = factors or [float(scale_factor)] * rank
    else:
        factors = [int(new) / int(old) for new, old in zip(b.result.shape[2:], input.shape[2:], strict=True)]
        if any(factor * 2**10 % 1 for factor in factors):
            return _resize_to(b, input, attributes)
    return b.final("Resize", [input, None, b.constant(np.array([1, 1, *factors], np.float32))], **attributes)


def _resize_to(b: Builder, x: Ref, attributes: dict[str, Any]) -> Ref:
    """To sizes: a factor that float32 cannot hold, such as 5/6, may give one element less."""
    to, empty = [int(size_) for size_ in b.result.shape[2:]], b.constant(np.zeros(0, np.float32))
    if b.opset >= 18:
        axes = list(range(2, x.ndim))
        return b.final("Resize", [x, None, None, b.integers(to)], axes=axes, **attributes)
    kept = b.emit("Slice", [b.emit("Shape", [x]), b.integers([0]), b.integers([2])])
    return b.final("Resize", [x, None, empty, b.emit("Concat", [kept, b.integers(to)], axis=0)], **attributes)


def pixel_shuffle(b: Builder, input: Ref, upscale_factor: int) -> Ref:
    return b.final("DepthToSpace", [input], blocksize=upscale_factor, mode="CRD")


def pixel_unshuffle(b: Builder, input: Ref, downscale_factor: int) -> Ref:
    """SpaceToDepth puts the offsets before the channels; torch the other way round."""
    _, channels, height, width = input.shape
    f, rows, columns = downscale_factor, int(height) // downscale_factor, int(width) // downscale_factor
    x = b.emit("Reshape", [input, b.integers([-1, int(channels), rows, f, columns, f])])
    x = b.emit("Transpose", [x], perm=[0, 1, 3, 5, 2, 4])
    return b.final("Reshape", [x, b.integers([-1, int(channels) * f * f, rows, columns])])


def channel_shuffle(b: Builder, input: Ref, groups: int) -> Ref:
    _, channels, *plane = input.shape
    sizes = [int(size) for size in plane]
    x = b.emit("Reshape", [input, b.integers([-1, groups, int(channels) // groups, *sizes])])
    x = b.emit("Transpose", [x], perm=[0, 2, 1, *range(3, 3 + len(sizes))])
    return b.final("Reshape", [x, b.integers([-1, int(channels), *sizes])])
