"""The numbers that exist (grids), how a tensor maps onto them (schemes), and the arithmetic of that mapping."""

from detent.numerics.accumulator_kernel import fused_accumulator_quantize
from detent.numerics.float_grids import E2M1Grid, E4M3Grid, E5M2Grid, FloatGrid, Nf4Grid
from detent.numerics.float_kernel import fused_float_quantize
from detent.numerics.granularity import Granularity, PerChannel, PerGroup, PerTensor
from detent.numerics.grid import Grid
from detent.numerics.grids import GRIDS, ApotGrid, GridName, HalfGrid, IntGrid, LogGrid
from detent.numerics.kernels import fused_fake_quantize, keep_residues
from detent.numerics.learned_step import learned_step, scale_gradient
from detent.numerics.native_kernels import Inside
from detent.numerics.pairs import PAIR_LIMIT, Pairs
from detent.numerics.qparams import QParams
from detent.numerics.reference import (
    choose_qparams,
    dequantize,
    fake_quantize,
    quantize,
    refuse_negative,
    with_scale,
)
from detent.numerics.requirement import Requirement
from detent.numerics.rounding import Rounding, round_to_integer
from detent.numerics.scales import (
    SUPER_BLOCKS,
    ScaleType,
    block_scales,
    covering_scale,
    nearest_power_of_two,
    nearest_scale,
    next_power_of_two,
    super_block_scales,
)
from detent.numerics.scheme import Scheme

__all__ = [
    "GRIDS",
    "PAIR_LIMIT",
    "SUPER_BLOCKS",
    "ApotGrid",
    "E2M1Grid",
    "E4M3Grid",
    "E5M2Grid",
    "FloatGrid",
    "Granularity",
    "Grid",
    "GridName",
    "HalfGrid",
    "Inside",
    "IntGrid",
    "LogGrid",
    "Nf4Grid",
    "Pairs",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "QParams",
    "Requirement",
    "Rounding",
    "ScaleType",
    "Scheme",
    "block_scales",
    "choose_qparams",
    "covering_scale",
    "dequantize",
    "fake_quantize",
    "fused_accumulator_quantize",
    "fused_fake_quantize",
    "fused_float_quantize",
    "keep_residues",
    "learned_step",
    "nearest_power_of_two",
    "nearest_scale",
    "next_power_of_two",
    "quantize",
    "refuse_negative",
    "round_to_integer",
    "scale_gradient",
    "super_block_scales",
    "with_scale",
]
