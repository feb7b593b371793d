"""What a Vitis config says about one kind of tensor: the keys, their allowed values, what goes together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from detent.errors import RecipeError
from detent.numerics import Rounding

__all__ = ["KINDS", "METHODS", "ROUNDINGS", "TensorSettings", "refused"]

KINDS = ("weights", "bias", "activation", "input")

ROUNDINGS = {
    "half_even": Rounding.HALF_EVEN,
    "half_up": Rounding.HALF_UP,
    "half_down": Rounding.HALF_TOWARD_ZERO,  # what Vitis AI's kernel of that name does
    "floor": Rounding.FLOOR,
    "std_round": Rounding.HALF_AWAY,
    "stochastic_round": Rounding.STOCHASTIC,
}

METHODS = {
    "maxmin": "minmax",
    "percentile": "percentile",
    "std": "std",
    "mse": "mse",
    "entropy": "kl",
    "diffs": "pow2_sse",
}
"""The statistics, by the observers that compute them."""

_LEARNED = {"tqt": "poweroftwo", "lsq": "float"}
_MOVING = "moving_avg_"
_WORDS: dict[str, tuple[Any, ...]] = {
    "datatype": ("int", "float32"),
    "round_mode": tuple(ROUNDINGS),
    "scale_type": ("float", "poweroftwo"),
    "calib_statistic_method": ("modal", "max", "mean", "median"),
    "method": (*_LEARNED, *METHODS, *(f"{_MOVING}{name}" for name in METHODS), "moving_avg_max_min"),
    "ch_axis": (0, 1),
}
_FLAGS = ("symmetry", "per_channel", "signed", "narrow_range", "moving_avg")


def refused(where: str, value: object, allowed: str, to_do: str = "use one of these") -> RecipeError:
    """A mistake at a key of a config, with what is allowed there."""
    return RecipeError(f"{where} = {value!r}", f"allowed are {allowed}", to_do)


@dataclass(frozen=True)
class TensorSettings:
    """The keys of a `*_quantize_config`. None is what no section of the config says."""

    datatype: str = "int"
    bit_width: int = 8
    round_mode: str | None = None
    scale_type: str = "poweroftwo"
    calib_statistic_method: str | None = None
    symmetry: bool | None = None
    per_channel: bool | None = None
    ch_axis: int | None = None
    method: str | None = None
    signed: bool | None = None
    narrow_range: bool | None = None
    percentage: float | None = None
    moving_avg: bool | None = None
    quantized: bool = True

    @property
    def learned(self) -> bool:
        return self.how in _LEARNED

    @property
    def how(self) -> str:
        """The method without its moving average; a power-of-two scale is trained unless the config says otherwise."""
        if self.method is None:
            return "tqt" if self.scale_type == "poweroftwo" else "maxmin"
        return self.method.removeprefix(_MOVING).replace("max_min", "maxmin")

    @property
    def moving(self) -> bool:
        return bool(self.moving_avg) or (self.method or "").startswith(_MOVING)

    @property
    def statistic(self) -> str:
        """How the ranges of calibration batches become one."""
        if self.moving:
            return "moving"
        return self.calib_statistic_method or ("modal" if self.scale_type == "poweroftwo" else "mean")

    def over(self, said: Mapping[str, Any], where: str, kind: str | None = None) -> TensorSettings:
        """These settings with those of a config laid over them, each checked; `kind` is the tensor they are for."""
        known = [one.name for one in fields(self) if one.name != "quantized"]
        if not isinstance(said, Mapping):
            raise RecipeError(
                where, f"it is a {type(said).__name__}", f"give a mapping with keys of {', '.join(known)}"
            )
        for key, value in said.items():
            if key not in known:
                near = get_close_matches(key, known, n=1)
                to_do = f"did you mean {near[0]!r}?" if near else "remove it"
                raise RecipeError(f"{where}.{key} = {value!r}", f"no such key; allowed are {', '.join(known)}", to_do)
            _check(key, value, f"{where}.{key}", kind)
        return replace(self, **said)

    def check(self, where: str, kind: str) -> None:
        """Refuse what does not go together."""
        if not self.quantized or self.datatype != "int":
            return
        if self.learned:
            if self.scale_type != _LEARNED[self.how]:
                allowed = f"{_LEARNED[self.how]!r} with method {self.how!r}"
                raise refused(f"{where}.scale_type", self.scale_type, allowed, "change one of them")
            if self.moving:
                raise refused(f"{where}.moving_avg", True, f"false with method {self.how!r}, which learns its scale")
            for key in ("symmetry", "signed"):
                if getattr(self, key) is False:
                    raise refused(f"{where}.{key}", False, f"true with method {self.how!r}", "remove it")
            if self.how == "tqt" and self.per_channel:
                raise refused(f"{where}.per_channel", True, "false with method 'tqt'", "remove it")
        if self.how == "diffs" and (self.scale_type != "poweroftwo" or self.symmetry is False):
            allowed = "every other one with a float scale or without symmetry: it searches exponents"
            raise refused(f"{where}.method", self.method, allowed, "use mse")
        if self.calib_statistic_method == "modal" and self.scale_type == "float" and not self.learned:
            allowed = "max, mean, median with a float scale, of which no two are the same"
            raise refused(f"{where}.calib_statistic_method", "modal", allowed)
        if kind in ("activation", "input") and self.per_channel:
            raise refused(f"{where}.per_channel", True, f"false for {kind}", "remove it")
        if self.narrow_range and self.signed is False:
            raise refused(f"{where}.narrow_range", True, "false for unsigned tensors", "remove it")


def _check(key: str, value: object, where: str, kind: str | None) -> None:
    if key in _WORDS:
        if value not in _WORDS[key] or isinstance(value, bool):
            raise refused(where, value, ", ".join(str(word) for word in _WORDS[key]))
    elif key in _FLAGS:
        if not isinstance(value, bool):
            raise refused(where, value, "true, false")
    elif key == "bit_width":
        most = 32 if kind == "bias" else 16
        if not isinstance(value, int) or isinstance(value, bool) or not 2 <= value <= most:
            raise refused(where, value, f"2 to {most}", "choose a whole number of these; 4, 6 and 8 are usual")
    elif not isinstance(value, (int, float)) or isinstance(value, bool) or not 50 < value <= 100:
        raise refused(where, value, "numbers above 50, up to 100", "give the share of values to keep, as 99.99")
