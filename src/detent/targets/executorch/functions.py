"""Operations that are none of ONNX: what ExecuTorch has no kernel for in another way, and what rounds while it runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from detent.ir.attributes import attribute_value
from detent.ir.reference import Kernel, KernelCall
from detent.ir.reference.padding import pad_axes
from detent.ir.torch_functions import FUNCTIONS
from detent.ir.windows import SlidingWindow

__all__ = ["CONV_BY_PLANES", "OWN_FUNCTIONS", "ROUND_TOKENS"]

CONV_BY_PLANES = "ConvByPlanes"
"""A Conv of volumes."""

ROUND_TOKENS = "RoundTokens"
"""Real numbers on a grid of 8 bits for each token, which the delegate chooses while it runs."""


def _conv_by_planes(call: KernelCall) -> Tensor:
    """A convolution of volumes as convolutions of planes that are added up. Behind its data and bias it reads the
    weights, one tensor for each place along the depth."""
    data, bias, *weights = (call.optional(index) for index in range(len(call.values)))
    assert data is not None
    window = SlidingWindow.of(call.attributes, [len(weights), *call[2].shape[2:]]).resolve(data.shape[2:])
    strides, dilations = window.strides, window.dilations
    groups = attribute_value("Conv", call.attributes, "group")
    depth = window.along(data.shape[2:])[0].windows()
    x = pad_axes(data, window.pads)
    found: Tensor | None = None
    for place, weight in enumerate(weights):
        first = place * dilations[0]
        picked = x[:, :, first : first + (depth - 1) * strides[0] + 1 : strides[0]]
        planes = picked.transpose(1, 2).reshape(-1, x.shape[1], *x.shape[3:])
        part = F.conv2d(planes, weight, bias, strides[1:], 0, dilations[1:], groups)  # type: ignore[arg-type]
        found, bias = part if found is None else found + part, None
    assert found is not None
    return found.reshape(x.shape[0], depth, *found.shape[1:]).transpose(1, 2)


def _round_tokens(call: KernelCall) -> Tensor:
    library, x = torch.ops.quantized_decomposed, call[0]
    scale, zero_point = library.choose_qparams_per_token_asymmetric(x, torch.int8)
    grid = (scale, zero_point, -128, 127, torch.int8)
    found: Tensor = library.dequantize_per_token(library.quantize_per_token(x, *grid), *grid, torch.float32)
    return found


OWN_FUNCTIONS: Mapping[str, Kernel] = {**FUNCTIONS, CONV_BY_PLANES: _conv_by_planes, ROUND_TOKENS: _round_tokens}
"""By the type of an operation."""
