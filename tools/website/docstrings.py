"""Docstrings as Markdown: an example that begins with >>> becomes a block of code.

mkdocstrings loads this file as an extension of griffe, which reads the sources for the API reference; the pages about
targets and methods call `as_markdown`.
"""

from __future__ import annotations

import re

try:
    import griffe
except ImportError:  # the tests of the pages run without it
    griffe = None

_EXAMPLE = re.compile(r"^( *)>>> .*\n(?:\1\S.*\n)*", re.MULTILINE)
_FORMULA = re.compile(r"(?<=\n\n)(?:    .*\n(?:\n(?=    ))?)+")


def as_markdown(text: str) -> str:
    """A docstring without its common indentation, its examples and formulas fenced.

    >>> as_markdown("Adds one.\\n\\n>>> add(1)\\n2").splitlines()
    ['Adds one.', '', '```pycon', '>>> add(1)', '2', '```']
    """
    text = text.strip() + "\n"
    text = _EXAMPLE.sub(lambda found: _fenced("pycon", found[1], found[0]), text)
    return _FORMULA.sub(lambda found: _fenced("text", "    ", found[0]), text).strip()


def _fenced(language: str, indent: str, block: str) -> str:
    lines = [line.removeprefix(indent) for line in block.strip("\n").split("\n")]
    return "\n".join([f"```{language}", *lines, "```", ""])


if griffe is not None:

    class MarkdownDocstrings(griffe.Extension):
        """Applies `as_markdown` to every docstring that griffe reads."""

        def on_object(self, *, obj: griffe.Object, **_: object) -> None:
            if obj.docstring is not None:
                obj.docstring.value = as_markdown(obj.docstring.value)
