"""The options of an observer or a quantizer: a frozen mapping, checked against the class that takes them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from detent.recipes.refusal import RefusalError, nearest

__all__ = ["Options", "Scalar", "check_options", "lacking_options"]

Scalar = str | int | float | bool

_GIVEN_BY_US = ("scheme", "shape", "role", "name")


class Options(Mapping[str, Scalar]):
    """Words to plain values; frozen and hashable. None means the method's own default, so it is left out.

    >>> Options.of({"momentum": 0.9, "bins": None})
    {'momentum': 0.9}
    """

    def __init__(self, values: Mapping[str, Scalar] | None = None):
        self._values = dict(values or {})

    @classmethod
    def of(cls, data: object) -> Options:
        """An option of a recipe, refused where a value is no plain, finite one that any file can hold."""
        if data is None:
            return cls()
        if not isinstance(data, Mapping):
            raise RefusalError(f"it is a {type(data).__name__}", "give a mapping of options to values")
        for key, value in data.items():
            fault = _fault(key, value)
            if fault:
                advice = "give text, a finite number, true or false"
                raise RefusalError(fault, advice, at=(str(key),), value=value)
        return cls({key: value for key, value in data.items() if value is not None})

    def __getitem__(self, key: str) -> Scalar:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


def check_options(kind: str, name: str, cls: type, options: Mapping[str, Scalar]) -> None:
    """Refuse an option that `cls.__init__` does not take, or whose type is not the one it is annotated with."""
    if not options:
        return
    parameters, hints = _parameters(cls), _hints(cls)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for key, value in options.items():
        at = (f"{kind}_options", key)
        if key not in parameters and (key in _GIVEN_BY_US or not takes_any):
            takes = f"takes {', '.join(parameters)}" if parameters else "takes no options"
            raise RefusalError(f"{kind} {name!r} {takes}", nearest(key, parameters, "remove it"), at=at, value=value)
        if key in hints and not _fits(value, hints[key]):
            wanted = hints[key].__name__ if isinstance(hints[key], type) else str(hints[key]).replace("typing.", "")
            found = f"it is a {type(value).__name__}; {kind} {name!r} wants {wanted}"
            words = [word for word in get_args(hints[key]) if isinstance(word, str)]
            raise RefusalError(found, nearest(value, words, "give a value of that type"), at=at, value=value)


def lacking_options(cls: type, options: Mapping[str, Scalar]) -> list[str]:
    """The options that `cls` has no default for and that are not given."""
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [
        key
        for key, parameter in _parameters(cls).items()
        if parameter.default is parameter.empty and parameter.kind not in optional and key not in options
    ]


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    return {key: value for key, value in inspect.signature(cls).parameters.items() if key not in _GIVEN_BY_US}


def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls.__init__)  # type: ignore[misc]
    except Exception:  # a user's annotations may name anything, and need not exist at run time
        return {}


def _fits(value: Scalar, hint: Any) -> bool:
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError:
        return False
    except (PydanticUserError, PydanticUndefinedAnnotation):  # a type that pydantic knows nothing about
        return True
    return True


def _fault(key: object, value: object) -> str | None:
    if not isinstance(key, str):
        return f"the key is a {type(key).__name__}"
    if value is not None and type(value) not in (str, int, float, bool):
        return f"it is a {type(value).__name__}"
    if isinstance(value, float) and not math.isfinite(value):
        return "it is not a finite number"
    if any("\ud800" <= letter <= "\udfff" for letter in f"{key}{value}"):
        return "it cannot be written in UTF-8"
    return None
