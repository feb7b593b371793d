"""Runs the notebooks of docs/tutorials and stores what they print in them, so that the site shows it.

    .venv/bin/python tools/run_tutorials.py [docs/tutorials/01_ptq.ipynb ...]

The code cells of a notebook run in order, in one namespace and a folder of their own. The site does not run them.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


def run(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of this run. An error in a cell is raised."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            count = 0
            for place, cell in enumerate(notebook["cells"]):
                if cell["cell_type"] == "code":
                    count += 1
                    cell["outputs"] = run_cell("".join(cell["source"]), names, f"{path.name}, cell {place + 1}", count)
                    cell["execution_count"] = count
        finally:
            os.chdir(before)
    return notebook


def run_cell(source: str, names: dict[str, Any], where: str, count: int) -> list[dict[str, Any]]:
    """Outputs as nbformat 4 has them: what was printed, then the value of the last line if it is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _lines(value._repr_html_())
        outputs.append({"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(paths: list[Path]) -> None:
    for path in paths:
        text = json.dumps(run(path), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"ran {path.name}")


if __name__ == "__main__":
    main([Path(name).resolve() for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")))
