"""Tables of named objects: literal, extended only by an explicit call or an entry point."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from detent.errors import RegistrationError, UnknownNameError

__all__ = ["Lazy", "NamedRegistry", "Registry", "Table", "entry_points", "load_offered", "unknown_name"]

T = TypeVar("T")


def entry_points(**selected: str) -> Iterable[Any]:
    """`importlib.metadata.entry_points`, imported on demand because it takes as long to import as the rest of the
    command line."""
    from importlib.metadata import entry_points as find

    return find(**selected)


def load_offered(kind: str, point: Any) -> Any:
    """Import what an entry point offers; what its code raises becomes a `RegistrationError` with its package."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        package = getattr(point.dist, "name", "a package")
        raise RegistrationError(
            f"{kind} {point.name!r}, an entry point of {package}",
            f"{point.value} cannot be imported: {type(error).__name__}: {error}",
            f"repair or uninstall {package}",
        ) from error


def unknown_name(kind: str, name: object, known: Iterable[str], own: str | None = None) -> UnknownNameError:
    """The error for an unknown name of a `kind`; `own` says how to register one's own."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    own = own or f"register your own {kind} first"
    to_do = f"did you mean {near[0]!r}?" if near else f"use one of these, or {own}"
    return UnknownNameError(f"{kind} {name!r}", f"not one of {', '.join(names)}", to_do)


@dataclass(frozen=True)
class Lazy:
    """An object given by its place, "module:object", as in an entry point."""

    place: str

    def load(self) -> Any:
        """Import the object.

        >>> Lazy("fractions:Fraction").load()
        <class 'fractions.Fraction'>
        """
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)


class Table(Mapping[str, T], Generic[T]):
    """Names to things of one kind; reads like a dict.

    An unknown name raises `UnknownNameError` with the nearest known one. A package may offer a thing through the entry
    point group `detent.<kind>s`; it is loaded when its name is first asked for. `find_more`, if set, is called with a
    name before it is given up, and may add things.
    """

    def __init__(self, kind: str):
        self.kind = kind
        self.find_more: Callable[[str], None] | None = None
        self._table: dict[str, T | Lazy] = {}
        self._places: dict[str, str] = {}

    @abstractmethod
    def _check(self, name: str, thing: Any) -> None:
        """Refuse what cannot stand under that name."""

    def register_place(self, name: str, place: str) -> None:
        """Add what is at `place`, "module:object", under `name`; it is imported when it is first asked for."""
        if name in self._table and self._places.get(name) != place:
            raise RegistrationError(f"register {self.kind} {name!r}", "the name is taken", "choose another")
        self._places[name] = place
        self._table.setdefault(name, Lazy(place))

    def __getitem__(self, name: str) -> T:
        if name not in self._table:
            self._look_for(name)
        found = self._table[name]
        if isinstance(found, Lazy):
            found = self._put(name, found.load())
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._table))  # a name that is asked for meanwhile may add others

    def __len__(self) -> int:
        return len(self._table)

    def _put(self, name: str, thing: Any) -> T:
        self._check(name, thing)
        checked: T = thing
        self._table[name] = checked
        return checked

    def _look_for(self, name: str) -> None:
        for point in entry_points(group=f"detent.{self.kind}s", name=name):
            self._put(name, load_offered(self.kind, point))
            return
        if self.find_more is not None:
            self.find_more(name)
        if name in self._table:
            return
        raise unknown_name(self.kind, name, self._table)


class Registry(Table[type[T]], Generic[T]):
    """Names to classes. Every value is a concrete subclass of `base`; a name is never rebound.

    >>> numbers = Registry("number", int, {"flag": bool})
    >>> numbers["flag"]
    <class 'bool'>
    >>> numbers["flog"]
    Traceback (most recent call last):
    detent.errors.UnknownNameError: asked: number 'flog'
    found: not one of flag
    to do: did you mean 'flag'?
    """

    def __init__(self, kind: str, base: type, table: Mapping[str, type[T]]):
        super().__init__(kind)
        self._base = base
        for name, cls in table.items():
            self.register(name, cls)

    def register(self, name: str, cls: type[T]) -> None:
        """Add `cls` under `name`; refuse a name taken by another, a class of another kind, an abstract class."""
        self._check(name, cls)
        if name in self._table and self[name] is not cls:
            raise RegistrationError(
                f"register {self.kind} {name!r}", f"the name is taken by {self[name].__qualname__}", "choose another"
            )
        self._table[name] = cls

    def _check(self, name: str, thing: Any) -> None:
        asked = f"register {self.kind} {name!r}"
        if not (isinstance(thing, type) and issubclass(thing, self._base)):
            raise RegistrationError(
                asked, f"{thing!r} is not a subclass of {self._base.__name__}", f"derive it from {self._base.__name__}"
            )
        missing = getattr(thing, "__abstractmethods__", None)
        if missing:
            raise RegistrationError(asked, f"{thing.__name__} lacks {', '.join(sorted(missing))}", "implement them")


class NamedRegistry(Table[T], Generic[T]):
    """Holds values of type `base`, which know their own names. A name is never rebound."""

    def __init__(self, kind: str, base: type, values: Iterable[T] = ()):
        super().__init__(kind)
        self._base = base
        for value in values:
            self.register(value)

    def register(self, value: T) -> None:
        """Add `value` under its name; refuse a taken name and what is of another type."""
        name = str(getattr(value, "name", ""))
        self._check(name, value)
        if name in self._table and self[name] != value:
            raise RegistrationError(f"register {self.kind} {name!r}", "the name is taken", "choose another")
        self._table[name] = value

    def _check(self, name: str, thing: Any) -> None:
        if not isinstance(thing, self._base):
            found = f"it is a {type(thing).__name__}"
            what = f"{self.kind} {name!r}: {thing!r}" if name else repr(thing)
            raise RegistrationError(f"register {what}", found, f"give a {self._base.__name__}(...)")
        called = getattr(thing, "name", name)
        if called != name:
            raise RegistrationError(
                f"{self.kind} {name!r} of an entry point", f"it calls itself {called!r}", "use one name for both"
            )
