"""A notebook as a Markdown page: code and stored outputs become blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def as_markdown(path: Path) -> str:
    """The cells of a notebook, in order, with the outputs that it holds, and a link to the file itself."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title, *rest = [block for cell in cells for block in _blocks(cell)]
    title, _, text = title.partition("\n")
    return "\n\n".join([title, f"[Download the notebook]({path.name}){{ download }}", text.strip(), *rest]) + "\n"


def _blocks(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source.strip()}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            yield f'<div class="output">{"".join(data["text/html"])}</div>'
        else:
            text = "".join(output.get("text") or data["text/plain"]).rstrip()
            yield f"```{{ .text .output .no-copy }}\n{text}\n```"
