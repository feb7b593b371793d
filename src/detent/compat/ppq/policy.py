"""PPQ's words for a scheme: properties that are added up to a policy, roundings, and states."""

from __future__ import annotations

from enum import Enum, IntFlag
from itertools import product
from typing import Any

from detent.errors import SchemeError
from detent.numerics import Rounding

__all__ = ["QuantizationPolicy", "QuantizationProperty", "QuantizationStates", "RoundingPolicy"]


class QuantizationProperty(IntFlag):
    """One trait of a scheme. `+` unites, so that a trait that is named twice is still one."""

    PER_TENSOR = 0x01
    PER_CHANNEL = 0x02
    LINEAR = 0x04
    FLOATING = 0x08
    SYMMETRICAL = 0x10
    ASYMMETRICAL = 0x20
    POWER_OF_2 = 0x40
    DYNAMIC = 0x80

    def __add__(self, other: int) -> QuantizationProperty:
        return self | QuantizationProperty(other)


_P = QuantizationProperty
_SIGNS, _SHAPES = (_P.SYMMETRICAL, _P.ASYMMETRICAL), (_P.PER_TENSOR, _P.PER_CHANNEL)
_VALID = {
    *(
        _P.LINEAR | a | b | c | d
        for a, b, c, d in product(_SIGNS, _SHAPES, (_P(0), _P.POWER_OF_2), (_P(0), _P.DYNAMIC))
    ),
    *(_P.FLOATING | _P.SYMMETRICAL | _P.POWER_OF_2 | shape for shape in _SHAPES),
}


class QuantizationPolicy:
    """A combination of properties that means something; others are refused.

    >>> P = QuantizationProperty
    >>> policy = QuantizationPolicy(P.SYMMETRICAL + P.LINEAR + P.PER_TENSOR)
    >>> policy.has_property(P.SYMMETRICAL), policy.has_property(P.PER_CHANNEL)
    (True, False)
    >>> QuantizationPolicy(P.SYMMETRICAL + P.PER_TENSOR)
    Traceback (most recent call last):
    detent.errors.SchemeError: asked: the policy PER_TENSOR + SYMMETRICAL
    """

    def __init__(self, policy: int):
        self._policy = QuantizationProperty(policy)
        if self._policy not in _VALID:
            named = " + ".join(str(one.name) for one in QuantizationProperty if one in self._policy)
            raise SchemeError(
                f"the policy {named or 'of no property'}",
                "it is none of the 18 that say all of a scheme and nothing twice",
                "give LINEAR, one of PER_TENSOR and PER_CHANNEL, one of SYMMETRICAL and ASYMMETRICAL, and perhaps "
                "POWER_OF_2 or DYNAMIC; FLOATING goes with SYMMETRICAL and POWER_OF_2",
            )

    def has_property(self, one: QuantizationProperty) -> bool:
        return one in self._policy

    def to_dict(self) -> dict[str, bool]:
        """Each property's name, and whether the policy has it."""
        return {str(one.name): one in self._policy for one in QuantizationProperty}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuantizationPolicy) and self._policy == other._policy

    def __hash__(self) -> int:
        return hash(self._policy)

    def __repr__(self) -> str:
        return f"QuantizationPolicy({' + '.join(name for name, has in self.to_dict().items() if has)})"

    def request(self) -> dict[str, Any]:
        """The same as fields of a recipe's `TensorRequest`."""
        for one in (QuantizationProperty.FLOATING, QuantizationProperty.DYNAMIC):
            if self.has_property(one):
                raise SchemeError(
                    f"quantize by {self}", f"{one.name} grids are not simulated here", "use a LINEAR, static policy"
                )
        return {
            "symmetric": self.has_property(QuantizationProperty.SYMMETRICAL),
            "granularity": "per_channel" if self.has_property(QuantizationProperty.PER_CHANNEL) else "per_tensor",
            "scale": "power_of_two" if self.has_property(QuantizationProperty.POWER_OF_2) else "float",
        }


class RoundingPolicy(Enum):
    """PPQ's names; `rounding` is what they do to ties."""

    ROUND_HALF_EVEN = 0
    ROUND_HALF_UP = 1
    ROUND_HALF_DOWN = 2
    ROUND_HALF_TOWARDS_ZERO = 3
    ROUND_HALF_FAR_FORM_ZERO = 4
    ROUND_TO_NEAR_INT = 5
    ROUND_UP = 6
    ROUND_DOWN = 7

    @property
    def rounding(self) -> Rounding:
        return _ROUNDINGS[self]


_ROUNDINGS = {
    RoundingPolicy.ROUND_HALF_EVEN: Rounding.HALF_EVEN,
    RoundingPolicy.ROUND_HALF_UP: Rounding.HALF_UP,
    RoundingPolicy.ROUND_HALF_DOWN: Rounding.HALF_DOWN,
    RoundingPolicy.ROUND_HALF_TOWARDS_ZERO: Rounding.HALF_TOWARD_ZERO,
    RoundingPolicy.ROUND_HALF_FAR_FORM_ZERO: Rounding.HALF_AWAY,
    RoundingPolicy.ROUND_TO_NEAR_INT: Rounding.HALF_AWAY,  # C's round
    RoundingPolicy.ROUND_UP: Rounding.CEIL,
    RoundingPolicy.ROUND_DOWN: Rounding.FLOOR,
}


class QuantizationStates(Enum):
    """How far one tensor of one operation is, or what is asked for it.

    As a request: INITIAL is measured and quantized; ACTIVATED is quantized with the scale it has been given;
    PASSIVE_INIT and PASSIVE, of a bias, take the scale of input times weight; FP32, SOI, DEQUANTIZED, DEACTIVED and,
    of an output, OVERLAPPED are not quantized there. As an answer, after `quantize`: ACTIVATED, OVERLAPPED (the same
    tensor is quantized elsewhere), PASSIVE, FP32.
    """

    INITIAL = 1
    BAKED = 2
    OVERLAPPED = 3
    ACTIVATED = 4
    PASSIVE = 5
    PASSIVE_INIT = 6
    PASSIVE_BAKED = 7
    FP32 = 8
    SOI = -1
    DEQUANTIZED = -2
    DEACTIVED = -3

    @classmethod
    def is_activated(cls, state: QuantizationStates) -> bool:
        """Whether a tensor in this state is quantized when the network runs."""
        return state in (cls.ACTIVATED, cls.PASSIVE)
