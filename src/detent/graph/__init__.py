"""The training level: captures a model as graphs, classifies its operations, and inserts the quantizers of a Plan."""

from detent.graph.batch_norm import STRATEGIES, FoldedBatchNorm, foldable, folding_factor
from detent.graph.capture.capturable import other_real
from detent.graph.capture.capture import Captured, capture
from detent.graph.capture.custom_tracer import CustomTracer
from detent.graph.capture.running import Inputs, flat, join, line_text
from detent.graph.codes import compress_saved_activations
from detent.graph.corrections import BEFORE_CORRECTION
from detent.graph.decompositions.own_padding import split_conv_padding
from detent.graph.decompositions.zero_terms import drop_zero_terms
from detent.graph.derived_bias import DerivedBias
from detent.graph.eval_mode import eval_mode
from detent.graph.float_ranges import FloatRange, keeping_ranges, ranges_of, sum_of_weights
from detent.graph.float_training import warning_if_trained
from detent.graph.fold import fold_batch_norms
from detent.graph.fusion import fuse
from detent.graph.insertion import insert, quantizer_path
from detent.graph.kinds import (
    ACTIVATIONS,
    AVERAGE_POOLS,
    BINARY,
    CLIPPING,
    KINDS,
    MULTIPLYING,
    PASSING,
    POOLS,
    REORDERING,
    WEIGHTED,
    Kind,
)
from detent.graph.names import FloatNames, float_state_dict
from detent.graph.observing import modes_to_observe, observing, quantizers_of
from detent.graph.plan import FloatTensor, Plan, PlanEntry, PlannedOp, QuantizedTensor
from detent.graph.prepared import RESERVED, CarriedScales, PreparedModel, call_of
from detent.graph.region import Region
from detent.graph.removal import without_quantizers
from detent.graph.runner import TORCH_ERRORS, GraphInterpreter, Runner, described
from detent.graph.stubs import DeQuantStub, QuantStub
from detent.graph.torch_ops import TORCH_OPS, TorchOp, called_module, kind_of, known_class, module_op, torch_op
from detent.graph.weights.folded_weights import fold_weights
from detent.graph.weights.held_weights import WHY_FLOAT, lift_functional_weights
from detent.graph.weights.sliced_parameters import split_sliced_parameters
from detent.graph.wrap import Functional, wrap

__all__ = [
    "ACTIVATIONS",
    "AVERAGE_POOLS",
    "BEFORE_CORRECTION",
    "BINARY",
    "CLIPPING",
    "KINDS",
    "MULTIPLYING",
    "PASSING",
    "POOLS",
    "REORDERING",
    "RESERVED",
    "STRATEGIES",
    "TORCH_ERRORS",
    "TORCH_OPS",
    "WEIGHTED",
    "WHY_FLOAT",
    "Captured",
    "CarriedScales",
    "CustomTracer",
    "DeQuantStub",
    "DerivedBias",
    "FloatNames",
    "FloatRange",
    "FloatTensor",
    "FoldedBatchNorm",
    "Functional",
    "GraphInterpreter",
    "Inputs",
    "Kind",
    "Plan",
    "PlanEntry",
    "PlannedOp",
    "PreparedModel",
    "QuantStub",
    "QuantizedTensor",
    "Region",
    "Runner",
    "TorchOp",
    "call_of",
    "called_module",
    "capture",
    "compress_saved_activations",
    "described",
    "drop_zero_terms",
    "eval_mode",
    "flat",
    "float_state_dict",
    "fold_batch_norms",
    "fold_weights",
    "foldable",
    "folding_factor",
    "fuse",
    "insert",
    "join",
    "keeping_ranges",
    "kind_of",
    "known_class",
    "lift_functional_weights",
    "line_text",
    "modes_to_observe",
    "module_op",
    "observing",
    "other_real",
    "quantizer_path",
    "quantizers_of",
    "ranges_of",
    "split_conv_padding",
    "split_sliced_parameters",
    "sum_of_weights",
    "torch_op",
    "warning_if_trained",
    "without_quantizers",
    "wrap",
]
