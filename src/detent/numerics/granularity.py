"""Which elements of a tensor share one scale.

| granularity             | tensor          | scale         | elements that share a scale           |
|-------------------------|-----------------|---------------|---------------------------------------|
| `PerTensor()`           | (8, 4, 3, 3)    | ()            | all                                   |
| `PerChannel(axis=0)`    | (8, 4, 3, 3)    | (8,)          | those with the same index on the axis |
| `PerGroup(axis=1, 32)`  | (8, 64)         | (8, 2)        | `size` neighbors along the axis      |

`PerGroup` is ONNX's blocked quantization: every index on the other axes has its own scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from detent.errors import SchemeError

__all__ = ["Granularity", "PerChannel", "PerGroup", "PerTensor"]


class Granularity(ABC):
    """How scales are laid over a tensor. The three methods agree with each other:

    `blocked(x)` is a view of `x`; reducing it over `shared_dims(x.ndim)` gives `scale_shape(x.shape)`;
    `expand(scale, x.shape)` broadcasts against `blocked(x)`.
    """

    @abstractmethod
    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the scale of a tensor of that shape."""

    @abstractmethod
    def blocked(self, x: Tensor) -> Tensor:
        """A view of `x` whose `shared_dims` hold exactly the elements of one scale."""

    @abstractmethod
    def shared_dims(self, rank: int) -> tuple[int, ...]:
        """The dimensions of `blocked(x)` along which a scale is constant."""

    @abstractmethod
    def expand(self, scale: Tensor, rank: int) -> Tensor:
        """`scale` reshaped so that it broadcasts against `blocked(x)` for an `x` of that rank."""

    def reduce(self, x: Tensor, operation: Callable[[Tensor, tuple[int, ...]], Tensor]) -> Tensor:
        """`operation(values, dims)` over the elements of each scale, in the scale's shape.

        Where every element has a scale of its own there is nothing to reduce, and torch would take "no dims" for all.
        """
        dims = self.shared_dims(x.ndim)
        return operation(self.blocked(x), dims) if dims else self.blocked(x)

    def rows(self, x: Tensor) -> Tensor:
        """`x` as a matrix: a row per scale, in the scale's order, holding the elements that share it."""
        if x.ndim == 0:
            return x.reshape(1, 1)
        blocked = self.blocked(x)
        shared = self.shared_dims(x.ndim)
        kept = [dim for dim in range(blocked.ndim) if dim not in shared]
        count = 1
        for dim in kept:
            count *= blocked.shape[dim]
        # An explicit column count, because reshape cannot infer one where there are no elements.
        return blocked.permute(*kept, *shared).reshape(count, x.numel() // count if count else 0)


@dataclass(frozen=True)
class PerTensor(Granularity):
    """One scale for the whole tensor."""

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG002
        return ()

    def blocked(self, x: Tensor) -> Tensor:
        return x

    def shared_dims(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank))

    def expand(self, scale: Tensor, rank: int) -> Tensor:  # noqa: ARG002
        return scale


@dataclass(frozen=True)
class PerChannel(Granularity):
    """One scale for each index on `axis` (0 for the weight of a convolution or linear layer)."""

    axis: int = 0

    def __post_init__(self) -> None:
        _require_int(self, "axis", self.axis)

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (shape[_resolve(self, self.axis, len(shape))],)

    def blocked(self, x: Tensor) -> Tensor:
        return x

    def shared_dims(self, rank: int) -> tuple[int, ...]:
        axis = _resolve(self, self.axis, rank)
        return tuple(dim for dim in range(rank) if dim != axis)

    def expand(self, scale: Tensor, rank: int) -> Tensor:
        axis = _resolve(self, self.axis, rank)
        return scale.reshape([-1 if dim == axis else 1 for dim in range(rank)])


@dataclass(frozen=True)
class PerGroup(Granularity):
    """One scale for each run of `size` neighbors along `axis`; the axis must divide into whole groups."""

    axis: int
    size: int

    def __post_init__(self) -> None:
        _require_int(self, "axis", self.axis)
        _require_int(self, "size", self.size)
        if self.size < 1:
            raise SchemeError(str(self), "a group holds at least one element", "choose size >= 1")

    def scale_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        axis = _resolve(self, self.axis, len(shape))
        if shape[axis] % self.size:
            raise SchemeError(
                f"{self} on a tensor of shape {tuple(shape)}",
                f"axis {axis} has {shape[axis]} elements, which {self.size} does not divide",
                "choose a size that divides the axis, or pad the tensor",
            )
        return (*shape[:axis], shape[axis] // self.size, *shape[axis + 1 :])

    def blocked(self, x: Tensor) -> Tensor:
        axis = _resolve(self, self.axis, x.ndim)
        groups = self.scale_shape(x.shape)[axis]
        return x.reshape(*x.shape[:axis], groups, self.size, *x.shape[axis + 1 :])

    def shared_dims(self, rank: int) -> tuple[int, ...]:
        return (_resolve(self, self.axis, rank) + 1,)

    def expand(self, scale: Tensor, rank: int) -> Tensor:
        return scale.unsqueeze(_resolve(self, self.axis, rank) + 1)


def _resolve(granularity: Granularity, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise SchemeError(
            f"{granularity} on a tensor of {rank} dimensions",
            f"the axes are {-rank} to {rank - 1}" if rank else "a scalar has no axis",
            "choose an axis that the tensor has",
        )
    return axis % rank


def _require_int(granularity: Granularity, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SchemeError(
            f"{type(granularity).__name__}({name}={value!r})", f"{name} is a {type(value).__name__}", "give an integer"
        )
