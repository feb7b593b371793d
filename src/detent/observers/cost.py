"""The error of a scale and zero point on data given as a histogram, or value by value."""

from __future__ import annotations

import torch
from torch import Tensor

from detent.numerics import QParams, Scheme

__all__ = ["rounding_cost", "rounding_cost_of_values"]

_AT_ONCE = 2**16  # values in float64, with what is computed of them: what a core has near


def rounding_cost(values: Tensor, weights: Tensor, qparams: QParams, scheme: Scheme, norm: float) -> Tensor:
    """The weighted sum of `|x - fake_quantize(x)| ** norm` of each row.

    `values` and `weights` are (rows, points), `qparams` has an entry for each row. Clipping is included.
    """
    return (weights * _errors(values, qparams, scheme, norm)).sum(1)


def rounding_cost_of_values(rows: Tensor, qparams: QParams, scheme: Scheme, norm: float) -> Tensor:
    """The same of every value once, in float64: a few rows at a time, of which there may be millions."""
    step = max(1, _AT_ONCE // rows.shape[1])
    parts = [slice(start, start + step) for start in range(0, len(rows), step)]
    costs = [_errors(rows[part].double(), _rows_of(qparams, part), scheme, norm).sum(1) for part in parts]
    return torch.cat(costs)


def _errors(values: Tensor, qparams: QParams, scheme: Scheme, norm: float) -> Tensor:
    scale, zero_point = qparams.scale.to(values.dtype)[:, None], qparams.zero_point.to(values.dtype)[:, None]
    offset = 0.0 if qparams.offset is None else qparams.offset.to(values.dtype)[:, None]
    codes = scheme.grid.encode((values + offset) / scale, zero_point, scheme.rounding.without_chance())
    error = (values + offset - scheme.grid.decode(codes, zero_point) * scale).abs_()
    return error.square_() if norm == 2 else error.pow_(norm)


def _rows_of(qparams: QParams, rows: slice) -> QParams:
    offset = None if qparams.offset is None else qparams.offset[rows]
    return QParams(qparams.scale[rows], qparams.zero_point[rows], offset)
