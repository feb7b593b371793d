"""Qualcomm: SNPE, and QNN on the Hexagon tensor processor."""

from __future__ import annotations

from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import FUSED, MOVES, Backend, Offer, both, chains
from detent.targets.base.ppq_kinds import DSP_KINDS

__all__ = ["QNN", "SNPE"]

_PER_TENSOR_AFFINE = Offer(signed=(False,), symmetric=(False,))
_PER_CHANNEL = Offer(granularities=(PerChannel, PerTensor))

# Half up was measured on the emulator; PPQ and MQBench simulate half even. Symmetric s8 activations are not taken, or
# come back on another grid.
_ACTIVATION = Offer(bits=(8, 16), signed=(False,), symmetric=(False,), roundings=(Rounding.HALF_UP,))

SNPE = Backend(
    name="snpe",
    about="Qualcomm SNPE",
    weight=Offer(signed=(False,), symmetric=(False,), also=(_PER_CHANNEL,)),
    activation=_ACTIVATION,
    bias="int32",
    rules=both(*DSP_KINDS),
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    rewrites=("avgpool_ceil_mode_explicit_pad_htp", "avgpool_pad_even_kernels"),
    arithmetic="htp",
    files=("onnx", "qualcomm_encodings"),
)

QNN = Backend(
    name="qnn",
    about="Qualcomm QNN, Hexagon tensor processor",
    weight=Offer(granularities=(PerChannel, PerTensor), also=(_PER_TENSOR_AFFINE,)),
    activation=_ACTIVATION,
    bias="int32",
    # A convolution whose output is float is not taken, and runs on the CPU.
    rules={
        **both(*DSP_KINDS),
        **both("matmul", "minimum", "sum", "hardswish", "hardsigmoid", "gelu", "tanh", "elu", "layernorm"),
    },
    fusions=(*FUSED, *chains(("add",))),
    shares=(*MOVES, "pad", "resize"),
    quantize_outputs=True,
    # The emulator's softmax is up to 6 steps off on a finer grid.
    ranges={"softmax": (0.0, 255 / 256)},
    # A GELU in single steps is not loaded; one operator for it is, from opset 20 on. Nor are tables of floats, and a
    # softmax behind a division by a float number.
    rewrites=(
        *("avgpool_ceil_mode_explicit_pad_htp", "avgpool_pad_even_kernels", "fuse_activation_functions"),
        *("densify_conv_transpose", "quantize_scalar_constants", "quantize_embedding_table"),
    ),
    opset=21,
    arithmetic="htp",
    files=("onnx", "qualcomm_encodings"),
    engine="qnn",
)
