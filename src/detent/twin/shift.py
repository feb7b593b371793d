"""The ONNX specification with another rounding.

On chips that shift, every scale is a power of two, so that a float32 sum of products of 8-bit codes is the exact
integer; they differ only in how they round.
"""

from __future__ import annotations

from torch import Tensor

from detent.ir import Encoding, Network
from detent.numerics import Rounding, round_to_integer
from detent.twin.arithmetic import Arithmetic, Step
from detent.twin.lowering import lower

__all__ = ["ShiftHalfUp"]


def _rounded(values: Tensor, encoding: Encoding, rounding: Rounding) -> Tensor:
    # In float32, as the simulation divides: a tie there is one here.
    codes = round_to_integer(values / float(encoding.scale), rounding) + float(encoding.zero_point)
    return codes.clamp_(encoding.qmin, encoding.qmax).float()


class ShiftHalfUp(Arithmetic):
    """Ties go to plus infinity. How the chips divide an average over a window whose size is no power of two is not
    known; here it is rounded once."""

    name = "shift_half_up"
    cpus = ()
    claim = "what the simulation says, in integers; no chip was available"

    def quantize(self, values: Tensor, encoding: Encoding) -> Tensor:
        return _rounded(values, encoding, Rounding.HALF_UP)

    def lower(self, graph: Network) -> list[Step]:
        return lower(graph, {})
