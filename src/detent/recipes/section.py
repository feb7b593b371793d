"""The base class of the sections of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from detent.errors import RecipeError
from detent.recipes.refusal import RefusalError, explain, nearest, show

__all__ = ["Section"]

S = TypeVar("S", bound="Section")


class Section(BaseModel, frozen=True, strict=True, extra="forbid"):
    """A strict, frozen, hashable value, equal to what says the same.

    Strict: no value is converted ("8" is not 8), no key is ignored. Every mistake, in a constructor as in a
    file, is an error of `detent.errors`; pydantic's own never leaves this package.
    """

    def __init__(self, **data: Any):
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise explain(error, type(self).__name__) from None

    # Pydantic calls an overridden __init__ for every section inside a section, which would lose the path of a
    # mistake; this mark, which its own classes carry, says that ours may be passed by.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def from_dict(cls: type[S], data: Mapping[str, Any], *, source: str | None = None) -> S:
        """The inverse of `to_dict`. `source` is named in errors: the file the data came from."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise explain(error, source or cls.__name__) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, and only what differs from the default: equal sections give equal dictionaries."""
        return {name: _plain(value) for name, value in self._stated()}

    def to_full_dict(self) -> dict[str, Any]:
        """Like `to_dict`, with defaults written out, so that it says the same to a version that has others.

        A default that is None or empty is left out.
        """
        fields = type(self).model_fields
        values = {name: (getattr(self, name), _plain(getattr(self, name), full=True)) for name in fields}
        return {
            name: plain
            for name, (value, plain) in values.items()
            if plain not in (None, [], {}) or value != fields[name].default
        }

    def replace(self: S, **changes: Any) -> S:
        """Another section with some fields changed, checked like any other."""
        return type(self)(**{**dict(self), **changes})

    def __setattr__(self, name: str, value: object) -> None:
        raise RecipeError(f"{type(self).__name__}.{name} = {show(value)}", "it is frozen", "make another by replace()")

    def __delattr__(self, name: str) -> None:
        raise RecipeError(f"del {type(self).__name__}.{name}", "it is frozen", "make another by replace()")

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        return self._stated()

    def _stated(self) -> Iterator[tuple[str, Any]]:
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.default:
                yield name, value

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        if data is None:  # an empty section of a YAML file
            return {}
        keys = ", ".join(cls.model_fields)
        if not isinstance(data, Mapping):
            raise RefusalError(f"it is a {type(data).__name__}", f"give a mapping with keys of {keys}")
        for key, value in data.items():
            if key not in cls.model_fields:
                advice = nearest(key, cls.model_fields, "remove it")
                raise RefusalError(f"no such key; known: {keys}", advice, at=(str(key),), value=value)
        return dict(data)


def _plain(value: Any, *, full: bool = False) -> Any:
    match value:
        case Section():
            return value.to_full_dict() if full else value.to_dict()
        case tuple():
            return [_plain(part, full=full) for part in value]
        case Mapping():
            return dict(value)
        case Enum():
            return value.value
        case _:
            return value
