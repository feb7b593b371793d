"""Recipes as JSON, without keys that are there twice and without NaN, which is not JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from detent.recipes.refusal import RefusalError

__all__ = ["dumps", "loads"]


def loads(text: str) -> Any:
    """The data in `text`; `ValueError` if it is not JSON, or says a key twice."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)


def dumps(data: dict[str, Any]) -> str:
    """Text that `loads` reads back as equal data."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise RefusalError(f"the key {key!r} appears twice", "keep one")
        mapping[key] = value
    return mapping


def _refuse_constant(word: str) -> NoReturn:
    raise RefusalError(f"{word}, which is not JSON", "give a finite number")
