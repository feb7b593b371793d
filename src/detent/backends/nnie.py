"""HiSilicon NNIE."""

from __future__ import annotations

from detent.backends.backend import Backend, takes
from detent.backends.offer import Offer
from detent.numerics import LogGrid

__all__ = ["NNIE"]

_LOGARITHMS = Offer(grids=(LogGrid,), narrow=(False,), scales=("float",))

NNIE = Backend(
    name="nnie",
    about="HiSilicon NNIE, logarithmic numbers",
    weight=_LOGARITHMS,
    activation=_LOGARITHMS,
    # What is in its parameter file. MQBench simulates more (mul, prelu, global pooling), but leaves them out of it.
    rules=takes("conv", "conv_transpose", "linear", "add", "maxpool", "avgpool", "resize"),
    shares=("reshape", "transpose", "slice", "maxpool"),
    arithmetic="onnx_spec",
    files=("onnx", "nnie_gfpq"),
)
