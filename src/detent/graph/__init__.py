"""STRUCTURE: from a model to graphs, what each operation is, the Plan, and carrying it out."""

from detent.graph.batch_norm import STRATEGIES, FoldedBatchNorm, foldable, folding_factor
from detent.graph.capturable import other_real
from detent.graph.capture import Captured, capture
from detent.graph.codes import keeping_codes
from detent.graph.derived_bias import DerivedBias
from detent.graph.eval_mode import eval_mode
from detent.graph.float_ranges import FloatRange, keeping_ranges, ranges_of, sum_of_weights
from detent.graph.fold import fold_batch_norms
from detent.graph.fusion import fuse
from detent.graph.held_weights import WHY_FLOAT, hold_weights
from detent.graph.insertion import insert, quantizer_path
from detent.graph.kinds import KINDS, MULTIPLYING, REORDERING, Kind, kind_of
from detent.graph.names import float_state_dict, remember_float_names
from detent.graph.observing import observing, quantizers_of
from detent.graph.own_padding import part_paddings
from detent.graph.plan import FloatTensor, Plan, PlannedOp, QuantizedTensor
from detent.graph.region import RESERVED, Region
from detent.graph.removal import without_quantizers
from detent.graph.runner import TORCH_ERRORS, Runner, Walk, described
from detent.graph.running import Inputs, flat, join
from detent.graph.stubs import DeQuantStub, QuantStub
from detent.graph.wrap import Functional, wrap

__all__ = [
    "KINDS",
    "MULTIPLYING",
    "REORDERING",
    "RESERVED",
    "STRATEGIES",
    "TORCH_ERRORS",
    "WHY_FLOAT",
    "Captured",
    "DeQuantStub",
    "DerivedBias",
    "FloatRange",
    "FloatTensor",
    "FoldedBatchNorm",
    "Functional",
    "Inputs",
    "Kind",
    "Plan",
    "PlannedOp",
    "QuantStub",
    "QuantizedTensor",
    "Region",
    "Runner",
    "Walk",
    "capture",
    "described",
    "eval_mode",
    "flat",
    "float_state_dict",
    "fold_batch_norms",
    "foldable",
    "folding_factor",
    "fuse",
    "hold_weights",
    "insert",
    "join",
    "keeping_codes",
    "keeping_ranges",
    "kind_of",
    "observing",
    "other_real",
    "part_paddings",
    "quantizer_path",
    "quantizers_of",
    "ranges_of",
    "remember_float_names",
    "sum_of_weights",
    "without_quantizers",
    "wrap",
]
