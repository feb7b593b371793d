"""STRUCTURE: from a model to graphs, what each operation is, the Plan, and carrying it out."""

from detent.graph.batch_norm import STRATEGIES, FoldedBatchNorm, foldable, folding_factor
from detent.graph.capture import Captured, capture
from detent.graph.codes import keeping_codes
from detent.graph.derived_bias import DerivedBias
from detent.graph.fold import fold_batch_norms
from detent.graph.fusion import fuse
from detent.graph.held_weights import WHY_FLOAT, hold_weights
from detent.graph.insertion import insert, quantizer_path
from detent.graph.kinds import KINDS, MULTIPLYING, Kind, kind_of
from detent.graph.names import float_state_dict, remember_float_names
from detent.graph.observing import observing, quantizers_of
from detent.graph.plan import FloatTensor, Plan, PlannedOp, QuantizedTensor
from detent.graph.region import RESERVED, Region
from detent.graph.removal import without_quantizers
from detent.graph.running import Inputs, flat
from detent.graph.stubs import DeQuantStub, QuantStub
from detent.graph.wrap import Functional, wrap

__all__ = [
    "KINDS",
    "MULTIPLYING",
    "RESERVED",
    "STRATEGIES",
    "WHY_FLOAT",
    "Captured",
    "DeQuantStub",
    "DerivedBias",
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
    "capture",
    "flat",
    "float_state_dict",
    "fold_batch_norms",
    "foldable",
    "folding_factor",
    "fuse",
    "hold_weights",
    "insert",
    "keeping_codes",
    "kind_of",
    "observing",
    "quantizer_path",
    "quantizers_of",
    "remember_float_names",
    "without_quantizers",
    "wrap",
]
