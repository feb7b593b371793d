"""The table of reference kernels."""

from __future__ import annotations

from collections.abc import Mapping

from detent.ir.reference.call import Kernel
from detent.ir.reference.elementwise import ELEMENTWISE
from detent.ir.reference.movement import MOVEMENT
from detent.ir.reference.normalization import NORMALIZATION
from detent.ir.reference.products import PRODUCTS
from detent.ir.reference.recurrent import RECURRENT
from detent.ir.reference.reductions import REDUCTIONS
from detent.ir.reference.resizing import resize
from detent.ir.reference.windows import WINDOWS

__all__ = ["REFERENCE"]

REFERENCE: Mapping[str, Kernel] = {
    **ELEMENTWISE,
    **MOVEMENT,
    **NORMALIZATION,
    **PRODUCTS,
    **RECURRENT,
    **REDUCTIONS,
    **WINDOWS,
    "Resize": resize,
}
"""By operator."""
