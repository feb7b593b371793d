"""The interface of a set of LiteRT kernels: one set for 8-bit codes in XNNPACK, ruy and the reference kernels each, and
one for 16-bit codes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from detent.ir import Encoding, Network, Op
from detent.twin.accumulate import Accumulator
from detent.twin.arithmetic import Kernel
from detent.twin.requantize import Requantizer

__all__ = ["Bounds", "Integers", "TfliteKernels"]

Integers = npt.NDArray[np.int64]
Bounds = tuple[int, int]


class TfliteKernels(ABC):
    """Each method returns a kernel from codes on the grids `x`, `a`, `b` to codes on the grid `y`, clamped to
    `bounds`."""

    @abstractmethod
    def product(self, op: Op, acc: Accumulator, y: Encoding, bounds: Bounds) -> Requantizer:
        """Requantize the sums of a convolution or linear layer."""

    @abstractmethod
    def matmul(self, a: Encoding, b: Encoding, y: Encoding) -> Requantizer:
        """Requantize the sums of a product of two activations."""

    @abstractmethod
    def convert(self, x: Encoding, y: Encoding) -> Kernel:
        """Requantize from one grid to another."""

    @abstractmethod
    def multiply(self, a: Encoding, b: Encoding, y: Encoding, bounds: Bounds) -> Kernel: ...

    @abstractmethod
    def mean(self, x: Encoding, y: Encoding, count: int, *, spatial: bool) -> Requantizer:
        """Requantize the mean, from sums of the file's codes, zero points included. `spatial`: it is over the rows and
        columns of an image, which stay as axes of one."""

    @abstractmethod
    def table(self, op: Op, x: Encoding, y: Encoding, bounds: tuple[float, float] | None) -> Integers | None:
        """The lookup table of a function: the output code of every code of `x`, smallest first. `bounds` are those of a
        Clip."""

    @abstractmethod
    def softmax(self, x: Encoding, y: Encoding) -> Kernel:
        """Along the last axis."""

    @abstractmethod
    def resize(self, graph: Network, op: Op, x: Encoding) -> Kernel | None:
        """Bilinear, on one grid."""
