"""Pages of the API reference: the public names of `detent`, then those of each package."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

from tools.website.docstrings import as_markdown
from tools.website.markdown import page, section

PACKAGES = (
    "detent.algorithms",
    "detent.cpus",
    "detent.data",
    "detent.errors",
    "detent.graph",
    "detent.ir",
    "detent.numerics",
    "detent.observers",
    "detent.planning",
    "detent.precision",
    "detent.quantizers",
    "detent.recipes",
    "detent.rewrites",
    "detent.targets",
    "detent.targets.base",
    "detent.training",
    "detent.twin",
    "detent.verification",
    "detent.zoo",
)


def pages() -> dict[str, str]:
    """By name of file: `detent` itself, and one page for each package."""
    shown: set[str] = set()
    return {f"{name}.md": package_page(name, shown) for name in ("detent", *PACKAGES)}


def package_page(name: str, shown: set[str]) -> str:
    """The names of `__all__` that no page before has shown; the others are listed with a link."""
    package = import_module(name)
    places = {each: place(package, each) for each in package.__all__}
    new = {each: where for each, where in places.items() if where not in shown}
    shown.update(new.values())
    elsewhere = [f"- [`{each}`][{where}]" for each, where in places.items() if each not in new]
    about = as_markdown(inspect.getdoc(package) or "")
    return page(name, about, *(f"::: {where}" for where in new.values()), section("Also here", "\n".join(elsewhere)))


def place(package: Any, name: str) -> str:
    """Where a name is defined, if it is a function or a class; the name in the package for any other value."""
    found = getattr(package, name)
    if inspect.isclass(found) or inspect.isfunction(found):
        return f"{found.__module__}.{found.__qualname__}"
    return f"{package.__name__}.{name}"
