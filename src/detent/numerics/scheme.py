"""How a tensor is to be mapped onto a grid: the request, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from detent.errors import SchemeError
from detent.numerics.granularity import Granularity, PerChannel, PerGroup, PerTensor
from detent.numerics.grid import Grid
from detent.numerics.grids import GRIDS
from detent.numerics.rounding import Rounding
from detent.numerics.scales import SUPER_BLOCKS, ScaleType

__all__ = ["Scheme"]

_GRANULARITIES: dict[str, type[Granularity]] = {
    "per_tensor": PerTensor,
    "per_channel": PerChannel,
    "per_group": PerGroup,
}


@dataclass(frozen=True)
class Scheme:
    """Grid, symmetry, granularity, kind of scale, rounding. Frozen, hashable, JSON round trip.

    Symmetric means zero point 0, on unsigned grids too, which then hold no negative number. Affine means an integer
    zero point, and is for integer grids only.

    >>> from detent.numerics import IntGrid
    >>> scheme = Scheme(IntGrid(8, signed=False), symmetric=False)
    >>> print(scheme)
    uint8 affine per-tensor
    >>> Scheme.from_dict(scheme.to_dict()) == scheme
    True
    """

    grid: Grid
    symmetric: bool = True
    granularity: Granularity = PerTensor()
    scale: ScaleType = "float"
    rounding: Rounding = Rounding.HALF_EVEN

    def __post_init__(self) -> None:
        _require("grid", self.grid, Grid)
        _require("symmetric", self.symmetric, bool)
        _require("granularity", self.granularity, Granularity)
        if self.scale not in get_args(ScaleType):
            known = ", ".join(map(repr, get_args(ScaleType)))
            raise SchemeError(f"Scheme(scale={self.scale!r})", "not a kind of scale", f"use one of {known}")
        try:
            object.__setattr__(self, "rounding", Rounding(self.rounding))
        except ValueError:
            known = ", ".join(mode.value for mode in Rounding)
            raise SchemeError(f"Scheme(rounding={self.rounding!r})", "not a rounding", f"use one of {known}") from None
        if not self.symmetric and not self.grid.is_uniform:
            kind = type(self.grid).__name__
            raise SchemeError(
                f"an affine scheme on {self.grid}", f"{kind} has no room for a zero point", "use symmetric=True"
            )
        if not self.symmetric and self.scale in ("e8m0", "e4m3", "super8"):
            raise SchemeError(
                f"an affine scheme with {self.scale} scales", "their formats have no zero points", "use symmetric=True"
            )
        if self.scale in SUPER_BLOCKS:
            self._check_super_blocks()
        self.grid.check(scale=self.scale, rounding=self.rounding)

    def _check_super_blocks(self) -> None:
        size = 256 // SUPER_BLOCKS[self.scale][0]
        if self.granularity != PerGroup(1, size):
            found = f"a super-block of {self.scale} scales has 256 neighbors in groups of {size}"
            raise SchemeError(f"{_describe(self.granularity)} {self.scale} scales", found, f"use groups of {size}")
        if not self.symmetric and self.grid.signed:
            raise SchemeError(f"signed affine codes with {self.scale} scales", "they have none", "use unsigned ones")

    @property
    def has_offset(self) -> bool:
        """Whether the code 0 stands for a real number of each group, `-offset`, in place of codes with a zero point."""
        return self.scale == "super6" and not self.symmetric

    @property
    def group(self) -> int:
        """How many neighbors a file holds together: those of a group, or of a super-block."""
        if self.scale in SUPER_BLOCKS:
            return 256
        return self.granularity.size if isinstance(self.granularity, PerGroup) else 1

    def without_chance(self) -> Scheme:
        """Itself, rounding to nearest where it rounds by chance, which is for training: what is deployed."""
        return replace(self, rounding=self.rounding.without_chance())

    def __str__(self) -> str:
        parts = [self.grid.name, "symmetric" if self.symmetric else "affine", _describe(self.granularity)]
        if self.scale != "float":
            parts.append("power-of-two" if self.scale == "power_of_two" else f"{self.scale}-scales")
        if self.rounding is not Rounding.HALF_EVEN:
            parts.append(self.rounding.value)
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        return {
            "grid": {"kind": _kind_of(self.grid, GRIDS), **_fields(self.grid)},
            "symmetric": self.symmetric,
            "granularity": {"kind": _kind_of(self.granularity, _GRANULARITIES), **_fields(self.granularity)},
            "scale": self.scale,
            "rounding": self.rounding.value,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scheme:
        """The inverse of `to_dict`; a key it does not know is refused."""
        _refuse_unknown("scheme", data, [field.name for field in fields(cls)])
        if "grid" not in data:
            raise SchemeError(f"scheme {dict(data)}", "it has no 'grid'", "add for instance {'kind': 'int', 'bits': 8}")
        given = dict(data)
        given["grid"] = _build("grid", given["grid"], GRIDS)
        if "granularity" in given:
            given["granularity"] = _build("granularity", given["granularity"], _GRANULARITIES)
        return cls(**given)


def _describe(granularity: Granularity) -> str:
    match granularity:
        case PerChannel(axis=axis):
            return f"per-channel({axis})"
        case PerGroup(axis=axis, size=size):
            return f"per-group({axis}, {size})"
        case _:
            return "per-tensor"


def _fields(value: Any) -> dict[str, Any]:
    return asdict(value)


def _kind_of(value: object, table: Mapping[str, type]) -> str:
    return next(kind for kind, cls in table.items() if type(value) is cls)


def _build(what: str, data: object, table: Mapping[str, type[Any]]) -> Any:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in table:
        raise SchemeError(f"{what} {data!r}", f"'kind' must be one of {', '.join(table)}", "name a known kind")
    given = {key: value for key, value in data.items() if key != "kind"}
    _refuse_unknown(f"{what} {kind!r}", given, [field.name for field in fields(table[kind])])
    try:
        return table[kind](**given)
    except TypeError as missing:
        raise SchemeError(f"{what} {dict(data)}", str(missing), "add what is missing") from None


def _refuse_unknown(what: str, data: Mapping[str, Any], known: list[str]) -> None:
    for key in data:
        if key not in known:
            raise SchemeError(f"{what} with key {key!r}", f"known keys are {', '.join(known) or 'none'}", "remove it")


def _require(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise SchemeError(f"Scheme({name}={value!r})", f"{name} is a {type(value).__name__}", f"give a {kind.__name__}")
