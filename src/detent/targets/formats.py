"""The file formats, by name; each is imported when it is first used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

from detent.errors import RegistrationError
from detent.ir import Package
from detent.targets import TARGETS
from detent.targets.base import Deployment, Format, Written
from detent.targets.base.format import Roles
from detent.targets.base.qdq_file import QDQ_FILE, OnnxFormat

__all__ = ["FORMATS", "QDQ_FILE", "OnnxFormat", "find_format", "register", "size_to_load"]

FORMATS = TARGETS.formats
"""Formats by name: those of all targets, and those that belong to none."""


def find_format(name: str) -> Format:
    """The format with this name."""
    return FORMATS[name]


def size_to_load(package: Package) -> int:
    """The size in bytes of the smallest file with the weights, which is the one that an engine loads."""
    formats = [FORMATS[name] for name in package.manifest["formats"] if name in FORMATS]
    held = {QDQ_FILE, *(each.weights for each in formats if each.weights is not None)}
    sizes: list[int] = [(package.folder / n).stat().st_size for n in package.manifest["files"] if n in held]
    return min(sizes)


def register(own: Format | str, write: Callable[[Deployment], Mapping[str, bytes]] | None = None) -> None:
    """Register your own format under its name; a backend then names it in `files`.

    `register(name, write)`, with a function that gives the files, is deprecated: `verify` cannot read those back.
    """
    if isinstance(own, str):
        if write is None:
            raise RegistrationError(f"register format {own!r}", "it is a name", "give a Format")
        warnings.warn("register a Format instead of a name and a function", DeprecationWarning, stacklevel=2)
        own = _FunctionFormat(own, write)
    FORMATS.register(own)


class _FunctionFormat(Format):
    """A function that returns the files, and appends to `deployment.notes`."""

    def __init__(self, name: str, function: Callable[[Deployment], Mapping[str, bytes]]):
        self.name, self._function = name, function
        self.files: Mapping[str, Roles | None] = {}

    def write(self, deployment: Deployment) -> Written:
        notes = list(deployment.notes)
        files = self._function(replace(deployment, notes=notes))
        return Written(files, tuple(notes[len(deployment.notes) :]))
