"""Algorithms that improve the parameters of a prepared model without training it."""

from detent.algorithms.adaround import adaround
from detent.algorithms.addends import align_addends
from detent.algorithms.analysis import Analysis, TensorLoss, analyse
from detent.algorithms.bias_correction import bias_correction
from detent.algorithms.brecq import brecq, qdrop
from detent.algorithms.equalization import equalize
from detent.algorithms.finetuning import finetune_scales, finetune_weights
from detent.algorithms.gptq import gptq
from detent.algorithms.layers import Layer, all_layers
from detent.algorithms.mixed_precision import BitChoice, Sensitivity, choose_precision, sensitivity
from detent.algorithms.report import Change, Report, record
from detent.algorithms.smoothquant import smoothquant
from detent.algorithms.splitting import split_channels
from detent.algorithms.table import ALGORITHMS, Algorithm, check, run_algorithm
from detent.algorithms.weight_splitting import SumOfTwo, split_weights

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Analysis",
    "BitChoice",
    "Change",
    "Layer",
    "Report",
    "Sensitivity",
    "SumOfTwo",
    "TensorLoss",
    "adaround",
    "align_addends",
    "all_layers",
    "analyse",
    "bias_correction",
    "brecq",
    "check",
    "choose_precision",
    "equalize",
    "finetune_scales",
    "finetune_weights",
    "gptq",
    "qdrop",
    "record",
    "register",
    "run_algorithm",
    "sensitivity",
    "smoothquant",
    "split_channels",
    "split_weights",
]

register = ALGORITHMS.register
