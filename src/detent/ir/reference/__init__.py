"""One float kernel for each ONNX operator, in torch, as ONNX defines it since opset 13. Axes and bounds that older
opsets have as attributes are taken too.

`torch.export` traces them if what is not data (shapes, axes, bounds) is constant. Whoever needs another variant of an
operator (a function that a compiler fuses, the bits of one engine) replaces its entry, and says why.
"""

from __future__ import annotations

from detent.ir.reference.call import Kernel, KernelCall
from detent.ir.reference.table import REFERENCE

__all__ = ["REFERENCE", "Kernel", "KernelCall"]
