"""`detent backends`: the hardware targets, and what each offers."""

from __future__ import annotations

import json as json_format
import sys
from typing import TYPE_CHECKING, Any

from detent.cli.options import AsJson

if TYPE_CHECKING:
    from detent.planning import Backend, SupportedSchemes

__all__ = ["backends"]


def backends(
    json: AsJson = False,
) -> None:
    """List the hardware targets, and the engines that run them here.

    --json adds bits, files and the operations that each target quantizes.

    Example: detent backends --json
    """
    from detent.targets import BACKENDS, TARGETS

    TARGETS.load_installed()
    rows = {name: _facts(backend) for name, backend in BACKENDS.items()}
    if json:
        print(json_format.dumps(rows, indent=2))
    else:
        _print_table(rows)
    for error in TARGETS.refused.values():
        print(f"not available: {error.asked}: {error.found}; {error.to_do}", file=sys.stderr)


def _facts(backend: Backend) -> dict[str, Any]:
    return {
        "about": backend.about,
        "weight bits": _bits(backend.weight),
        "activation bits": _bits(backend.activation),
        "bias": backend.bias,
        "quantizes": sorted(backend.rules),
        "batch norm": backend.batch_norm,
        "arithmetic": backend.arithmetic,
        "files": list(backend.files),
        "engine": backend.engine,
        "installed": _installed(backend.engine),
    }


def _bits(offer: SupportedSchemes) -> list[int]:
    """Every width on offer, the usual one first."""
    return list(dict.fromkeys(bits for each in offer.alternatives for bits in each.bits))


def _installed(engine: str | None) -> str | None:
    """The version of an engine that is here, without what its makers know of their build."""
    from detent.targets.engines import ENGINES

    found = ENGINES[engine].version() if engine is not None and engine in ENGINES else None
    return None if found is None else found.split("-")[0]


def _runs_on(facts: dict[str, Any]) -> str:
    from detent.targets.engines import ENGINES

    engine, version = facts["engine"], facts["installed"]
    if engine not in ENGINES:
        return "the twin only"
    return f"{engine} {version}" if version else f"{engine}: {ENGINES[engine].installation()}"


def _print_table(rows: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="backends", title_justify="left", title_style="bold")
    table.add_column("name", no_wrap=True)
    for column in ("about", "runs here on"):
        table.add_column(column, overflow="fold")
    for name, facts in rows.items():
        table.add_row(name, escape(facts["about"]), escape(_runs_on(facts)))
    Console().print(table)
