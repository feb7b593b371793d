"""What one file says, in words that all formats share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from detent.deploy import TRANSPOSED

__all__ = ["Said", "named"]


class Said(NamedTuple):
    """What a file says of a tensor, or of what an operation reads at a `place` among its inputs.

    `facts` by name: "scale", "zero point", "bits", "type"; "codes" (least and greatest) and "range" (their real
    numbers), "full range" (of all codes of the type), "byte range" (of all codes of the bytes
    that hold it), "greatest" (absolute real number), "magnitude" (of the code 127);
    "offset" (the least code of the type minus the zero point), "factor" (one by the scale); "numbers" of a parameter,
    codes or real ones, in any order.
    """

    name: str
    facts: Mapping[str, Any]
    place: int | None = None


def named(tensor: str) -> str:
    """Without what its form added to the name."""
    return tensor.removesuffix("_quantized").removesuffix(TRANSPOSED)
