"""A page for each algorithm, quantizer and observer, from the tables and the docstrings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from tools.website.docstrings import as_markdown
from tools.website.markdown import codes, page, section, table
from tools.website.options import about

from detent.algorithms import ALGORITHMS
from detent.algorithms.table import Algorithm
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes import BUILTIN, Recipe
from detent.recipes.yaml_text import dumps

GIVEN = ("scheme", "shape", "role", "name", "prepared", "batches")
"""Arguments that Detent passes itself."""

PLURALS = {"weight": "weights", "activation": "activations", "bias": "biases"}


def pages() -> dict[str, str]:
    """By name of file: the list of all methods, and one page for each."""
    found = {"index.md": index()}
    found.update({f"algorithms/{name}.md": algorithm_page(name, each) for name, each in ALGORITHMS.items()})
    found.update({f"quantizers/{name}.md": class_page(name, cls, "quantizer") for name, cls in QUANTIZERS.items()})
    found.update({f"observers/{name}.md": class_page(name, cls, "observer") for name, cls in OBSERVERS.items()})
    return found


def index() -> str:
    tables = (
        ("algorithms", "Algorithms improve parameters at calibration, without labels.", ALGORITHMS),
        ("quantizers", "Quantizers put a tensor on its grid. Some learn while you train.", QUANTIZERS),
        ("observers", "Observers choose a scale and a zero point from data.", OBSERVERS),
    )
    sections = [
        section(
            kind.capitalize(),
            text,
            table(
                ["name", "what it does"], [[f"[{name}]({kind}/{name}.md)", _line(each)] for name, each in held.items()]
            ),
        )
        for kind, text, held in tables
    ]
    return page(
        "Algorithms, quantizers, observers",
        "A [recipe](../recipes.md) names them. This list is made from the tables of the library, "
        "as is that of `detent algorithms`. [Algorithms](../algorithms.md) has the measured accuracy.",
        *sections,
    )


def _line(method: Any) -> str:
    return method.about if isinstance(method, Algorithm) else (inspect.getdoc(method) or "").partition("\n")[0]


def algorithm_page(name: str, algorithm: Algorithm) -> str:
    run = algorithm.run
    module = sys.modules[run.__module__]
    core = sys.modules.get(f"{run.__module__}_core")
    return page(
        name,
        f"{algorithm.about[0].upper()}{algorithm.about[1:]}. Runs {algorithm.phase}.",
        as_markdown(inspect.getdoc(run) or ""),
        section("How it works", as_markdown(inspect.getdoc(module) or ""), as_markdown(_doc(core))),
        section("Options", options(name, run)),
        section("Recipes", recipes(name, "algorithm")),
        section("From Python", f"```python\nreport = detent.algorithms.{run.__name__}(prepared, batches)\n```"),
    )


def class_page(name: str, cls: type, kind: str) -> str:
    facts = [f"- Works with: {cls.requires.summary()}."]
    if kind == "quantizer":
        facts.append(f"- Quantizes: {', '.join(PLURALS[role] for role in cls.roles)}.")
        default = cls.default_observer
        own = f"the observer [{default}](../observers/{default}.md)"
        chosen = "the target's observer, or [start](../observers/start.md) for 6 bits and fewer"
        facts.append(f"- First scale: from {own if default else chosen}.")
    return page(
        name,
        as_markdown(inspect.getdoc(cls) or ""),
        "\n".join(facts),
        section("How it works", as_markdown(_doc(sys.modules[cls.__module__]))),
        section("Options", options(name, cls)),
        section("Recipes", recipes(name, kind)),
    )


def _doc(thing: Any) -> str:
    return (inspect.getdoc(thing) or "") if thing is not None else ""


def options(owner: str, what: Callable[..., Any]) -> str:
    """A table of the keyword arguments that a recipe may give."""
    hints = get_type_hints(what if inspect.isfunction(what) else what.__init__)
    rows = [
        [f"`{name}`", f"`{type_name(hints.get(name))}`", _default(one.default), about(owner, name)]
        for name, one in inspect.signature(what).parameters.items()
        if name not in GIVEN
    ]
    return table(["option", "type", "default", "what it is"], rows) if rows else "None."


def type_name(hint: Any) -> str:
    """
    >>> type_name(int), type_name(float | None)
    ('int', 'float | None')
    """
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _default(value: Any) -> str:
    return "required" if value is inspect.Parameter.empty else f"`{value!r}`"


def recipes(name: str, kind: str) -> str:
    """Which built-in recipes use it, and a recipe as an example."""
    used = [each for each, entry in BUILTIN.items() if uses(entry.recipe, name, kind)]
    shown = BUILTIN[used[0]].recipe if used else None
    text = dumps(shown.to_dict()) if shown else example(name, kind)
    noun = "recipe" if len(used) == 1 else "recipes"
    where = f"Used by the built-in {noun} {codes(used)}." if used else "No built-in recipe uses it."
    return f"{where}\n\n```yaml\n{text.strip()}\n```"


def uses(recipe: Recipe, name: str, kind: str) -> bool:
    if kind == "algorithm":
        return any(each.name == name for each in recipe.algorithms)
    return name in (getattr(recipe.weight, kind), getattr(recipe.activation, kind))


def example(name: str, kind: str) -> str:
    """A small recipe for what no built-in one uses."""
    if kind == "algorithm":
        return dumps({"name": f"with-{name}".replace("_", "-"), "algorithms": [{"name": name}]})
    cls: Any = QUANTIZERS[name] if kind == "quantizer" else OBSERVERS[name]
    request: dict[str, Any] = {kind: name, **_requested(cls)}
    missing = {
        option: 0.0 if option == "low" else 1.0
        for option, one in inspect.signature(cls).parameters.items()
        if option not in GIVEN and one.default is inspect.Parameter.empty
    }
    if missing:
        request[f"{kind}_options"] = missing
    return dumps({"name": f"with-{name}".replace("_", "-"), "activation": request})


def _requested(cls: Any) -> Mapping[str, Any]:
    """What a recipe has to ask for where a method does not support every scheme."""
    summary = cls.requires.summary()
    grid = summary.partition(",")[0]
    found: dict[str, Any] = {} if grid.startswith("int") else {"grid": grid}
    if "symmetric" in summary:
        found["symmetric"] = True
    if "power-of-two" in summary:
        found["scale"] = "power_of_two"
    return found
