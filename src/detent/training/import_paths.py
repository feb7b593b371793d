"""User-defined objects, named in a config as `package.module:Name`; they are imported only with the user's permission.

Importing a module executes it, so an import path in a file is followed only if the caller allows it (`--allow-imports`,
`allow_imports=True`). Even then the file does not choose what is called: a class is constructed only if it is a
subclass of the expected one, which is checked first; a function is called with outputs and batches only, or declares
that it returns the expected type.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from detent.errors import DetentError, RecipeError
from detent.recipes.refusal import nearest

__all__ = [
    "file_of_import",
    "import_class",
    "import_function",
    "import_maker",
    "import_object",
    "is_import_path",
    "refuse_import",
]

_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_import_path(text: str) -> bool:
    """
    >>> is_import_path("my_package.nets:Tiny"), is_import_path("resnet18"), is_import_path("os:system('ls')")
    (True, False, False)
    """
    return _FORM.fullmatch(text) is not None


def refuse_import(what: str, path: str) -> RecipeError:
    """The error for a file that names code when that is not allowed."""
    return RecipeError(
        f"the {what} {path!r}",
        "it is an import path, and importing executes code",
        "use --allow-imports (in Python allow_imports=True) if you trust the file, or use a name that Detent knows",
    )


def import_object(path: str, what: str, *, allowed: bool) -> Any:
    """The object that the path names. Modules of the current folder can be named too, but Detent's own code does not
    import them."""
    asked = f"the {what} {path!r}"
    if not is_import_path(path):
        raise RecipeError(asked, "it is not an import path", "write package.module:Name")
    if not allowed:
        raise refuse_import(what, path)
    module_name, _, inside = path.partition(":")
    with _importing(asked, module_name):
        found: Any = import_module(module_name)
    for part in inside.split("."):
        if not hasattr(found, part):
            advice = nearest(part, dir(found), "give a name that it has")
            raise RecipeError(asked, f"{module_name} has no {part!r}", advice)
        found = getattr(found, part)
    return found


@contextmanager
def _importing(asked: str, module_name: str) -> Iterator[None]:
    """Makes modules of the current folder importable, and turns any error in a module into a `RecipeError`. Detent's
    own imports do not see the current folder, because a file there may have the same name as a module they need."""
    here = [] if module_name.startswith("detent.") else [str(Path.cwd())]
    sys.path[:0] = here
    try:
        yield
    except ModuleNotFoundError as error:
        raise RecipeError(
            asked, f"there is no module {error.name}", "install it, or run in the folder it is in"
        ) from None
    except DetentError:
        raise
    except (Exception, SystemExit) as error:
        raise RecipeError(
            asked, f"importing it raised {type(error).__name__}: {error}", "correct the module"
        ) from error
    finally:
        for folder in here:
            sys.path.remove(folder)


def file_of_import(path: str, what: str) -> Path | None:
    """The file of the module that an allowed path names, or None; the packages around it are imported."""
    module_name = path.partition(":")[0]
    with _importing(f"the {what} {path!r}", module_name):
        found = find_spec(module_name)
        if found is None:
            raise ModuleNotFoundError(name=module_name)
    return None if found.origin is None or not Path(found.origin).is_file() else Path(found.origin)


def import_class(path: str, what: str, base: type, *, allowed: bool) -> type:
    """The class that the path names, which must be a subclass of `base`: anything else is refused before it is
    called."""
    found = import_object(path, what, allowed=allowed)
    if not (isinstance(found, type) and issubclass(found, base)):
        kind = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
        name = f"{base.__module__.removesuffix('.module').removesuffix('.dataset')}.{base.__qualname__}"
        raise RecipeError(f"the {what} {path!r}", f"it is {kind}", f"name a subclass of {name}")
    return found


def import_maker(path: str, what: str, base: type, *, allowed: bool) -> Callable[..., Any]:
    """A subclass of `base`, or a Python function whose annotation says that it returns one. Anything else, such as
    shutil.rmtree, is not called with values from a config."""
    found = import_object(path, what, allowed=allowed)
    if not inspect.isfunction(found):
        return import_class(path, what, base, allowed=allowed)
    try:
        returned = get_type_hints(found).get("return")
    except Exception as error:  # an annotation is any expression
        raise RecipeError(f"the {what} {path!r}", f"its annotations: {error}", "correct them") from error
    returned = get_origin(returned) or returned
    if not (isinstance(returned, type) and issubclass(returned, base)):
        advice = f"annotate it (-> {base.__qualname__}), or name a subclass of it"
        raise RecipeError(
            f"the {what} {path!r}", f"a function that does not say it returns a {base.__qualname__}", advice
        )
    return found


def import_function(path: str, what: str, *, allowed: bool) -> Callable[..., Any]:
    """The function of (outputs, batch) that the path names."""
    found = import_object(path, what, allowed=allowed)
    if not inspect.isfunction(found):
        raise RecipeError(f"the {what} {path!r}", f"it is a {type(found).__name__}", "name a function of Python")
    try:
        inspect.signature(found).bind(None, None)
    except TypeError as error:
        raise RecipeError(f"the {what} {path!r}", str(error), "name a function of (outputs, batch)") from None
    return found
