"""OpenVINO on a CPU (oneDNN)."""

from __future__ import annotations

from dataclasses import replace

from detent.numerics import PerChannel, PerTensor
from detent.planning import FUSED, MOVES, Backend, Offer, chains, takes
from detent.planning.offer import EVERY_ACTIVATION, EVERY_WEIGHT

__all__ = ["OPENVINO"]

OPENVINO = Backend(
    name="openvino",
    about="OpenVINO, CPU plugin",
    # The documented range of weights is [-127, 127]. MQBench always takes 7 bits, for CPUs whose products saturate.
    weight=Offer(bits=(8, 7), narrow=(True, False), granularities=(PerChannel, PerTensor)),
    # Signed ones have zero point 0; the plugin stores those that a convolution reads as u8 with 128.
    # All codes: a Clip before Q was seen to move what its integer kernels give by up to 3 steps.
    activation=Offer(bits=(8, 7), signed=(True, False), auto_sign=True, narrow=(False,), symmetric=(True, False)),
    rules=takes("conv", "conv_transpose", "linear", "matmul", "add", "mul", "avgpool", "global_avgpool", "mean", "sum"),
    fusions=(*FUSED, *chains(("add", "mul"))),
    # What low-precision transformations call precision-preserved. MQBench leaves a concat float, and with it the
    # convolution behind it; MMRazor and OpenVINO keep one scale.
    shares=(*MOVES, "concat", "pad", "resize"),
    aligns=("concat",),
    # The convolution before a residual add is clamped but not rounded, behind what clips it too: 7 to 13 % of outputs
    # are off by one if it is simulated.
    unquantized_edges=tuple((*chain, "add") for chain in (("conv",), *chains(("conv",)))),
    saturates_on=("avx2", "avx512"),
    factor_bits=7,  # it multiplies unsigned or signed by signed codes
    repeats_grids=False,
    # Its transposed convolutions on integers leave the bias out, or give other numbers, for strides longer than the
    # kernel and for some sizes of images.
    rewrites=(
        "conv_transpose_as_conv",
        "avgpool_count_include_pad",
        "avgpool_ceil_mode_explicit_pad",
        "use_global_avgpool",
        "unsqueeze_1x1_matmul",
        "maxpool_ceil_mode_explicit_pad",
        "barrier_before_normalization",
        "drop_single_window_stride",
        "barrier_before_pad",
        "split_clip_into_max_min",
        "barrier_after_minmax_reduction",
        "barrier_before_channel_constants",
        "add_epsilon_bias",
        "barrier_around_linear_constants",
        "barrier_before_negation",
        "split_permuting_gather",
    ),
    # From 21 on ONNX Runtime 1.31.1 does not load codes of int8 that are only moved (docs/deploying.md).
    opset=20,
    any_place=True,
    # It has kernels for channels of what a depthwise convolution takes in; it does not compile 16 bits, and multiplies
    # in float by weights that have a zero point.
    file_weight=replace(EVERY_WEIGHT, symmetric=(True,)),
    file_activation=EVERY_ACTIVATION,
    arithmetic="openvino",
    files=("onnx", "openvino_ir"),
    engine="openvino",
)
