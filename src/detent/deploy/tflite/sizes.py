"""Sizes of every tensor of a network, with the free ones (the batch) found by trying two values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from detent.deploy.known_sizes import Known, known_sizes
from detent.errors import DeployError

__all__ = ["Sizes"]


@dataclass(frozen=True)
class Sizes:
    """`shape` is that of a batch of one, `signature` the same with -1 where the batch decides."""

    ones: Known
    twos: Known

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Sizes:
        return cls(_with(model, 1), _with(model, 2))

    def shape(self, tensor: str) -> tuple[int, ...]:
        if tensor not in self.ones.shapes or tensor not in self.twos.shapes:
            raise DeployError(
                f"write the tensor {tensor!r} as .tflite",
                "its shape is only known when the network runs",
                "give a network whose shapes depend on the batch size alone",
            )
        return self.ones.shapes[tensor]

    def value(self, tensor: str) -> npt.NDArray[Any] | None:
        """The numbers of a tensor that is computed from sizes and constants, if they are the same for every batch."""
        found = [known.values.get(tensor) for known in (self.ones, self.twos)]
        same = found[0] is not None and found[1] is not None and np.array_equal(found[0], found[1])
        return found[0] if same else None

    def signature(self, tensor: str) -> tuple[int, ...]:
        pairs = zip(self.shape(tensor), self.twos.shapes[tensor], strict=True)
        return tuple(one if one == two else -1 for one, two in pairs)


def _with(model: onnx.ModelProto, size: int) -> Known:
    """What follows from giving every free size of the inputs one value."""
    try:
        return known_sizes(model, size, strict=True)
    except onnx.shape_inference.InferenceError as error:
        raise DeployError(
            "write the network as .tflite", f"its shapes do not fit: {error}", "check that it runs in ONNX Runtime"
        ) from None
