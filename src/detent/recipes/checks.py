"""Checks of single values in a recipe. An error lists the allowed values."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BeforeValidator

from detent.errors import UnknownNameError
from detent.recipes.refusal import RefusalError, nearest
from detent.registry import Registry

__all__ = ["Text", "a_list", "known", "one_of", "within"]


def one_of(choice: Any, default: str | None = None) -> BeforeValidator:
    """The values of a `Literal`, told apart by type too: 1 is not True. None is the default."""
    allowed = get_args(choice)

    def check(value: object) -> object:
        if value is None:
            return default
        if any(type(value) is type(option) and value == option for option in allowed):
            return value
        words = [option for option in allowed if isinstance(option, str)]
        found = f"allowed are {', '.join(repr(option) for option in allowed)}"
        raise RefusalError(found, nearest(value, words, "use one of these"))

    return BeforeValidator(check)


def within(least: int, most: int) -> AfterValidator:
    """An integer from `least` to `most`, both included."""

    def check(value: int) -> int:
        if not least <= value <= most:
            raise RefusalError(f"allowed are {least} to {most}", f"choose an integer in {least}..{most}")
        return value

    return AfterValidator(check)


def known(registry: Registry[Any]) -> AfterValidator:
    """A name of the registry, its entry points included."""

    def check(name: str) -> str:
        try:
            registry[name]
        except UnknownNameError as unknown:
            raise RefusalError(unknown.found, unknown.to_do, error=UnknownNameError) from None
        return name

    return AfterValidator(check)


def _as_tuple(value: object) -> object:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise RefusalError(f"it is a {type(value).__name__}", "give a list")
    return tuple(value)


a_list = BeforeValidator(_as_tuple)
"""A list or a tuple, kept as a tuple; None is the empty one."""


def _writable(value: str) -> str:
    if not value:
        raise RefusalError("it is empty", "give at least one character")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RefusalError("it cannot be written in UTF-8", "remove the lone surrogates")
    return value


Text = Annotated[str, AfterValidator(_writable)]
"""Text of at least one character that any file can hold."""
