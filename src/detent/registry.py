"""Tables from names to things: literal, extended only by an explicit call or an entry point."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from detent.errors import RegistrationError, UnknownNameError

__all__ = ["Registry", "Table"]

T = TypeVar("T")


class Table(Mapping[str, T], Generic[T]):
    """Names to things of one kind; reads like a dict.

    An unknown name raises `UnknownNameError` with the nearest known one. A package may offer a thing through the entry
    point group `detent.<kind>s`; it is loaded when its name is first asked for.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._table: dict[str, T] = {}

    @abstractmethod
    def _load(self, name: str, offered: Any) -> None:
        """Take in what an entry point of that name offers, or refuse it."""

    def __getitem__(self, name: str) -> T:
        if name not in self._table:
            self._look_for(name)
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def _look_for(self, name: str) -> None:
        for point in entry_points(group=f"detent.{self.kind}s", name=name):
            self._load(name, point.load())
            return
        near = difflib.get_close_matches(str(name), self._table, n=1)
        to_do = f"did you mean {near[0]!r}?" if near else f"use one of these, or register your own {self.kind} first"
        raise UnknownNameError(f"{self.kind} {name!r}", f"known are {', '.join(sorted(self._table))}", to_do)


class Registry(Table[type[T]], Generic[T]):
    """Names to classes. Every value is a concrete subclass of `base`; a name is never rebound.

    >>> numbers = Registry("number", int, {"flag": bool})
    >>> numbers["flag"]
    <class 'bool'>
    >>> numbers["flog"]
    Traceback (most recent call last):
    detent.errors.UnknownNameError: asked: number 'flog'
    found: known are flag
    to do: did you mean 'flag'?
    """

    def __init__(self, kind: str, base: type, table: Mapping[str, type[T]]):
        super().__init__(kind)
        self._base = base
        for name, cls in table.items():
            self.register(name, cls)

    def register(self, name: str, cls: type[T]) -> None:
        """Add `cls` under `name`; refuse a name taken by another, a class of another kind, an abstract class."""
        asked = f"register {self.kind} {name!r}"
        if not (isinstance(cls, type) and issubclass(cls, self._base)):
            raise RegistrationError(
                asked, f"{cls!r} is not a subclass of {self._base.__name__}", f"derive it from {self._base.__name__}"
            )
        missing = getattr(cls, "__abstractmethods__", None)
        if missing:
            raise RegistrationError(asked, f"{cls.__name__} lacks {', '.join(sorted(missing))}", "implement them")
        if name in self._table and self._table[name] is not cls:
            raise RegistrationError(asked, f"the name is taken by {self._table[name].__qualname__}", "choose another")
        self._table[name] = cls

    def _load(self, name: str, offered: Any) -> None:
        self.register(name, offered)
