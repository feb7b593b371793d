"""The request for one tensor, independent of the backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, PlainValidator, model_validator

from detent.errors import SchemeError
from detent.numerics import (
    GRIDS,
    Granularity,
    Grid,
    GridName,
    PerChannel,
    PerGroup,
    PerTensor,
    Requirement,
    Rounding,
    ScaleType,
    Scheme,
)
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes.checks import known, one_of, within
from detent.recipes.options import Options, Scalar, check_options
from detent.recipes.refusal import RefusalError, nearest
from detent.recipes.section import Section

__all__ = ["Groups", "Signed", "TensorRequest"]

Signed = Literal[True, False, "auto"]

_T = TypeVar("_T")


class Groups(Section, frozen=True):
    """One scale for each `per_group` neighbors; which axis they lie along is the backend's business."""

    per_group: Annotated[int, within(1, 2**31 - 1)]


def _granularity(value: object) -> object:
    match value:
        case None | "per_tensor" | "per_channel" | Groups():
            return value
        case Mapping():
            return Groups.from_dict(value)
    found = "allowed are 'per_tensor', 'per_channel', {'per_group': size}"
    raise RefusalError(found, nearest(value, ["per_tensor", "per_channel"], "use one of these"))


def _rounding(value: object) -> object:
    if value is None or isinstance(value, Rounding):
        return value
    modes = [mode.value for mode in Rounding]
    if value not in modes:
        raise RefusalError(f"allowed are {', '.join(modes)}", nearest(value, modes, "use one of these"))
    return Rounding(value)


class TensorRequest(Section, frozen=True):
    """How a tensor is to be quantized, as far as anyone has said. None leaves it to the method or the backend.

    - `quantizer`, `observer`: names in `QUANTIZERS` and `OBSERVERS`, with options for the class's constructor.
    - `bits`, `grid`, `signed`, `narrow`: the numbers. "auto" is unsigned where the tensor cannot be negative;
      `narrow` speaks of the tensors that are signed.
    - `symmetric`, `granularity`, `scale`, `rounding`: as in `Scheme`, without axes.
    - `quantize`: False leaves the tensor float.

    Invariants: the names exist, the options fit the classes, and a scheme exists that has all that was asked
    and that the named methods have a meaning for.

    >>> TensorRequest(bits=4).over(TensorRequest(quantizer="lsq", bits=8))
    TensorRequest(quantizer='lsq', bits=4)
    """

    quantizer: Annotated[str, known(QUANTIZERS)] | None = None
    quantizer_options: Annotated[Mapping[str, Scalar], PlainValidator(Options.of)] = Options()
    observer: Annotated[str, known(OBSERVERS)] | None = None
    observer_options: Annotated[Mapping[str, Scalar], PlainValidator(Options.of)] = Options()
    bits: int | None = None
    grid: Annotated[GridName | None, one_of(GridName)] = None
    signed: Annotated[Signed | None, one_of(Signed)] = None
    narrow: bool | None = None
    symmetric: bool | None = None
    granularity: Annotated[Literal["per_tensor", "per_channel"] | Groups | None, BeforeValidator(_granularity)] = None
    scale: Annotated[ScaleType | None, one_of(ScaleType)] = None
    rounding: Annotated[Rounding | None, BeforeValidator(_rounding)] = None
    quantize: bool | None = None

    def over(self, base: TensorRequest) -> TensorRequest:
        """This request laid over `base`, field by field: what is None here is taken from there.

        Options are laid over one by one; those of `base` go if another quantizer or observer is named here.
        """
        laid = {**dict(base), **{name: value for name, value in self if value is not None}}
        for kind in ("quantizer", "observer"):
            if getattr(self, kind) in (None, getattr(base, kind)):
                options = f"{kind}_options"
                laid[options] = {**getattr(base, options), **getattr(self, options)}
        return TensorRequest.from_dict(laid, source="laid over its base")

    @model_validator(mode="after")
    def _check(self) -> TensorRequest:
        requirements = {}
        if self.quantizer is not None:
            quantizer = QUANTIZERS[self.quantizer]
            check_options("quantizer", self.quantizer, quantizer, self.quantizer_options)
            requirements[self.quantizer] = quantizer.requires
        if self.observer is not None:
            observer = OBSERVERS[self.observer]
            check_options("observer", self.observer, observer, self.observer_options)
            requirements[f"observer {self.observer}"] = observer.requires
        _refuse_impossible(self, requirements)
        return self


def _refuse_impossible(request: TensorRequest, requirements: dict[str, Requirement]) -> None:
    """Refuse a request that no scheme can have, by making one; what was not asked is filled in to suit."""
    wants = list(requirements.values())
    grid = _grid(request, wants)
    try:
        scheme = Scheme(
            grid,
            symmetric=_first(request.symmetric, [want.symmetric for want in wants], True),
            granularity=_layout(request, wants),
            scale=_first(request.scale, [want.scale for want in wants], "float"),
            rounding=request.rounding or Rounding.HALF_EVEN,
        )
        for name, requirement in requirements.items():
            requirement.check(name, scheme)
    except SchemeError as error:
        raise _relayed(error, about=error.asked) from None


def _grid(request: TensorRequest, wants: list[Requirement]) -> Grid:
    fitting = [name for name, cls in GRIDS.items() if all(issubclass(cls, want.grids) for want in wants)]
    name = request.grid or (fitting or ["int"])[0]
    kind = GRIDS[name]
    signed = kind.signs[0] if request.signed in (None, "auto") else bool(request.signed)
    if signed not in kind.signs:
        found = f"grids of kind {name!r} {'hold no' if signed else 'hold a'} sign"
        to_do = f"use signed: {str(not signed).lower()}"
        raise RefusalError(found, to_do, at=("signed",), value=signed, error=SchemeError)
    if request.narrow and not (kind.can_be_narrow and signed):
        found = "narrow drops the code -2^(b-1), which only signed integer grids have"
        raise RefusalError(found, "leave narrow out", at=("narrow",), value=True, error=SchemeError)
    most = min(want.most_bits for want in wants) if wants else 32
    try:
        bits = min(kind.usual_bits, most) if request.bits is None else request.bits
        return kind.of(bits, signed=signed, narrow=bool(request.narrow))
    except SchemeError as error:
        raise _relayed(error, at=("bits",), value=request.bits) from None


def _layout(request: TensorRequest, wants: list[Requirement]) -> Granularity:
    match request.granularity:
        case "per_tensor":
            return PerTensor()
        case "per_channel":
            return PerChannel()
        case Groups(per_group=size):
            return PerGroup(1, size)
    candidates = (PerTensor(), PerChannel(), PerGroup(1, 32))
    fitting = [one for one in candidates if all(isinstance(one, want.granularities) for want in wants)]
    return (fitting or candidates)[0]


def _first(asked: _T | None, wanted: list[_T | None], usual: _T) -> _T:
    return next((value for value in (asked, *wanted) if value is not None), usual)


def _relayed(error: SchemeError, **place: Any) -> RefusalError:
    return RefusalError(error.found, error.to_do, error=SchemeError, **place)
