"""A mistake in a recipe, and the error message about it."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from detent.errors import DetentError, RecipeError

__all__ = ["RefusalError", "dotted", "explain", "nearest", "show"]

_WANTED = {"int_type": "an integer", "bool_type": "true or false", "string_type": "text"}

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class RefusalError(ValueError):
    """A mistake whose place in the whole recipe is not known yet; `explain` adds it.

    `at` is the rest of the path, below the section that refuses, and `value` the value there; `about` is told
    instead of the value where one value alone is not the mistake; `error` is what the user will catch.
    """

    def __init__(
        self,
        found: str,
        to_do: str,
        *,
        at: tuple[str | int, ...] = (),
        value: object = None,
        about: str | None = None,
        error: type[DetentError] = RecipeError,
    ):
        super().__init__(found, to_do)
        self.found, self.to_do, self.error = found, to_do, error
        self.at, self.value, self.about = at, value, about


def explain(error: ValidationError, source: str) -> DetentError:
    """The first mistake of `error` in three sentences, with its source and the dotted path of its key."""
    first = error.errors(include_url=False)[0]
    refusal = _refusal(first)
    path = dotted(*first["loc"], *refusal.at)
    asked = f"{source}: {path}" if path else source
    if refusal.about is None:
        value = refusal.value if refusal.at else first["input"]
        asked += f"{' =' if path else ':'} {show(value)}"
    elif refusal.about:
        asked += f": {refusal.about}"
    return refusal.error(asked, refusal.found, refusal.to_do)


def nearest(value: object, known: Iterable[str], otherwise: str) -> str:
    """The advice for a misspelt `value`.

    >>> nearest("obsrver", ["observer", "bits"], "remove it")
    "did you mean 'observer'?"
    """
    near = difflib.get_close_matches(value, list(known), n=1) if isinstance(value, str) else []
    return f"did you mean {near[0]!r}?" if near else otherwise


def dotted(*parts: str | int) -> str:
    """The path of a key as a person writes it.

    >>> dotted("rules", 0, "weight", "bits")
    'rules[0].weight.bits'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")


def show(value: object) -> str:
    """`repr`, cut short where it is long or deep."""
    return _short.repr(value)


def _refusal(first: Any) -> RefusalError:
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, RefusalError):
        return raised
    if isinstance(raised, DetentError):
        return RefusalError(raised.found, raised.to_do, error=type(raised))
    if first["type"] == "missing":
        return RefusalError("it is missing", "add it", about="")
    if first["type"] in _WANTED:
        return RefusalError(f"it is a {type(first['input']).__name__}", f"give {_WANTED[first['type']]}")
    return RefusalError(first["msg"], "correct it")
