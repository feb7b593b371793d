"""OpenVINO on a CPU (oneDNN)."""

from __future__ import annotations

from dataclasses import replace

from detent.graph import AVERAGE_POOLS, WEIGHTED
from detent.numerics import PerChannel, PerGroup, PerTensor
from detent.planning import FUSED, MOVES, Backend, Rule, SupportedSchemes, chains, quantize_inputs
from detent.planning.supported_schemes import EVERY_ACTIVATION, EVERY_WEIGHT
from detent.rewrites.avgpool_ceil_mode_explicit_pad import avgpool_ceil_mode_explicit_pad
from detent.rewrites.avgpool_count_include_pad import avgpool_count_include_pad
from detent.rewrites.conv_transpose_as_conv import conv_transpose_as_conv
from detent.targets.base import Target
from detent.targets.base.weight_only import WEIGHT_ONLY
from detent.targets.openvino.rewrites.add_epsilon_bias import add_epsilon_bias
from detent.targets.openvino.rewrites.barrier_after_minmax_reduction import barrier_after_minmax_reduction
from detent.targets.openvino.rewrites.barrier_around_linear_constants import barrier_around_linear_constants
from detent.targets.openvino.rewrites.barrier_before_average import barrier_before_average
from detent.targets.openvino.rewrites.barrier_before_channel_constants import barrier_before_channel_constants
from detent.targets.openvino.rewrites.barrier_before_negation import barrier_before_negation
from detent.targets.openvino.rewrites.barrier_before_normalization import barrier_before_normalization
from detent.targets.openvino.rewrites.barrier_before_pad import barrier_before_pad
from detent.targets.openvino.rewrites.barrier_behind_square_transpose import barrier_behind_square_transpose
from detent.targets.openvino.rewrites.barrier_behind_weights_of_constants import barrier_behind_weights_of_constants
from detent.targets.openvino.rewrites.drop_single_window_stride import drop_single_window_stride
from detent.targets.openvino.rewrites.maxpool_ceil_mode_explicit_pad import maxpool_ceil_mode_explicit_pad
from detent.targets.openvino.rewrites.split_clip_into_max_min import split_clip_into_max_min
from detent.targets.openvino.rewrites.split_permuting_gather import split_permuting_gather
from detent.targets.openvino.rewrites.unsqueeze_1x1_matmul import unsqueeze_1x1_matmul
from detent.targets.openvino.rewrites.use_global_avgpool import use_global_avgpool

__all__ = ["LLM_TARGET", "OPENVINO", "OPENVINO_LLM", "TARGET"]

_REWRITES = (
    conv_transpose_as_conv,
    avgpool_count_include_pad,
    avgpool_ceil_mode_explicit_pad,
    use_global_avgpool,
    barrier_before_average,
    unsqueeze_1x1_matmul,
    maxpool_ceil_mode_explicit_pad,
    barrier_before_normalization,
    drop_single_window_stride,
    barrier_before_pad,
    split_clip_into_max_min,
    barrier_after_minmax_reduction,
    barrier_before_channel_constants,
    barrier_behind_weights_of_constants,
    add_epsilon_bias,
    barrier_around_linear_constants,
    barrier_before_negation,
    split_permuting_gather,
    barrier_behind_square_transpose,
)

OPENVINO = Backend(
    name="openvino",
    about="OpenVINO, CPU plugin",
    # The documented range of weights is [-127, 127]. MQBench always takes 7 bits, for CPUs whose products saturate.
    weight=SupportedSchemes(bits=(8, 7), narrow=(True, False), granularities=(PerChannel, PerTensor)),
    # Signed ones have zero point 0; the plugin stores those that a convolution reads as u8 with 128.
    # All codes: with a Clip before Q its integer kernels were off by up to 3 steps.
    activation=SupportedSchemes(
        bits=(8, 7), signed=(True, False), auto_sign=True, narrow=(False,), symmetric=(True, False)
    ),
    rules={
        **quantize_inputs(*WEIGHTED, "matmul", "add", "mul", *AVERAGE_POOLS, "mean", "sum"),
        "embedding": Rule(inputs=False),
    },
    fusions=(*FUSED, *chains(("add", "mul"))),
    # What low-precision transformations call precision-preserved. MQBench leaves a concat float, and with it the
    # convolution behind it; MMRazor and OpenVINO keep one scale.
    passthrough=(*MOVES, "concat", "pad", "resize"),
    common_qparams=("concat",),
    # The convolution before a residual add is clamped but not rounded, behind what clips it too: 7 to 13 % of outputs
    # are off by one if it is simulated.
    unquantized_edges=tuple((*chain, "add") for chain in (("conv",), *chains(("conv",)))),
    saturates_on=("avx2", "avx512"),
    factor_bits=7,  # it multiplies unsigned or signed by signed codes
    repeats_grids=False,
    # Its transposed convolutions on integers leave the bias out, or give other numbers, for strides longer than the
    # kernel and for some sizes of images.
    rewrites=tuple(each.name for each in _REWRITES),
    # From 21 on ONNX Runtime 1.31.1 does not load codes of int8 that are only moved (docs/deploying.md).
    opset=20,
    arbitrary_qdq_placement=True,
    # It has kernels for channels of what a depthwise convolution takes in; it does not compile 16 bits, and multiplies
    # in float by weights that have a zero point.
    file_weight=replace(EVERY_WEIGHT, symmetric=(True,)),
    file_activation=EVERY_ACTIVATION,
    arithmetic="openvino",
    files=("onnx", "openvino_ir"),
    engine="openvino",
)

TARGET = Target(
    backend=OPENVINO,
    rewrites=_REWRITES,
    formats={"openvino_ir": "detent.targets.openvino.ir_file:FORMAT"},
    engine="detent.targets.openvino.engine:OpenVino",
    arithmetics={"openvino": "detent.targets.openvino.arithmetic.openvino:OpenVino"},
    library="openvino",
)

OPENVINO_LLM = replace(
    WEIGHT_ONLY,
    name="openvino_llm",
    about="OpenVINO, CPU plugin: compressed weights",
    weight=SupportedSchemes(
        bits=(4, 8),
        signed=(True, False),
        symmetric=(True, False),
        granularities=(PerGroup, PerChannel),
        group_sizes=(32, 16, 64, 128, 256),
    ),
    int4_weights=True,
    files=("onnx", "openvino_compressed"),
    engine="openvino",
)

LLM_TARGET = Target(
    backend=OPENVINO_LLM, formats={"openvino_compressed": "detent.targets.openvino.compressed_file:FORMAT"}
)
