"""The numbers that exist (grids), how a tensor maps onto them (schemes), and the arithmetic of that mapping."""

from detent.numerics.granularity import Granularity, PerChannel, PerGroup, PerTensor
from detent.numerics.grid import Grid
from detent.numerics.grids import GRIDS, ApotGrid, GridName, IntGrid, LogGrid
from detent.numerics.kernels import Inside, fused_fake_quantize, scale_gradient
from detent.numerics.pairs import PAIR_LIMIT, Pairs
from detent.numerics.qparams import QParams
from detent.numerics.reference import (
    choose_qparams,
    dequantize,
    fake_quantize,
    nearest_power_of_two,
    next_power_of_two,
    quantize,
    refuse_negative,
    with_scale,
)
from detent.numerics.requirement import Requirement
from detent.numerics.rounding import Rounding, round_to_integer
from detent.numerics.scheme import ScaleType, Scheme

__all__ = [
    "GRIDS",
    "PAIR_LIMIT",
    "ApotGrid",
    "Granularity",
    "Grid",
    "GridName",
    "Inside",
    "IntGrid",
    "LogGrid",
    "Pairs",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "QParams",
    "Requirement",
    "Rounding",
    "ScaleType",
    "Scheme",
    "choose_qparams",
    "dequantize",
    "fake_quantize",
    "fused_fake_quantize",
    "nearest_power_of_two",
    "next_power_of_two",
    "quantize",
    "refuse_negative",
    "round_to_integer",
    "scale_gradient",
    "with_scale",
]
