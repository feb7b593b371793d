"""ncnn, on x86 and Arm."""

from __future__ import annotations

from detent.numerics import PerChannel, PerTensor, Rounding
from detent.planning import Backend, Offer, takes

__all__ = ["NCNN"]

NCNN = Backend(
    name="ncnn",
    about="Tencent ncnn",
    # PPQ gives 3x3 convolutions 6 bits for Winograd; ncnn's own Winograd was measured to be exact with 8.
    weight=Offer(narrow=(True,), granularities=(PerChannel, PerTensor), roundings=(Rounding.HALF_AWAY,)),
    activation=Offer(narrow=(True,), roundings=(Rounding.HALF_AWAY,)),
    # Numbers become integers only on the way into these; adds, pools and activations run in float.
    rules=takes("conv", "linear"),
    shares=(),
    conv_axes=(1, 2),
    rewrites=("fuse_activation_functions",),
    opset=21,
    arithmetic="ncnn",
    files=("ncnn", "ncnn_table"),
    engine="ncnn",
)
