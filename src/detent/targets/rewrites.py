"""Every rewrite that a target may name, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from detent.errors import UnknownNameError
from detent.rewrites import BLOCKS, PHASES, Editing, Rewrite, rewrite
from detent.rewrites.avgpool_ceil_mode_explicit_pad import avgpool_ceil_mode_explicit_pad
from detent.rewrites.avgpool_count_include_pad import avgpool_count_include_pad
from detent.rewrites.conv_transpose_as_conv import conv_transpose_as_conv
from detent.rewrites.densify_conv_transpose import densify_conv_transpose
from detent.rewrites.fuse_activation_functions import fuse_activation_functions
from detent.rewrites.space_to_depth_strided_conv import space_to_depth_strided_conv
from detent.targets.onnxruntime.rewrites.expand_resize_axes import expand_resize_axes
from detent.targets.onnxruntime.rewrites.linear_to_gemm import linear_to_gemm
from detent.targets.openvino.rewrites.add_epsilon_bias import add_epsilon_bias
from detent.targets.openvino.rewrites.barrier_after_minmax_reduction import barrier_after_minmax_reduction
from detent.targets.openvino.rewrites.barrier_around_linear_constants import barrier_around_linear_constants
from detent.targets.openvino.rewrites.barrier_before_channel_constants import barrier_before_channel_constants
from detent.targets.openvino.rewrites.barrier_before_negation import barrier_before_negation
from detent.targets.openvino.rewrites.barrier_before_normalization import barrier_before_normalization
from detent.targets.openvino.rewrites.barrier_before_pad import barrier_before_pad
from detent.targets.openvino.rewrites.drop_single_window_stride import drop_single_window_stride
from detent.targets.openvino.rewrites.maxpool_ceil_mode_explicit_pad import maxpool_ceil_mode_explicit_pad
from detent.targets.openvino.rewrites.split_clip_into_max_min import split_clip_into_max_min
from detent.targets.openvino.rewrites.split_permuting_gather import split_permuting_gather
from detent.targets.openvino.rewrites.unsqueeze_1x1_matmul import unsqueeze_1x1_matmul
from detent.targets.openvino.rewrites.use_global_avgpool import use_global_avgpool
from detent.targets.qualcomm.rewrites.avgpool_ceil_mode_explicit_pad_htp import avgpool_ceil_mode_explicit_pad_htp
from detent.targets.qualcomm.rewrites.avgpool_pad_even_kernels import avgpool_pad_even_kernels
from detent.targets.qualcomm.rewrites.quantize_embedding_table import quantize_embedding_table
from detent.targets.qualcomm.rewrites.quantize_scalar_constants import quantize_scalar_constants

__all__ = [
    "BLOCKS",
    "PHASES",
    "REWRITES",
    "Editing",
    "Rewrite",
    "add_epsilon_bias",
    "avgpool_ceil_mode_explicit_pad",
    "avgpool_ceil_mode_explicit_pad_htp",
    "avgpool_count_include_pad",
    "avgpool_pad_even_kernels",
    "barrier_after_minmax_reduction",
    "barrier_around_linear_constants",
    "barrier_before_channel_constants",
    "barrier_before_negation",
    "barrier_before_normalization",
    "barrier_before_pad",
    "conv_transpose_as_conv",
    "densify_conv_transpose",
    "drop_single_window_stride",
    "expand_resize_axes",
    "fuse_activation_functions",
    "legalize",
    "linear_to_gemm",
    "maxpool_ceil_mode_explicit_pad",
    "quantize_embedding_table",
    "quantize_scalar_constants",
    "rewrite",
    "space_to_depth_strided_conv",
    "split_clip_into_max_min",
    "split_permuting_gather",
    "unsqueeze_1x1_matmul",
    "use_global_avgpool",
]

REWRITES: Mapping[str, Rewrite] = {
    each.name: each
    for each in (
        add_epsilon_bias,
        avgpool_ceil_mode_explicit_pad,
        avgpool_ceil_mode_explicit_pad_htp,
        avgpool_count_include_pad,
        avgpool_pad_even_kernels,
        barrier_after_minmax_reduction,
        barrier_around_linear_constants,
        barrier_before_channel_constants,
        barrier_before_negation,
        barrier_before_normalization,
        barrier_before_pad,
        conv_transpose_as_conv,
        densify_conv_transpose,
        drop_single_window_stride,
        expand_resize_axes,
        fuse_activation_functions,
        linear_to_gemm,
        maxpool_ceil_mode_explicit_pad,
        quantize_embedding_table,
        quantize_scalar_constants,
        space_to_depth_strided_conv,
        split_clip_into_max_min,
        split_permuting_gather,
        unsqueeze_1x1_matmul,
        use_global_avgpool,
    )
}
"""What a backend may name in `rewrites`."""


def legalize(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A QDQ model after these rewrites, in order, which computes the same integers; itself if there are none."""
    if not names:
        return model
    editing = Editing(model)
    for name in names:
        if name not in REWRITES:
            raise UnknownNameError(f"the rewrite {name!r}", f"known are {', '.join(REWRITES)}", "use one of these")
        REWRITES[name].apply(editing)
    return editing.finished()
