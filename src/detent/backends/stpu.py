"""SenseTime STPU."""

from __future__ import annotations

from detent.backends.backend import FUSED, MOVES, Backend, both, chains
from detent.backends.offer import Offer

__all__ = ["STPU"]

STPU = Backend(
    name="stpu",
    about="SenseTime STPU",
    weight=Offer(narrow=(True,)),
    activation=Offer(narrow=(True,)),
    bias="int32",
    rules=both(
        "conv", "conv_transpose", "linear", "add", "mul", "avgpool", "global_avgpool", "batchnorm", "prelu", "resize"
    ),
    fusions=(*FUSED, *chains(("add", "mul"))),
    # Its file has one range for all that is joined.
    shares=(*MOVES, "concat"),
    aligns=("concat",),
    quantize_outputs=True,
    files=("onnx", "stpu_minmax"),
)
