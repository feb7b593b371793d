"""The argument of a reference kernel: an operator, its attributes and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from torch import Tensor

from detent.errors import DeployError
from detent.ir.attributes import attribute_value

__all__ = ["Kernel", "KernelCall"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class KernelCall:
    """One operator about to run.

    - `values`: its inputs, None for one that is absent.
    - `constants`: the inputs again, where they are known before the network runs; None or left out for the others.
      Shapes, axes and bounds are read from here, so that tracing meets plain numbers.
    - `outputs`: how many it has.
    """

    type: str
    values: Sequence[Tensor | None]
    attributes: Mapping[str, Any]
    constants: Sequence[Array | None] = ()
    outputs: int = 1
    name: str = ""

    def __getitem__(self, index: int) -> Tensor:
        value = self.optional(index)
        if value is None:
            raise self.refusal(f"it has no input {index}")
        return value

    @property
    def present(self) -> list[Tensor]:
        """The inputs that are not absent."""
        return [value for value in self.values if value is not None]

    def optional(self, index: int) -> Tensor | None:
        return self.values[index] if index < len(self.values) else None

    def attribute(self, name: str, rank: int | None = None) -> Any:
        """An attribute, which is the default of ONNX where the model does not give it (see `attribute_value`)."""
        return attribute_value(self.type, self.attributes, name, rank)

    def array(self, index: int) -> Array | None:
        """An input as an array, a constant or a computed value; None if it is absent."""
        constant = self.constants[index] if index < len(self.constants) else None
        if constant is not None:
            return constant
        value = self.optional(index)
        return None if value is None else value.numpy()

    def integers(self, index: int, attribute: str | None = None) -> list[int] | None:
        """An input as integers; older opsets have some of them as an `attribute`."""
        found = self.array(index)
        if found is not None:
            return [int(value) for value in found.reshape(-1)]
        held = None if attribute is None else self.attributes.get(attribute)
        return None if held is None else [int(value) for value in held]

    def required_integers(self, index: int, attribute: str | None = None) -> list[int]:
        found = self.integers(index, attribute)
        if found is None:
            raise self.refusal(f"it has no input {index}")
        return found

    def number(self, index: int, attribute: str | None = None) -> float | None:
        """An input of one element; older opsets have some of them as an `attribute`."""
        found = self.array(index)
        if found is not None and found.size:
            return float(found.item())
        held = None if attribute is None else self.attributes.get(attribute)
        return None if held is None else float(held)

    def refusal(self, found: str) -> DeployError:
        return DeployError(
            f"compute {self.type} {self.name!r}", found, "change the network, or deploy for another target"
        )


Kernel = Callable[[KernelCall], "Tensor | tuple[Tensor, ...]"]
"""A tensor, or one for each output."""
