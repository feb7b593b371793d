"""The table of targets: names to `Backend` values, extended only by an explicit call or an entry point."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points

from detent.backends.backend import Backend
from detent.errors import RegistrationError, UnknownNameError

__all__ = ["BackendRegistry"]


class BackendRegistry(Mapping[str, Backend]):
    """Reads like a dict; behaves like `detent.registry.Registry`, but holds values, which know their own names.

    Invariants: a name is never rebound; an unknown name raises `UnknownNameError` with the nearest known one. A
    package may offer a backend through the entry point group `detent.backends`; it is loaded when its name is first
    asked for.
    """

    def __init__(self, backends: Iterable[Backend] = ()):
        self._table: dict[str, Backend] = {}
        for backend in backends:
            self.register(backend)

    def register(self, backend: Backend) -> None:
        """Add `backend` under its name; refuse a taken name and what is no backend."""
        if not isinstance(backend, Backend):
            raise RegistrationError(f"register {backend!r}", f"it is a {type(backend).__name__}", "give a Backend(...)")
        if backend.name in self._table and self._table[backend.name] != backend:
            raise RegistrationError(f"register backend {backend.name!r}", "the name is taken", "choose another")
        self._table[backend.name] = backend

    def __getitem__(self, name: str) -> Backend:
        if name not in self._table:
            self._load_entry_point(name)
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        # Mapping's own version asks __getitem__, which raises our error instead of KeyError.
        return name in self._table

    def _load_entry_point(self, name: str) -> None:
        for point in entry_points(group="detent.backends", name=name):
            backend = point.load()
            if getattr(backend, "name", name) != name:
                raise RegistrationError(
                    f"backend {name!r} of an entry point", f"it calls itself {backend.name!r}", "give both one name"
                )
            self.register(backend)
            return
        near = difflib.get_close_matches(str(name), self._table, n=1)
        to_do = f"did you mean {near[0]!r}?" if near else "use one of these, or register your own backend first"
        raise UnknownNameError(f"backend {name!r}", f"known are {', '.join(sorted(self._table))}", to_do)
