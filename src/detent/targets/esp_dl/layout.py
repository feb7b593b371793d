"""How ESP-DL stores the weights of a convolution: blocks of output channels innermost, as many as a vector register
has lanes, then what is left of them.

    NCHW -> NHWC -> (N/16) H W C 16, then the last N % 16 channels as HWC each
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CHANNELS_LAST", "packed"]

Array = npt.NDArray[Any]

CHANNELS_LAST = {3: (0, 2, 1), 4: (0, 2, 3, 1)}
"""The order of axes in which tensors of a convolution lie, by rank."""


def packed(weight: Array, *, lanes: int, depthwise: bool = False) -> tuple[Array, str]:
    """A weight `[N, C, (H,) W]` as it is stored, of shape `[(H,) W, C, N]`, and the name of the layout.

    The shape only counts the elements: their order is that of the layout. Of a depthwise weight the last channels lie
    innermost too, and the shape is `[(H,) W, N, C]`.

    >>> array, name = packed(np.arange(6).reshape(3, 2, 1, 1), lanes=2)
    >>> array.ravel().tolist(), array.shape, name
    ([0, 2, 1, 3, 4, 5], (1, 1, 2, 3), '(N/2)HWC2_UNALIGNED')
    """
    outputs, inputs, *kernel = weight.shape
    last = weight.transpose(CHANNELS_LAST[weight.ndim])
    whole = outputs // lanes * lanes
    blocks = last[:whole].reshape(whole // lanes, lanes, *kernel, inputs)
    parts = [np.moveaxis(blocks, 1, -1).ravel()]
    rest = last[whole:]
    parts.append(np.moveaxis(rest, 0, -1).ravel() if depthwise else rest.ravel())
    axes = "HWC" if weight.ndim == 4 else "WC"
    name = f"(N/{lanes}){axes}{lanes}{'' if whole == outputs else '_UNALIGNED'}"
    shape = (*kernel, outputs, inputs) if depthwise else (*kernel, inputs, outputs)
    return np.concatenate(parts).reshape(shape), name
