"""The schemes that a target supports for the tensors in one role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from detent.numerics import Granularity, Grid, IntGrid, PerChannel, PerGroup, PerTensor, Rounding, ScaleType, Scheme

__all__ = ["EVERY_ACTIVATION", "EVERY_WEIGHT", "SupportedSchemes"]


@dataclass(frozen=True, kw_only=True)
class SupportedSchemes:
    """Any combination of the listed properties. The first of each list is the default.

    An affine scheme has the first signedness. A symmetric one has unsigned codes only if the tensor cannot be negative
    (after a ReLU) and the target prefers them: they come first, or `auto_sign` is set. `narrow` is about signed
    integers, `group_sizes` about scales in groups (None: any size). `also` lists further combinations, for properties
    that are not supported together with the others.

    >>> SupportedSchemes(bits=(8, 16), symmetric=(False,)).limits(Scheme(IntGrid(4)))
    ['8 or 16 bits', 'affine schemes']
    """

    grids: tuple[type[Grid], ...] = (IntGrid,)
    bits: tuple[int, ...] = (8,)
    signed: tuple[bool, ...] = (True,)
    auto_sign: bool = False
    narrow: tuple[bool, ...] = (False, True)
    symmetric: tuple[bool, ...] = (True,)
    granularities: tuple[type[Granularity], ...] = (PerTensor,)
    group_sizes: tuple[int, ...] | None = None
    scales: tuple[ScaleType, ...] = ("float", "power_of_two")
    roundings: tuple[Rounding, ...] = (Rounding.HALF_EVEN,)
    observer: str = "minmax"
    observer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    also: tuple[SupportedSchemes, ...] = ()

    @property
    def alternatives(self) -> tuple[SupportedSchemes, ...]:
        """These, then those in `also`."""
        return (self, *self.also)

    def preferring(self, bits: int | None) -> SupportedSchemes:
        """The same schemes with that width as the default; unchanged for None.

        >>> SupportedSchemes(bits=(8, 7)).preferring(7).bits
        (7, 8)
        """
        return self if bits is None else replace(self, bits=(bits, *(other for other in self.bits if other != bits)))

    def limits(self, scheme: Scheme) -> list[str]:
        """The supported values for each property in which `scheme` differs; empty if it is supported."""
        grid = scheme.grid
        wrong: list[str] = []
        if not isinstance(grid, self.grids):
            wrong.append(f"grids {_words(kind.__name__ for kind in self.grids)}")
        if grid.bits not in self.bits:
            wrong.append(f"{_words(self.bits)} bits")
        if grid.signed not in self.signed:
            wrong.append("unsigned codes" if grid.signed else "signed codes")
        if grid.is_uniform and grid.signed and grid.narrow not in self.narrow:
            wrong.append("the full range" if grid.narrow else "the narrow range")
        if scheme.symmetric not in self.symmetric:
            wrong.append("affine schemes" if scheme.symmetric else "symmetric schemes")
        if not isinstance(scheme.granularity, self.granularities):
            wrong.append(_words(f"per-{kind.__name__[3:].lower()}" for kind in self.granularities) + " scales")
        size = getattr(scheme.granularity, "size", None)
        if size is not None and self.group_sizes is not None and size not in self.group_sizes:
            wrong.append(f"groups of {_words(sorted(self.group_sizes))}")
        if scheme.scale not in self.scales:
            wrong.append(f"{_words(scale.replace('_', '-') for scale in self.scales)} scales")
        if scheme.rounding not in self.roundings:
            wrong.append(f"rounding {_words(mode.value for mode in self.roundings)}")
        return wrong


EVERY_ACTIVATION = SupportedSchemes(
    bits=(8, 7, 6, 5, 4, 3, 2), signed=(True, False), symmetric=(True, False), granularities=(PerTensor, PerChannel)
)
"""All that Q and DQ of 8 bits, and a Clip before them, can say of an activation."""

EVERY_WEIGHT = SupportedSchemes(
    bits=(8, 7, 6, 5, 4, 3, 2),
    signed=(True, False),
    symmetric=(True, False),
    granularities=(PerTensor, PerChannel, PerGroup),
)
"""All that DQ can say of a weight of at most 8 bits."""


def _words(values: Any) -> str:
    return " or ".join(str(value) for value in values)
