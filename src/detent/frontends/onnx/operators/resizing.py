"""Resize and Upsample in all their modes, by one separable interpolation; and GridSample."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from detent.frontends.onnx.builder import Constant
from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.operators.interpolation import COORDINATES, MODES, NEAREST, AxisPlan, interpolate
from detent.frontends.onnx.reading.sizes import bounded

__all__ = ["CONVERTERS"]


def _upsample(call: Call) -> Any:
    if call.opset >= 10:
        call.refuse("it was removed in opset 10", "use Resize")
    scales = call.known(1, "scale").tolist() if call.opset >= 9 else call.reals("scales")
    return _simple(call, [float(scale) for scale in scales or []])


def _simple(call: Call, scales: list[float]) -> Any:
    """As before opset 11: asymmetric, with rounding down for nearest."""
    mode = call.text("mode")
    if mode not in ("nearest", "linear"):
        call.refuse(f"the mode {mode!r}", "export the model again")
    if mode == "nearest" and any(
        scale < 1 and not math.isclose(1 / scale, round(1 / scale), rel_tol=1e-6) for scale in scales
    ):
        call.refuse(
            f"shrinking by {scales}, of which opset 10 does not say which pixel is nearest",
            "convert it to opset 11 or later",
        )
    plan = AxisPlan(mode=mode, coordinates="asymmetric", nearest="floor")
    return _emit(call, plan, None, scales, None, "stretch")


def _resize(call: Call) -> Any:
    if call.opset < 11:
        return _simple(call, [float(scale) for scale in call.known(1, "scale").tolist()])
    plan = AxisPlan(
        mode=call.text("mode"),
        coordinates=call.text("coordinate_transformation_mode"),
        nearest=call.text("nearest_mode"),
        cubic=call.real("cubic_coeff_a"),
        exclude_outside=bool(call.integer("exclude_outside")),
        antialias=bool(call.integer("antialias")),
        extrapolation=call.real("extrapolation_value"),
    )
    if plan.mode not in MODES or plan.coordinates not in COORDINATES or plan.nearest not in NEAREST:
        call.refuse(f"the modes {plan.mode}, {plan.coordinates}, {plan.nearest}", "export the model again")
    if plan.mode == "nearest" and plan.coordinates == "half_pixel_symmetric":
        call.refuse(
            "nearest pixels around a center that lies between two, which runtimes round differently", "use half_pixel"
        )
    policy = call.text("keep_aspect_ratio_policy")
    axes = call.integers("axes")
    if plan.coordinates == "tf_crop_and_resize":
        plan = plan._replace(crop=tuple(float(number) for number in call.known(1, "region").tolist()))
    sizes = call.optional(3)
    if sizes is not None:
        wanted = call.numbers(3)
        if wanted is None:
            return call.op(resize_to, call.value(0), sizes, kind="resize", plan=plan, axes=axes, policy=policy)
        return _emit(call, plan, axes, None, wanted, policy)
    scales = call.constant(2)
    if scales is None:
        return call.op(resize_by, call.value(0), call.value(2), kind="resize", plan=plan, axes=axes)
    return _emit(call, plan, axes, [float(scale) for scale in scales.tolist()], None, policy)


def _emit(
    call: Call, plan: AxisPlan, axes: list[int] | None, scales: list[float] | None, sizes: list[int] | None, policy: str
) -> Any:
    x = call.value(0)
    mode = _torch_mode(plan)
    whole = scales is not None and len(scales) == 4 and all(scale.is_integer() and scale >= 1 for scale in scales)
    if isinstance(x, Constant) or not call.is_real():
        mode = ""
    if mode and whole and scales is not None and axes is None and call.rank() == 4 and scales[:2] == [1, 1]:
        factors = (int(scales[2]), int(scales[3]))
        if mode == "nearest":
            return call.apply(F.interpolate, x, scale_factor=factors, mode="nearest")
        return call.apply(F.interpolate, x, scale_factor=factors, mode="bilinear", align_corners=False)
    return call.op(resize, x, kind="resize", plan=plan, axes=axes, scales=scales, sizes=sizes, policy=policy)


def _torch_mode(plan: AxisPlan) -> str:
    """The mode of `F.interpolate` that computes the same when growing by whole factors; "" if none does."""
    if plan.mode == "nearest" and plan.coordinates == "asymmetric" and plan.nearest == "floor":
        return "nearest"
    # On a whole factor the centers of half pixels round to the same pixel whichever way ties go: there are none.
    smooth = plan.mode == "linear" and plan.coordinates in ("half_pixel", "pytorch_half_pixel")
    return "linear" if smooth and not plan.exclude_outside else ""


def resize_to(x: Tensor, sizes: Tensor, *, plan: AxisPlan, axes: list[int] | None, policy: str) -> Tensor:
    return resize(x, plan=plan, axes=axes, scales=None, sizes=[int(size) for size in sizes.tolist()], policy=policy)


def resize_by(x: Tensor, scales: Tensor, *, plan: AxisPlan, axes: list[int] | None) -> Tensor:
    return resize(x, plan=plan, axes=axes, scales=scales.tolist(), sizes=None, policy="stretch")


def resize(
    x: Tensor,
    *,
    plan: AxisPlan,
    axes: list[int] | None,
    scales: list[float] | None,
    sizes: list[int] | None,
    policy: str,
) -> Tensor:
    at = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    given: list[Any] = list(scales if scales is not None else sizes or [])
    if len(given) != len(at):
        raise ValueError(f"{len(given)} sizes or scales for {len(at)} axes")
    if scales is not None:
        factors = [float(scale) for scale in scales]
        wanted = [math.floor(x.shape[axis] * factor) for axis, factor in zip(at, factors, strict=True)]
    else:
        factors, wanted = _by_sizes(x, at, [int(size) for size in given], policy)
    bounded([wanted[at.index(axis)] if axis in at else size for axis, size in enumerate(x.shape)])
    for index, (axis, factor, size) in enumerate(zip(at, factors, wanted, strict=True)):
        crop = (plan.crop[index], plan.crop[index + len(at)]) if plan.crop else (0.0, 1.0)
        if size != x.shape[axis] or factor != 1 or crop != (0.0, 1.0):
            x = interpolate(x, axis, factor, size, plan, crop)
    return x


def _by_sizes(x: Tensor, at: list[int], sizes: list[int], policy: str) -> tuple[list[float], list[int]]:
    factors = [size / x.shape[axis] for axis, size in zip(at, sizes, strict=True)]
    if policy == "stretch":
        return factors, sizes
    one = min(factors) if policy == "not_larger" else max(factors)
    return [one] * len(at), [math.floor(one * x.shape[axis] + 0.5) for axis in at]


def _grid_sample(call: Call) -> Any:
    modes = {
        "bilinear": "bilinear",
        "linear": "bilinear",
        "nearest": "nearest",
        "bicubic": "bicubic",
        "cubic": "bicubic",
    }
    mode, padding = call.text("mode"), call.text("padding_mode")
    rank = call.rank()
    if mode not in modes or padding not in ("zeros", "border", "reflection"):
        call.refuse(f"the modes {mode} and {padding}", "export the model again")
    if rank not in (4, 5) or (rank == 5 and modes[mode] == "bicubic"):
        call.refuse(f"{mode} sampling of {rank} dimensions", "2-d grids, and 3-d ones that are not cubic, are imported")
    aligned = bool(call.integer("align_corners"))
    return call.apply(
        F.grid_sample, call.value(0), call.value(1), mode=modes[mode], padding_mode=padding, align_corners=aligned
    )


def _affine_grid(call: Call) -> Any:
    return call.op(affine_grid, call.value(0), call.value(1), aligned=bool(call.integer("align_corners")))


def affine_grid(theta: Tensor, size: Tensor, *, aligned: bool) -> Tensor:
    return F.affine_grid(theta, bounded(size.tolist()), align_corners=aligned)


CONVERTERS: dict[str, Converter] = {
    "Resize": _resize,
    "Upsample": _upsample,
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
}
