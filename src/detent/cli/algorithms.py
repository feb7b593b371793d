"""`detent algorithms`: what a recipe can name: observers, quantizers, and the algorithms that run at calibration."""

from __future__ import annotations

import inspect
import json as json_format
from typing import Any

from detent.cli.options import AsJson

__all__ = ["algorithms"]


def algorithms(
    json: AsJson = False,
) -> None:
    """List observers (find ranges), quantizers (simulate and train) and algorithms (improve without training).

    A recipe lists the algorithms to apply under "algorithms".

    Example: detent algorithms --json
    """
    from detent.algorithms import ALGORITHMS
    from detent.observers import OBSERVERS
    from detent.quantizers import QUANTIZERS

    tables = {
        "observers": {name: _facts(cls) for name, cls in sorted(OBSERVERS.items())},
        "quantizers": {
            name: {
                **_facts(cls),
                "roles": list(cls.roles),
                "default observer": cls.default_observer or "the target's; `start` up to 6 bits",
            }
            for name, cls in sorted(QUANTIZERS.items())
        },
        "algorithms": {
            name: {
                "what": entry.about,
                "runs": entry.phase,
                "options": _options(entry.run, inspect.Parameter.KEYWORD_ONLY),
            }
            for name, entry in ALGORITHMS.items()
        },
    }
    if json:
        print(json_format.dumps(tables, indent=2))
        return
    _print_tables(tables)


def _facts(cls: Any) -> dict[str, Any]:
    return {
        "what": (inspect.getdoc(cls) or "").split("\n")[0],
        "schemes": cls.requires.summary(),
        "options": _options(cls),
    }


def _options(what: Any, *kinds: Any) -> dict[str, Any]:
    """What it takes besides the tensor at hand, with defaults; only parameters of some kinds, if they are given."""
    common = ("scheme", "shape", "role", "name")
    return {
        name: None if option.default is inspect.Parameter.empty else option.default
        for name, option in inspect.signature(what).parameters.items()
        if name not in common and (not kinds or option.kind in kinds)
    }


def _print_tables(tables: dict[str, dict[str, dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", title_style="bold")
        third = "runs" if title == "algorithms" else "schemes"
        for column in ("name", "what it does", third, "options"):
            table.add_column(column, overflow="fold")
        for name, facts in rows.items():
            options = ", ".join(f"{key}={value}" for key, value in facts["options"].items())
            table.add_row(name, escape(facts["what"]), facts[third], options)
        console.print(table)
