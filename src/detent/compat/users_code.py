"""Mistakes in code that a user wrote, or took from a document: which line, and what to write instead."""

from __future__ import annotations

import difflib
import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

import torch

from detent.errors import RunError

__all__ = ["users_code"]

_SAVE = "save_for_backward"
_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def users_code(asked: str, *, package: ModuleType | None = None) -> Iterator[None]:
    """Inside the block a name or an argument that does not exist is answered with its line and a remedy. `package` has
    the names that the code would import."""
    try:
        yield
    except (AttributeError, NameError, TypeError) as error:
        frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)][1:]
        own = [(frame, line) for frame, line in frames if not frame.f_code.co_filename.startswith(_TORCH)]
        if not own:
            raise
        frame, line = own[-1]
        path = frame.f_code.co_filename
        if _SAVE in str(error):  # which torch looks at when forward is over
            line = next((at for at, text in enumerate(linecache.getlines(path), 1) if f"{_SAVE}(" in text), line)
        text = linecache.getline(path, line).strip()
        found = f"{Path(path).name}, line {line}: {text!r}: {type(error).__name__}: {error}"
        raise RunError(asked, found, _remedy(error, text, frame, package)) from error


def _remedy(error: Exception, text: str, frame: FrameType, package: ModuleType | None) -> str:
    if _SAVE in str(error):
        return "save tensors only, and keep numbers on ctx: `ctx.n, ctx.p = n, p`"
    if isinstance(error, NameError) and text.startswith("super("):
        return "write super().__init__(...), which names no class"
    if isinstance(error, NameError) and error.name is not None:
        if error.name in sys.stdlib_module_names:
            return f"write import {error.name} at the top of that file"
        if package is not None and hasattr(package, error.name):
            return f"write from {package.__name__} import {error.name} at the top of that file"
        near = difflib.get_close_matches(error.name, frame.f_locals, n=1)
        return f"define {error.name}" + (f", or did you mean {near[0]!r}?" if near else "")
    return "correct that line"
