"""What a torch function for an ONNX operation gets: the operation, its tensors, the network's constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from torch import Tensor

from detent.deploy.qdq_graph import Op
from detent.errors import DeployError

__all__ = ["Call", "Function"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One operation about to run: what it is, the tensors it gets (None: an absent input), the network's constants."""

    op: Op
    values: Sequence[Tensor | None]
    constants: Mapping[str, Array]

    def __getitem__(self, index: int) -> Tensor:
        value = self.optional(index)
        if value is None:
            raise self.refusal(f"it has no input {index}")
        return value

    def optional(self, index: int) -> Tensor | None:
        return self.values[index] if index < len(self.values) else None

    def get(self, attribute: str, default: Any = None) -> Any:
        return self.op.attributes.get(attribute, default)

    def array(self, index: int) -> Array | None:
        """An input as numbers: a constant, or else what was computed; None if it is absent."""
        read = self.op.inputs[index] if index < len(self.op.inputs) else None
        if read is None:
            return None
        return self.constants[read.tensor] if read.tensor in self.constants else self[index].numpy()

    def integers(self, index: int) -> list[int] | None:
        found = self.array(index)
        return None if found is None else [int(value) for value in found.reshape(-1)]

    def required_integers(self, index: int) -> list[int]:
        found = self.integers(index)
        if found is None:
            raise self.refusal(f"it has no input {index}")
        return found

    def refusal(self, found: str) -> DeployError:
        return DeployError(
            f"run {self.op.type} {self.op.name!r} with torch", found, "change the network, or deploy for another target"
        )


Function = Callable[[Call], "Tensor | tuple[Tensor, ...]"]
