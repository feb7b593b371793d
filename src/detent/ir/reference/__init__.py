"""One float kernel for each ONNX operator, made of torch functions, that follows ONNX's definition as of opset 13; what
older opsets have as attributes and not as inputs (axes, bounds) is taken too.

`torch.export` traces them if what is not data (shapes, axes, bounds) is constant. Whoever needs another form of an
operator (a function that a compiler fuses, the bits of one engine) replaces its entry, and says why.
"""

from __future__ import annotations

from detent.ir.reference.call import Call, Kernel
from detent.ir.reference.table import REFERENCE

__all__ = ["REFERENCE", "Call", "Kernel"]
