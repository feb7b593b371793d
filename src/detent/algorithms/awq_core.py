"""Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024.

    y = (x / s) (W s)'        s_j = mean|x_j|^a, divided by sqrt(max s min s)

Weights that meet large inputs are enlarged, so that a step is small beside them. `a` is searched.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["awq_scales"]

_LEAST = 1e-4


def awq_scales(magnitudes: Tensor, strength: float) -> Tensor:
    """The scale of each input channel, from its mean magnitude.

    >>> awq_scales(torch.tensor([16.0, 1.0]), 0.5).tolist()
    [2.0, 0.5]
    """
    scale = magnitudes.pow(strength).clamp_min(_LEAST)
    return scale / torch.sqrt(scale.amax() * scale.amin())
