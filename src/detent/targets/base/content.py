"""Converts values to the bytes of a file and back, and refuses malformed files."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import ArtifactError, DeployError

__all__ = ["as_json", "parse_json", "plain", "shortest", "unreadable"]


_NUMBERS = re.compile(r"\[\n\s+([-+.\deE]+(?:,\n\s+[-+.\deE]+)*)\n\s+\]")
_BREAK = re.compile(r",\n\s+")
_ONE_LIST = re.compile(r"\[\n\s+(\[[^\[\]\n]*\])\n\s+\]")


def as_json(value: Any) -> bytes:
    """Indented JSON, but with each list of numbers on one line. (A string has no raw line break, so none is
    changed.)"""
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except ValueError as error:  # of a stranger's config.json: Python reads NaN there
        raise DeployError("write a file of JSON", str(error), "correct the numbers in the model's folder") from None
    text = _NUMBERS.sub(lambda found: "[" + _BREAK.sub(", ", found[1]) + "]", text)
    return (_ONE_LIST.sub(r"[\1]", text) + "\n").encode()


def parse_json(content: bytes, format_name: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise unreadable(format_name, f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise unreadable(format_name, f"it holds a {type(found).__name__}, not an object")
    return found


def unreadable(format_name: str, found: str) -> ArtifactError:
    return ArtifactError(f"read a {format_name} file", found, "give a file that this format's tool would take")


def plain(array: npt.NDArray[Any]) -> Any:
    """A scalar for one element without an axis, otherwise a list, as JSON needs it."""
    return array.item() if array.ndim == 0 else array.tolist()


def shortest(value: npt.NDArray[np.float32] | np.float32) -> str:
    """The fewest digits that read back as the same float32.

    >>> shortest(np.float32(0.1)), shortest(np.float32(2.0**-20))
    ('0.1', '9.536743e-07')
    """
    return str(np.float32(value))
