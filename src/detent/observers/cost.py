"""How much a choice of scale and zero point costs on data that is known by its histogram."""

from __future__ import annotations

from torch import Tensor

from detent.numerics import QParams, Scheme

__all__ = ["rounding_cost"]


def rounding_cost(values: Tensor, weights: Tensor, qparams: QParams, scheme: Scheme, norm: float) -> Tensor:
    """The weighted sum of `|x - fake_quantize(x)| ** norm` of each row.

    `values` and `weights` are (rows, points), `qparams` has an entry for each row. Clipping is included.
    """
    scale, zero_point = qparams.scale.to(values.dtype)[:, None], qparams.zero_point.to(values.dtype)[:, None]
    offset = 0.0 if qparams.offset is None else qparams.offset.to(values.dtype)[:, None]
    codes = scheme.grid.encode((values + offset) / scale, zero_point, scheme.rounding.without_chance())
    error = (values + offset - scheme.grid.decode(codes, zero_point) * scale).abs_()
    return (weights * (error.square_() if norm == 2 else error.pow_(norm))).sum(1)
