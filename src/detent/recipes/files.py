"""From a path to plain data and back; the suffix decides the format."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from detent.errors import RecipeError
from detent.files import read_bytes, write_bytes
from detent.recipes import json_text, toml_text, yaml_text
from detent.recipes.refusal import RefusalError, nearest

__all__ = ["FORMATS", "format_of", "read", "refuse_long_numbers", "write"]

_MOST = 256 * 1024  # bytes: the largest that comes with Detent has 1.6 KB, and a YAML list of 2 MB was read for 99 s
_LONGEST_KEY = 1000  # dots of a TOML key: its reader takes time and memory with their square


class TextFormat(NamedTuple):
    """Text to data and back. `loads` raises `ValueError` for text that is not of the format."""

    loads: Callable[[str], Any]
    dumps: Callable[[dict[str, Any]], str]


_YAML = TextFormat(yaml_text.loads, yaml_text.dumps)

FORMATS: dict[str, TextFormat] = {
    ".yaml": _YAML,
    ".yml": _YAML,
    ".json": TextFormat(json_text.loads, json_text.dumps),
    ".toml": TextFormat(toml_text.loads, toml_text.dumps),
}


def read(path: str | PathLike[str]) -> dict[str, Any]:
    """The mapping in a file. Nothing in it is executed or imported."""
    path = Path(path)
    asked = f"read the recipe {path}"
    form, text = format_of(path, asked), _text(path, asked)
    try:
        data = form.loads(text)
    except RefusalError as refusal:
        raise RecipeError(asked, refusal.found, refusal.to_do) from None
    except RecursionError:
        raise RecipeError(asked, "it is nested too deeply", "a recipe is a few levels deep") from None
    except ValueError as error:
        raise RecipeError(asked, str(error), f"make it valid {path.suffix[1:]}") from None
    refuse_long_numbers(data, asked)
    if not isinstance(data, dict):
        raise RecipeError(asked, f"it holds a {type(data).__name__}", "write keys and values, as in 'name: mine'")
    return data


def write(data: dict[str, Any], path: str | PathLike[str]) -> None:
    """Write a file that `read` reads back as equal data."""
    path = Path(path)
    asked = f"write the recipe {path}"
    text = format_of(path, asked).dumps(data)
    try:
        write_bytes(path, text.encode())
    except (OSError, ValueError) as error:
        raise RecipeError(asked, _reason(error), "choose a path that can be written") from None


def format_of(path: Path, asked: str) -> TextFormat:
    if path.suffix.lower() not in FORMATS:
        found = f"the suffix {path.suffix!r} is not one of {', '.join(FORMATS)}"
        raise RecipeError(asked, found, nearest(path.suffix, FORMATS, "name the file by its format"))
    return FORMATS[path.suffix.lower()]


def _text(path: Path, asked: str) -> str:
    try:
        text = read_bytes(path, most=_MOST).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RecipeError(asked, "it is not UTF-8 text", "save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise RecipeError(asked, _reason(error), "give the path of a recipe file") from None
    if path.suffix.lower() == ".toml" and max(line.count(".") for line in text.splitlines() or [""]) > _LONGEST_KEY:
        raise RecipeError(asked, f"a line has more than {_LONGEST_KEY} dots", "a recipe is a few levels deep")
    if not text.strip():
        raise RecipeError(asked, "the file is empty", "begin with a name, as in 'name: mine'")
    return text


def refuse_long_numbers(data: Any, asked: str) -> None:
    """Integers past 64 bits have no use in a recipe, and Python refuses to print those of thousands of digits."""
    waiting = [data]
    while waiting:
        match waiting.pop():
            case dict() as mapping:
                waiting += mapping.values()
            case list() as several:
                waiting += several
            case int() as number if number.bit_length() > 64:
                raise RecipeError(asked, f"an integer of {number.bit_length()} bits", "give one of at most 64 bits")


def _reason(error: OSError | ValueError) -> str:
    # A path with a null character is a ValueError.
    return getattr(error, "strerror", None) or str(error)
