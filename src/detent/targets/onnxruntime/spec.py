"""ONNX Runtime on a CPU (MLAS)."""

from __future__ import annotations

from dataclasses import replace

from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, Backend, Rule, SupportedSchemes, chains, quantize_io
from detent.planning.supported_schemes import EVERY_ACTIVATION, EVERY_WEIGHT
from detent.rewrites.avgpool_ceil_mode_explicit_pad import avgpool_ceil_mode_explicit_pad
from detent.rewrites.conv_transpose_as_conv import conv_transpose_as_conv
from detent.rewrites.dequantize_looked_up_rows import dequantize_looked_up_rows
from detent.rewrites.space_to_depth_strided_conv import space_to_depth_strided_conv
from detent.targets.base import Target
from detent.targets.onnxruntime.rewrites.expand_resize_axes import expand_resize_axes
from detent.targets.onnxruntime.rewrites.keep_float_layers import keep_float_layers
from detent.targets.onnxruntime.rewrites.linear_to_gemm import linear_to_gemm
from detent.targets.onnxruntime.rewrites.pad_maxpool_with_negative_zero import pad_maxpool_with_negative_zero

__all__ = ["ONNXRUNTIME", "TARGET"]

_REWRITES = (
    conv_transpose_as_conv,
    avgpool_ceil_mode_explicit_pad,
    linear_to_gemm,
    expand_resize_axes,
    pad_maxpool_with_negative_zero,
    space_to_depth_strided_conv,
    keep_float_layers,
    dequantize_looked_up_rows,
)

ONNXRUNTIME = Backend(
    name="onnxruntime",
    about="ONNX Runtime, CPU provider",
    # 7 bits, `reduce_range`: on a CPU without VNNI pairs of u8 x s8 products saturate (77 % of outputs wrong).
    weight=SupportedSchemes(
        bits=(8, 7),
        narrow=(True, False),
        granularities=(PerChannel, PerTensor),
        # What quantize_static writes with weight_type=QUInt8. Zero points that differ between channels are not taken.
        also=(SupportedSchemes(signed=(False,), symmetric=(False,)),),
    ),
    # u8: a ReLU is dropped only where the next zero point is the least code, or else the convolution runs in float.
    # PPQ asks for symmetric s8, which ran at 0.95 of the speed of float.
    # All codes: with a Clip before Q it has no integer kernels, and 1.31 fails to load some such networks in int8.
    activation=SupportedSchemes(signed=(False, True), narrow=(False,), symmetric=(False, True)),
    bias="int32",
    # The kinds with an integer kernel (qdq_selector_action_transformer.cc). A convolution is quantized before an add
    # too, or it runs in float. There is none for transposed convolutions, which are written as convolutions.
    rules={
        **quantize_io(*WEIGHTED, "matmul", "add", "mul", "concat", *AVERAGE_POOLS, "leaky_relu", "sigmoid", "softmax"),
        "embedding": Rule(inputs=False),
    },
    fusions=(*FUSED, *chains(("add", "mul"))),
    # The kinds whose Q and DQ are dropped if they are equal; depth-to-space has no integer kernel.
    passthrough=("reshape", "transpose", "slice", "gather", "expand", "maxpool", "global_maxpool", "resize"),
    # The kernel of softmax computes with floor(1 / scale): other scales wrap around.
    ranges={"softmax": (0.0, 255 / 256)},
    saturates_on=("avx2", "avx512"),
    quantize_outputs=True,
    # Its integer matrix products, and these alone, have a variant that gives real numbers; there are no ties of logits.
    float_outputs=("linear", "matmul"),
    rewrites=tuple(each.name for each in _REWRITES),
    # From 21 on 1.31.1 does not load codes of int8 that are only moved (docs/deploying.md). Its graphs are the same.
    opset=20,
    arbitrary_qdq_placement=True,
    file_weight=replace(EVERY_WEIGHT, bits=(*EVERY_WEIGHT.bits, 16)),
    file_activation=replace(EVERY_ACTIVATION, bits=(*EVERY_ACTIVATION.bits, 16)),
    arithmetic="onnxruntime",
    engine="onnxruntime",
)

TARGET = Target(
    backend=ONNXRUNTIME,
    rewrites=_REWRITES,
    engine="detent.targets.onnxruntime.engine:OnnxRuntime",
    arithmetics={"onnxruntime": "detent.targets.onnxruntime.arithmetic.onnxruntime:OnnxRuntime"},
)
