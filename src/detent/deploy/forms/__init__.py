"""FORMS: operations written otherwise than the model has them, because an engine runs them on integers only so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx

from detent.deploy.forms.average_in_padding import average_in_padding
from detent.deploy.forms.biased_linear import biased_linear
from detent.deploy.forms.clip_of_channels import clip_of_channels
from detent.deploy.forms.constants_apart import constants_apart
from detent.deploy.forms.conv_transpose_as_conv import conv_transpose_as_conv
from detent.deploy.forms.dense_conv_transpose import dense_conv_transpose
from detent.deploy.forms.differences_apart import differences_apart
from detent.deploy.forms.editing import BLOCKS, PHASES, Editing
from detent.deploy.forms.extremes_apart import extremes_apart
from detent.deploy.forms.global_average import global_average
from detent.deploy.forms.hanging_average import hanging_average
from detent.deploy.forms.linear_as_gemm import linear_as_gemm
from detent.deploy.forms.linear_constants_apart import linear_constants_apart
from detent.deploy.forms.lone_weight import lone_weight
from detent.deploy.forms.max_pool_windows import max_pool_windows
from detent.deploy.forms.normalization_apart import normalization_apart
from detent.deploy.forms.numbers_on_grids import numbers_on_grids
from detent.deploy.forms.one_window import one_window
from detent.deploy.forms.padding_apart import padding_apart
from detent.deploy.forms.padding_before_average import padding_before_average
from detent.deploy.forms.picks_in_halves import picks_in_halves
from detent.deploy.forms.plain_averages import plain_averages
from detent.deploy.forms.rows_as_codes import rows_as_codes
from detent.deploy.forms.sizes_of_all_axes import sizes_of_all_axes
from detent.deploy.forms.strided_conv_in_blocks import strided_conv_in_blocks
from detent.deploy.forms.whole_functions import whole_functions
from detent.errors import UnknownNameError

__all__ = [
    "BLOCKS",
    "FORMS",
    "PHASES",
    "Editing",
    "average_in_padding",
    "biased_linear",
    "clip_of_channels",
    "constants_apart",
    "conv_transpose_as_conv",
    "dense_conv_transpose",
    "differences_apart",
    "extremes_apart",
    "global_average",
    "hanging_average",
    "in_forms",
    "linear_as_gemm",
    "linear_constants_apart",
    "lone_weight",
    "max_pool_windows",
    "normalization_apart",
    "numbers_on_grids",
    "one_window",
    "padding_apart",
    "padding_before_average",
    "picks_in_halves",
    "plain_averages",
    "rows_as_codes",
    "sizes_of_all_axes",
    "strided_conv_in_blocks",
    "whole_functions",
]

FORMS: Mapping[str, Callable[[Editing], None]] = {
    "average_in_padding": average_in_padding,
    "biased_linear": biased_linear,
    "clip_of_channels": clip_of_channels,
    "constants_apart": constants_apart,
    "conv_transpose_as_conv": conv_transpose_as_conv,
    "dense_conv_transpose": dense_conv_transpose,
    "differences_apart": differences_apart,
    "extremes_apart": extremes_apart,
    "global_average": global_average,
    "hanging_average": hanging_average,
    "linear_as_gemm": linear_as_gemm,
    "linear_constants_apart": linear_constants_apart,
    "lone_weight": lone_weight,
    "max_pool_windows": max_pool_windows,
    "normalization_apart": normalization_apart,
    "numbers_on_grids": numbers_on_grids,
    "one_window": one_window,
    "padding_apart": padding_apart,
    "padding_before_average": padding_before_average,
    "picks_in_halves": picks_in_halves,
    "plain_averages": plain_averages,
    "rows_as_codes": rows_as_codes,
    "sizes_of_all_axes": sizes_of_all_axes,
    "strided_conv_in_blocks": strided_conv_in_blocks,
    "whole_functions": whole_functions,
}
"""What a backend may name in `forms`."""


def in_forms(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """A QDQ model with these forms, which compute the same integers; itself if there are none."""
    if not names:
        return model
    editing = Editing(model)
    for name in names:
        if name not in FORMS:
            raise UnknownNameError(f"the form {name!r}", f"known are {', '.join(FORMS)}", "use one of these")
        FORMS[name](editing)
    return editing.finished()
