"""Write docs/operators.md: what Detent knows of each operator, at every stage.

    .venv/bin/python tools/operator_table.py

Everything is read from the tables that the library itself runs by. `tests/twin/test_integer_operators.py` fails if the
page is out of date.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from detent.frontends.onnx.table import CONVERTERS
from detent.frontends.torch.lowerings import LOWERINGS
from detent.graph import TORCH_OPS
from detent.ir import OPS
from detent.targets import TARGETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators.md"

HEAD = """\
# Operators

What Detent knows about each ONNX operator. `python tools/operator_table.py` writes this page from the tables that the
library uses, and a test fails if it is out of date. The row of an operator is the checklist for
[adding it](../CONTRIBUTING.md#adding-an-operator): a "-" is an empty place.

- **torch**: the operations of `graph/torch_ops.py` whose lowering may emit it.
- **ONNX**: whether a file that has it is imported (`frontends/onnx`).
- **kernel**: whether it has a float reference kernel (`ir/reference`). The twin, constant folding and the importer
  compute with it; without one the twin calls ONNX Runtime.
- **bound**: whether its float32 round-off is bounded (`ir/roundoff`). Without a bound, `verify` allows a default.
- one column for each target that has an arithmetic or a file of its own: **int** if its arithmetic has an integer
  kernel for it, on some grids; **float** if it is deployed and runs in float; **-** if its file cannot hold it.

Swish, and Gelu before opset 20, are not operators of any file: deploying writes them as the operators they consist of.

"""


def torch_names() -> dict[str, list[str]]:
    """Names of torch operations by the ONNX operators that their lowerings mention."""
    found: dict[str, list[str]] = {name: [] for name in OPS}
    for op in TORCH_OPS:
        if op.name in LOWERINGS:
            for name in sorted(set(_texts(LOWERINGS[op.name], set())) & OPS.keys()):
                found[name].append(op.name)
    return found


def _texts(function: Any, seen: set[int]) -> Iterator[str]:
    """The strings in the code of a function, in what it closes over, and in the functions of its package it calls."""
    if isinstance(function, str):
        yield function
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen:
        return
    seen.add(id(code))
    for cell in function.__closure__ or ():
        yield from _texts(cell.cell_contents, seen)
    for part in _codes(code):
        yield from (text for text in part.co_consts if isinstance(text, str))
        for name in part.co_names:
            called = function.__globals__.get(name)
            if str(getattr(called, "__module__", "")).startswith("detent.frontends.torch.ops_"):
                yield from _texts(called, seen)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def columns() -> dict[str, Callable[[str], str]]:
    """A function from an operator to its cell, for each target that says something of operators."""
    found: dict[str, Callable[[str], str]] = {}
    for name, target in TARGETS.items():
        formats = [TARGETS.formats[file].operators for file in target.backend.files]
        integer = TARGETS.arithmetics[target.backend.arithmetic](None).integer_operators
        held = None if any(operators is None for operators in formats) else frozenset().union(*map(frozenset, formats))
        if integer or held is not None:
            found[name] = lambda op, integer=integer, held=held: _cell(op, integer, held)
    return found


def _cell(op: str, integer: frozenset[str], held: frozenset[str] | None) -> str:
    if held is not None and op not in held:
        return "-"
    return "int" if op in integer else "float"


def page() -> str:
    """The whole document."""
    names, targets = torch_names(), columns()
    lines = ["| operator | torch | ONNX | kernel | bound | " + " | ".join(f"`{name}`" for name in targets) + " |"]
    lines.append("|" + "---|" * (5 + len(targets)))
    for name, spec in OPS.items():
        known = [name in CONVERTERS, spec.reference is not None, spec.roundoff is not None]
        cells = [", ".join(names[name]) or "-", *("yes" if each else "-" for each in known)]
        lines.append(f"| {name} | " + " | ".join([*cells, *(cell(name) for cell in targets.values())]) + " |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
