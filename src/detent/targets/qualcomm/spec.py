"""Qualcomm: SNPE, and QNN on the Hexagon tensor processor."""

from __future__ import annotations

from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import FUSED, MOVES, Backend, SupportedSchemes, chains, quantize_io
from detent.rewrites.densify_conv_transpose import densify_conv_transpose
from detent.rewrites.fuse_activation_functions import fuse_activation_functions
from detent.targets.base import Target
from detent.targets.base.ppq_kinds import DSP_KINDS
from detent.targets.qualcomm.rewrites.avgpool_ceil_mode_explicit_pad_htp import avgpool_ceil_mode_explicit_pad_htp
from detent.targets.qualcomm.rewrites.avgpool_pad_even_kernels import avgpool_pad_even_kernels
from detent.targets.qualcomm.rewrites.quantize_embedding_table import quantize_embedding_table
from detent.targets.qualcomm.rewrites.quantize_scalar_constants import quantize_scalar_constants

__all__ = ["QNN", "QNN_TARGET", "SNPE", "SNPE_TARGET"]

_PER_TENSOR_AFFINE = SupportedSchemes(signed=(False,), symmetric=(False,))
_PER_CHANNEL = SupportedSchemes(granularities=(PerChannel, PerTensor))

# Half up was measured on the emulator; PPQ and MQBench simulate half even. Symmetric s8 activations are not taken, or
# come back on another grid.
_ACTIVATION = SupportedSchemes(bits=(8, 16), signed=(False,), symmetric=(False,), roundings=(Rounding.HALF_UP,))

_SNPE_REWRITES = (
    avgpool_ceil_mode_explicit_pad_htp,
    avgpool_pad_even_kernels,
)
_QNN_REWRITES = (
    avgpool_ceil_mode_explicit_pad_htp,
    avgpool_pad_even_kernels,
    fuse_activation_functions,
    densify_conv_transpose,
    quantize_scalar_constants,
    quantize_embedding_table,
)

SNPE = Backend(
    name="snpe",
    about="Qualcomm SNPE",
    weight=SupportedSchemes(signed=(False,), symmetric=(False,), also=(_PER_CHANNEL,)),
    activation=_ACTIVATION,
    bias="int32",
    rules=quantize_io(*DSP_KINDS),
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    rewrites=tuple(each.name for each in _SNPE_REWRITES),
    arithmetic="htp",
    files=("onnx", "qualcomm_encodings"),
)

SNPE_TARGET = Target(
    backend=SNPE,
    rewrites=_SNPE_REWRITES,
    formats={"qualcomm_encodings": "detent.targets.qualcomm.encodings:FORMAT"},
    arithmetics={"htp": "detent.targets.qualcomm.arithmetic.htp:Htp"},
)

QNN = Backend(
    name="qnn",
    about="Qualcomm QNN, Hexagon tensor processor",
    weight=SupportedSchemes(granularities=(PerChannel, PerTensor), also=(_PER_TENSOR_AFFINE,)),
    activation=_ACTIVATION,
    bias="int32",
    # A convolution whose output is float is not taken, and runs on the CPU.
    rules={
        **quantize_io(*DSP_KINDS),
        **quantize_io("matmul", "minimum", "sum", "hardswish", "hardsigmoid", "gelu", "tanh", "elu", "layernorm"),
    },
    fusions=(*FUSED, *chains(("add",))),
    passthrough=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    # The emulator's softmax is up to 6 steps off on a finer grid.
    ranges={"softmax": (0.0, 255 / 256)},
    # A GELU in single steps is not loaded; one operator for it is, from opset 20 on. Nor are tables of floats, and a
    # softmax behind a division by a float number.
    rewrites=tuple(each.name for each in _QNN_REWRITES),
    opset=21,
    arithmetic="htp",
    files=("onnx", "qualcomm_encodings"),
    engine="qnn",
)

QNN_TARGET = Target(
    backend=QNN,
    rewrites=_QNN_REWRITES,
    engine="detent.targets.qualcomm.engine:Qnn",
)
