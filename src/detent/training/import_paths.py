"""Things of a user's own, named in a config as `package.module:Name`.

A config is data. What it names this way must be a module that Python can already import and a name in it; nothing in
the file itself is evaluated.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from detent.errors import RecipeError
from detent.recipes.refusal import nearest

__all__ = ["is_import_path", "named"]

_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_import_path(text: str) -> bool:
    """
    >>> is_import_path("my_package.nets:Tiny"), is_import_path("resnet18"), is_import_path("os:system('ls')")
    (True, False, False)
    """
    return _FORM.fullmatch(text) is not None


def named(path: str, what: str) -> Any:
    """What the path names; modules of the current folder can be named too."""
    asked = f"the {what} {path!r}"
    if not is_import_path(path):
        raise RecipeError(asked, "it is no import path", "write package.module:Name")
    module_name, _, inside = path.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise RecipeError(
            asked, f"there is no module {error.name}", "install it, or run in the folder it is in"
        ) from None
    finally:
        sys.path.remove(here)
    for part in inside.split("."):
        if not hasattr(found, part):
            advice = nearest(part, dir(found), "give a name that it has")
            raise RecipeError(asked, f"{module_name} has no {part!r}", advice)
        found = getattr(found, part)
    return found
