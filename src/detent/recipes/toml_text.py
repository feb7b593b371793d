"""Recipes as TOML: read by the standard library, written by the few lines a recipe needs."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

__all__ = ["dumps", "loads"]


def loads(text: str) -> Any:
    """The data in `text`; `ValueError` if it is not TOML."""
    return tomllib.loads(text)


def dumps(data: dict[str, Any]) -> str:
    """Text that `loads` reads back as equal data: plain keys first, then a table for each section and each rule.

    >>> print(dumps({"name": "mine", "weight": {"bits": 4}, "rules": [{"match": {"kind": "conv"}}]}), end="")
    name = "mine"
    <BLANKLINE>
    [weight]
    bits = 4
    <BLANKLINE>
    [[rules]]
    match = {kind = "conv"}
    """
    sections = [f"[{key}]\n{_lines(value)}" for key, value in data.items() if isinstance(value, dict)]
    for key, value in data.items():
        if _is_tables(value):
            sections += [f"[[{key}]]\n{_lines(table)}" for table in value]
    plain = {key: value for key, value in data.items() if not isinstance(value, dict) and not _is_tables(value)}
    return "\n".join([_lines(plain), *sections])


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(part, dict) for part in value)


def _lines(table: dict[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_inline(value)}\n" for key, value in table.items())


def _inline(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # A JSON string is a TOML string, but for one control character that JSON leaves as it is.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_inline(part)}' for key, part in value.items())}}}"
        case list():
            return f"[{', '.join(map(_inline, value))}]"
        case _:
            return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _inline(key)
