"""Small pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped.

    >>> print(table(["name", "type"], [["steps", "int | None"]]))
    | name | type |
    |---|---|
    | steps | int \\| None |
    """
    lines = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
    return "\n".join(
        "|" + "|".join(cell if cell == "---" else f" {cell.replace('|', chr(92) + '|')} " for cell in line) + "|"
        for line in lines
    )


def codes(names: Iterable[object]) -> str:
    """Names in code style, with commas; a dash for none.

    >>> codes(["conv", "add"]), codes([])
    ('`conv`, `add`', '-')
    """
    return ", ".join(f"`{name}`" for name in names) or "-"


def page(title: str, *sections: str) -> str:
    """A page with its title and those sections that are not empty."""
    return "\n\n".join([f"# {title}", *(section.strip() for section in sections if section.strip())]) + "\n"


def section(title: str, *paragraphs: str) -> str:
    """A section; nothing if it has no paragraph."""
    held = [paragraph.strip() for paragraph in paragraphs if paragraph.strip()]
    return "\n\n".join([f"## {title}", *held]) if held else ""
