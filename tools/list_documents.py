"""Writes docs/documents.md: what the documents of the four systems describe, and the test that shows each item.

    python tools/list_documents.py

The tests are the source: `tests/compat/test_document_<number>.py` has one test an item, called
`test_<document>_<item>_...` or `test_<document>_<first>_to_<last>_...`, whose docstring begins with a sentence on it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "documents.md"

TITLES = {
    "000": "MMRazor: quantization",
    "001": "Vitis AI: the PyTorch quantizer",
    "002": "PPQ",
    "003": "MQBench: the benchmark",
    "004": "MQBench: adding a backend",
}
HEAD = """# The documents of the four systems, item by item

Detent takes the code and the configs of MMRazor, Vitis AI's quantizer, PPQ and MQBench with only the import lines
changed. Each row is something that their documents describe, and the test that does it and checks the result. What
cannot exist here (a vendor's compiler, hardware, a download) causes a message, which the test checks.

This page is written by `python tools/list_documents.py` from the tests in `tests/compat/`.
"""
_ITEM = re.compile(r"test_(\d{3})_(\d+)(?:_to_(\d+))?(?:_|$)")


class Item(NamedTuple):
    """One of a document, or several that one test shows."""

    first: int
    last: int
    sentence: str
    test: str

    @property
    def row(self) -> str:
        number = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"| {number} | {self.sentence.replace('|', '&#124;')} | `{self.test}` |"


def items(number: str) -> Iterator[Item]:
    """Those of one document, in their order."""
    path = ROOT / "tests" / "compat" / f"test_document_{number}.py"
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match = _ITEM.match(node.name) if isinstance(node, ast.FunctionDef) else None
        if match is None or not isinstance(node, ast.FunctionDef):
            continue
        sentence = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
        if match[1] != number or not sentence:
            raise SystemExit(f"{path.name}: {node.name} has another document's number, or no docstring")
        found.append(Item(int(match[2]), int(match[3] or match[2]), sentence, node.name))
    yield from sorted(found)


def page() -> str:
    parts = [HEAD]
    for number, title in TITLES.items():
        rows = [item.row for item in items(number)]
        parts.append("\n".join([f"## {number} {title}\n", "| | What works | Test |", "|-:|---|---|", *rows]) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
