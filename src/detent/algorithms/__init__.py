"""Algorithms that improve the parameters of a prepared model without training it."""

from typing import Any

from detent.algorithms.adaround import adaround
from detent.algorithms.analysis import Analysis, TensorLoss, analyze
from detent.algorithms.autoround import autoround
from detent.algorithms.awq import awq
from detent.algorithms.bias_correction import bias_correction
from detent.algorithms.brecq import brecq, qdrop
from detent.algorithms.calibration.addends import align_addends
from detent.algorithms.calibration.mean_shift import correct_mean_shift, observing_input_means
from detent.algorithms.calibration.pair_rounding import observing_pair_inputs, round_pairs
from detent.algorithms.calibration.sample_ranges import choose_ranges, observing_sample_ranges
from detent.algorithms.calibration.start import choose_start
from detent.algorithms.common.layers import Layer, all_layers
from detent.algorithms.common.report import Change, Report, record
from detent.algorithms.equalization import equalize
from detent.algorithms.finetuning import finetune_scales, finetune_weights
from detent.algorithms.gptq import gptq
from detent.algorithms.hqq import hqq
from detent.algorithms.mixed_precision import BitChoice, Sensitivity, choose_precision, sensitivity, smallest_precision
from detent.algorithms.restoring import RestoredOp, noise_of_weights, rank_restored, restoring
from detent.algorithms.rotate import rotate
from detent.algorithms.smoothquant import smoothquant
from detent.algorithms.splitting import split_channels
from detent.algorithms.table import ALGORITHMS, Algorithm, check, run_algorithm
from detent.algorithms.weight_splitting import SumOfTwo, split_weights
from detent.deprecation import warn_renamed

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Analysis",
    "BitChoice",
    "Change",
    "Layer",
    "Report",
    "RestoredOp",
    "Sensitivity",
    "SumOfTwo",
    "TensorLoss",
    "adaround",
    "align_addends",
    "all_layers",
    "analyze",
    "autoround",
    "awq",
    "bias_correction",
    "brecq",
    "check",
    "choose_precision",
    "choose_ranges",
    "choose_start",
    "correct_mean_shift",
    "equalize",
    "finetune_scales",
    "finetune_weights",
    "gptq",
    "hqq",
    "noise_of_weights",
    "observing_input_means",
    "observing_pair_inputs",
    "observing_sample_ranges",
    "qdrop",
    "rank_restored",
    "record",
    "register",
    "restoring",
    "rotate",
    "round_pairs",
    "run_algorithm",
    "sensitivity",
    "smallest_precision",
    "smoothquant",
    "split_channels",
    "split_weights",
]

register = ALGORITHMS.register


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[warn_renamed(__name__, name, _RENAMED)]


_RENAMED = {"analyse": "analyze"}
