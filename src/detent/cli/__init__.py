"""The command line, one file per command; each parses arguments, calls the library and prints."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from detent.cli.algorithms import algorithms
from detent.cli.backends import backends
from detent.cli.bench import bench
from detent.cli.completion import completion
from detent.cli.demo import demo
from detent.cli.deploy import deploy
from detent.cli.logs import log_to_stderr as _log_to_stderr
from detent.cli.plan import plan
from detent.cli.quantize import quantize
from detent.cli.recipes import recipes
from detent.cli.report import report
from detent.cli.retarget import retarget
from detent.cli.streams import BROKEN_PIPE as _BROKEN_PIPE
from detent.cli.streams import flushed_output as _flushed_output
from detent.cli.streams import secure_streams as _secure_streams
from detent.cli.train import train
from detent.cli.tune import tune
from detent.cli.verify import verify
from detent.errors import DetentError

__all__ = [
    "algorithms",
    "backends",
    "bench",
    "completion",
    "demo",
    "deploy",
    "main",
    "plan",
    "quantize",
    "recipes",
    "report",
    "retarget",
    "train",
    "tune",
    "verify",
]


class _Commands(TyperGroup):
    """Help that says all of the first sentence of each command."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, self.commands[name].get_short_help_str(200)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


_app = typer.Typer(
    name="detent",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,  # `detent completion` starts no Python at each key
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: loading rich takes as long as everything else
)


def _print_version(asked: bool) -> None:
    if asked:
        from detent import __version__

        print(f"detent {__version__}")
        raise typer.Exit


@_app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Quantize neural networks, and prove that the deployed integers are the simulated ones."""
    del version  # printed by then


_app.command()(demo)
_app.command()(plan)
_app.command()(quantize)
_app.command()(tune)
_app.command()(train)
_app.command()(deploy)
_app.command()(verify)
_app.command()(report)
_app.command()(retarget)
_app.add_typer(bench)
_app.command()(algorithms)
_app.command()(backends)
_app.command()(recipes)
_app.command()(completion)


def main() -> None:
    """The `detent` program. A user's mistake is one line on stderr and exit code 2, never a traceback.

    So is what the system refuses: a full disk, a file that may not be read, no memory. What nobody foresaw is a
    traceback and exit code 3. Python's own would be 1: that a verdict does not hold.
    """
    _secure_streams()
    try:
        with _log_to_stderr(), _flushed_output():
            _app()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer's exit code for it is that of a verdict
            raise SystemExit(_BROKEN_PIPE) from None
        raise
    except BrokenPipeError:
        raise SystemExit(_BROKEN_PIPE) from None
    except DetentError as error:
        said = f"detent: {error.asked}: {error.found}; {error.to_do}"
        print(" ".join(line.strip() for line in said.splitlines() if line.strip()), file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"detent: {where}{error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
    except MemoryError:
        print("detent: there is not enough memory for this", file=sys.stderr)
        raise SystemExit(2) from None
    except Exception:
        traceback.print_exc()
        print("detent: this is a bug in Detent; please report the traceback above", file=sys.stderr)
        raise SystemExit(3) from None
