"""LiteRT (TensorFlow Lite), and TFLite Micro, which follows the same specification."""

from __future__ import annotations

from dataclasses import replace

from detent.graph import WEIGHTED
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, Rule, SupportedSchemes, chains, quantize_io
from detent.rewrites.dequantize_looked_up_rows import dequantize_looked_up_rows
from detent.rewrites.fuse_activation_functions import fuse_activation_functions
from detent.targets.base import Target

__all__ = ["LITERT", "MICRO_TARGET", "TARGET", "TFLITE_MICRO"]

_REWRITES = (fuse_activation_functions, dequantize_looked_up_rows)

# The names in the comments are those of the 8-bit quantization specification.
_MICRO_RULES = quantize_io(
    *WEIGHTED,
    "matmul",
    "add",
    "sub",
    "mul",
    "mean",
    "global_avgpool",  # as MEAN, which has an output scale of its own
    "sum",
    "relu",
    "relu6",
    "leaky_relu",
    "prelu",
    "hardswish",
    "sigmoid",
    "tanh",
    "softmax",
    "log_softmax",
)

# Of 16-bit activations the grids of LOGISTIC, TANH and SOFTMAX are (1/32768, 0).
_UP_TO_ONE = 32767 / 32768

LITERT = Backend(
    name="litert",
    about="LiteRT with XNNPACK",
    # Per channel for FULLY_CONNECTED too, where the first editions of the specification had one scale: measured exact.
    # Weights of four bits are for small files: XNNPACK multiplies with them in linear layers only, and LiteRT unpacks
    # those of convolutions whenever it runs.
    weight=SupportedSchemes(bits=(8, 4), narrow=(True,), granularities=(PerChannel, PerTensor)),
    int4_weights=True,
    # "16x8": LiteRT has kernels of its own for it, XNNPACK has none.
    activation=SupportedSchemes(
        narrow=(False,),
        symmetric=(False, True),
        also=(SupportedSchemes(bits=(16,), narrow=(False,), symmetric=(True,)),),
    ),
    bias="int32",
    rules={**_MICRO_RULES, **quantize_io("gelu", "elu"), "embedding": Rule(inputs=False)},
    fusions=(*FUSED, *chains(("add", "sub", "mul"))),
    # "Input and outputs must all have same scale/zero_point".
    passthrough=(*MOVES, "avgpool", "resize", "pad", "concat", "maximum", "minimum"),
    common_qparams=("concat", "maximum", "minimum"),
    # (scale, zero point): LOGISTIC and SOFTMAX (1/256, -128), TANH (1/128, 0), LOG_SOFTMAX (16/256, 127).
    ranges={
        "sigmoid": (0.0, 255 / 256),
        "softmax": (0.0, 255 / 256),
        "tanh": (-1.0, 127 / 128),
        "log_softmax": (-255 / 16, 0.0),
    },
    wide_ranges={"sigmoid": (0.0, _UP_TO_ONE), "softmax": (0.0, _UP_TO_ONE), "tanh": (-_UP_TO_ONE, _UP_TO_ONE)},
    quantize_outputs=True,
    rewrites=tuple(each.name for each in _REWRITES),
    opset=21,
    arithmetic="xnnpack",
    files=("tflite",),
    engine="litert",
)

TARGET = Target(
    backend=LITERT,
    rewrites=_REWRITES,
    formats={"tflite": "detent.targets.litert.file.writer:FORMAT"},
    readers={".tflite": "detent.targets.litert.file:read_network"},
    engine="detent.targets.litert.engine:LiteRT",
    arithmetics={
        "xnnpack": "detent.targets.litert.arithmetic.xnnpack:Xnnpack",
        "ruy": "detent.targets.litert.arithmetic.ruy:Ruy",
    },
    library="litert",
)

# The reference kernels round twice, half away from zero. Many ports have one scale for FULLY_CONNECTED.
TFLITE_MICRO = replace(
    LITERT,
    name="tflite_micro",
    about="TensorFlow Lite for microcontrollers",
    rules=_MICRO_RULES,
    rewrites=(fuse_activation_functions.name,),
    per_tensor_weights=("linear",),
    arithmetic="tflite_reference",
    files=("tflite_micro",),
)

MICRO_TARGET = Target(
    backend=TFLITE_MICRO,
    rewrites=(fuse_activation_functions,),
    formats={"tflite_micro": "detent.targets.litert.file.writer:MICRO_FORMAT"},
    arithmetics={"tflite_reference": "detent.targets.litert.arithmetic.reference:TfliteReference"},
)
