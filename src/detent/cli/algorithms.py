"""`detent algorithms`: every observer and quantizer that is registered, and what each asks of a scheme."""

from __future__ import annotations

import inspect
import json as json_format
from typing import Annotated, Any

import typer

__all__ = ["algorithms"]


def algorithms(
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """List the observers (how a range is found) and the quantizers (how it is simulated and trained).

    Example: detent algorithms --json
    """
    from detent.observers import OBSERVERS
    from detent.quantizers import QUANTIZERS

    tables = {
        "observers": {name: _facts(cls) for name, cls in sorted(OBSERVERS.items())},
        "quantizers": {
            name: {**_facts(cls), "roles": list(cls.roles), "default observer": cls.default_observer}
            for name, cls in sorted(QUANTIZERS.items())
        },
    }
    if json:
        print(json_format.dumps(tables, indent=2))
        return
    _print_tables(tables)


def _facts(cls: Any) -> dict[str, Any]:
    options = inspect.signature(cls).parameters
    common = ("scheme", "shape", "role", "name")
    return {
        "what": (inspect.getdoc(cls) or "").split("\n")[0],
        "schemes": cls.requires.summary(),
        "options": {
            name: None if option.default is inspect.Parameter.empty else option.default
            for name, option in options.items()
            if name not in common
        },
    }


def _print_tables(tables: dict[str, dict[str, dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in ("name", "what it does", "schemes", "options"):
            table.add_column(column, overflow="fold")
        for name, facts in rows.items():
            options = ", ".join(f"{key}={value}" for key, value in facts["options"].items())
            table.add_row(name, escape(facts["what"]), facts["schemes"], options)
        console.print(table)
