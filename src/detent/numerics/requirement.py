"""The schemes that a method supports, as data that can be checked in advance and printed."""

from __future__ import annotations

from dataclasses import dataclass

from detent.errors import SchemeError
from detent.numerics.granularity import Granularity, PerChannel, PerGroup, PerTensor
from detent.numerics.grid import Grid
from detent.numerics.grids import GRIDS, IntGrid
from detent.numerics.scales import ScaleType
from detent.numerics.scheme import Scheme

__all__ = ["Requirement"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """The schemes that a method supports, with `(Grid,)` those of every grid. `because` says why not the others.

    >>> only = Requirement(symmetric=True, because="it learns one threshold for both sides")
    >>> only.check("tqt", Scheme(IntGrid(8), symmetric=False))
    Traceback (most recent call last):
    detent.errors.SchemeError: asked: 'tqt' with int8 affine per-tensor
    found: it needs a symmetric scheme, because it learns one threshold for both sides
    to do: change the scheme, or choose another method
    """

    grids: tuple[type[Grid], ...] = (IntGrid,)
    granularities: tuple[type[Granularity], ...] = (PerTensor, PerChannel, PerGroup)
    symmetric: bool | None = None
    scale: ScaleType | None = None
    most_bits: int = 32
    offset: bool = False
    because: str = "its formula is made for these"

    def check(self, method: str, scheme: Scheme) -> None:
        """Raise `SchemeError` if the method does not support `scheme`."""
        need = self._unmet(scheme)
        if need:
            raise SchemeError(
                f"{method!r} with {scheme}",
                f"it needs {need}, because {self.because}",
                "change the scheme, or choose another method",
            )

    def summary(self) -> str:
        """A short description of the schemes.

        >>> Requirement(symmetric=True, scale="power_of_two").summary()
        'int, symmetric, power-of-two'
        """
        parts = ["/".join(name for name, grid in GRIDS.items() if issubclass(grid, self.grids))]
        if self.symmetric is not None:
            parts.append("symmetric" if self.symmetric else "affine")
        if self.scale is not None:
            parts.append(f"{self.scale.replace('_', '-')}{' scale' if self.scale == 'float' else ''}")
        if len(self.granularities) < 3:
            parts.append("/".join(f"per-{kind.__name__[3:].lower()}" for kind in self.granularities))
        if self.most_bits < 32:
            parts.append(f"at most {self.most_bits} bits")
        return ", ".join(parts)

    def _unmet(self, scheme: Scheme) -> str | None:
        if not isinstance(scheme.grid, self.grids):
            return f"a grid of kind {' or '.join(grid.__name__ for grid in self.grids)}"
        if not isinstance(scheme.granularity, self.granularities):
            return f"granularity {' or '.join(kind.__name__ for kind in self.granularities)}"
        if self.symmetric is not None and scheme.symmetric is not self.symmetric:
            return f"{'a symmetric' if self.symmetric else 'an affine'} scheme"
        if self.scale is not None and scheme.scale != self.scale:
            return f"a {self.scale.replace('_', '-')} scale"
        if scheme.has_offset and not self.offset:
            return "zero points that are codes"
        if scheme.grid.bits > self.most_bits:
            return f"at most {self.most_bits} bits"
        return None
