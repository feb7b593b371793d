"""`detent recipes`: the recipes that come with Detent."""

from __future__ import annotations

import json as json_format

from detent.cli.options import AsJson

__all__ = ["recipes"]


def recipes(
    json: AsJson = False,
) -> None:
    """List the built-in recipes: names for --recipe and for `recipe` in a config.

    --json prints their content. Your own recipe is a file with the same keys.

    Example: detent recipes --json
    """
    from detent.recipes.builtin import BUILTIN

    if json:
        rows = {name: {"about": entry.description, **entry.recipe.to_dict()} for name, entry in BUILTIN.items()}
        print(json_format.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="recipes", title_justify="left", title_style="bold")
    for column in ("name", "about"):
        table.add_column(column, overflow="fold")
    for name, entry in BUILTIN.items():
        table.add_row(name, escape(entry.description))
    Console().print(table)
