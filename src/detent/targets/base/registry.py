"""The table of targets: names to `Backend` values, extended only by an explicit call or an entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from detent.errors import RegistrationError
from detent.planning import Backend
from detent.registry import Table

__all__ = ["BackendRegistry"]


class BackendRegistry(Table[Backend]):
    """Holds values, which know their own names. A name is never rebound."""

    def __init__(self, backends: Iterable[Backend] = ()):
        super().__init__("backend")
        for backend in backends:
            self.register(backend)

    def register(self, backend: Backend) -> None:
        """Add `backend` under its name; refuse a taken name and what is no backend."""
        if not isinstance(backend, Backend):
            raise RegistrationError(f"register {backend!r}", f"it is a {type(backend).__name__}", "give a Backend(...)")
        if backend.name in self._table and self._table[backend.name] != backend:
            raise RegistrationError(f"register backend {backend.name!r}", "the name is taken", "choose another")
        self._table[backend.name] = backend

    def _load(self, name: str, offered: Any) -> None:
        called = getattr(offered, "name", name)
        if called != name:
            raise RegistrationError(
                f"backend {name!r} of an entry point", f"it calls itself {called!r}", "give both one name"
            )
        self.register(offered)
