"""Operators of detectors: selecting boxes, and sampling inside them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from detent.frontends.onnx.call import Call, Converter
from detent.frontends.onnx.reading.sizes import bounded

__all__ = ["CONVERTERS"]


def _non_max_suppression(call: Call) -> Any:
    given = (call.value(0), call.value(1), *(call.optional(at) for at in (2, 3, 4)))
    return call.op(non_max_suppression, *given, centered=bool(call.integer("center_point_box")))


def non_max_suppression(
    boxes: Tensor, scores: Tensor, most: Tensor | None, overlap: Tensor | None, least: Tensor | None, *, centered: bool
) -> Tensor:
    """Rows of (batch, class, box), for each class in descending order of the score."""
    limit = 0 if most is None else int(most)
    threshold = 0.0 if overlap is None else float(overlap)
    found = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], centered)
        for kind in range(scores.shape[1]):
            own = scores[batch, kind]
            order = torch.sort(own, descending=True, stable=True).indices
            if least is not None:
                order = order[own[order] > float(least)]
            found += [(batch, kind, box) for box in _kept(corners, order, limit, threshold)]
    return torch.tensor(found, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def _corners(boxes: Tensor, centered: bool) -> Tensor:
    """(low, low, high, high), whichever corners are given."""
    if centered:
        center, half = boxes[:, :2], boxes[:, 2:] / 2
        return torch.cat([center - half, center + half], 1)
    return torch.cat([torch.minimum(boxes[:, :2], boxes[:, 2:]), torch.maximum(boxes[:, :2], boxes[:, 2:])], 1)


def _kept(boxes: Tensor, order: Tensor, limit: int, threshold: float) -> list[int]:
    kept: list[int] = []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while len(order) and len(kept) < limit:
        best, order = order[0], order[1:]
        kept.append(int(best))
        sides = torch.minimum(boxes[best, 2:], boxes[order, 2:]) - torch.maximum(boxes[best, :2], boxes[order, :2])
        shared = sides.clamp(min=0).prod(1)
        union = areas[best] + areas[order] - shared
        order = order[~((shared > 0) & (shared / union > threshold))]
    return kept


def _roi_align(call: Call) -> Any:
    mode = call.text("mode")
    if mode != "avg":
        call.refuse(f"the mode {mode!r}, which runtimes compute differently", "use 'avg'")
    half = call.opset >= 16 and call.text("coordinate_transformation_mode") == "half_pixel"
    size = bounded([call.integer("output_height"), call.integer("output_width")])
    options: dict[str, Any] = {"size": size, "ratio": call.integer("sampling_ratio"), "half_pixel": half}
    return call.op(roi_align, *(call.value(at) for at in range(3)), scale=call.real("spatial_scale"), **options)


def roi_align(
    x: Tensor, boxes: Tensor, batches: Tensor, *, size: list[int], ratio: int, scale: float, half_pixel: bool
) -> Tensor:
    """The mean of bilinear samples in each of `size` bins of each box."""
    pooled = []
    for box, batch in zip((boxes * scale).tolist(), batches.tolist(), strict=True):
        offset = 0.5 if half_pixel else 0.0
        left, top, right, bottom = (number - offset for number in box)
        extent = [bottom - top, right - left]
        if not half_pixel:
            extent = [max(side, 1.0) for side in extent]
        counts = [
            ratio if ratio > 0 else max(math.ceil(side / bins), 1) for side, bins in zip(extent, size, strict=True)
        ]
        bounded([x.shape[1], size[0] * counts[0], size[1] * counts[1]])
        rows = _weights(top, extent[0], size[0], counts[0], x.shape[2], x)
        columns = _weights(left, extent[1], size[1], counts[1], x.shape[3], x)
        pooled.append(torch.einsum("ph,chw,qw->cpq", rows, x[int(batch)], columns))
    return torch.stack(pooled) if pooled else x.new_zeros(0, x.shape[1], *size)


def _weights(start: float, extent: float, bins: int, count: int, length: int, like: Tensor) -> Tensor:
    """(bins, length): how much each row of the image counts in the mean of each bin."""
    places = start + (torch.arange(bins * count, dtype=torch.float64) + 0.5) * (extent / (bins * count))
    outside = (places < -1) | (places > length)
    places = places.clamp(0, length - 1)
    low = places.floor()
    part = places - low
    weights = torch.zeros(bins * count, length, dtype=torch.float64)
    rows = torch.arange(bins * count)
    weights[rows, low.long()] += 1 - part
    weights[rows, (low.long() + 1).clamp(max=length - 1)] += part
    weights[outside] = 0
    return weights.reshape(bins, count, length).mean(1).to(device=like.device, dtype=like.dtype)


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression, "RoiAlign": _roi_align}
