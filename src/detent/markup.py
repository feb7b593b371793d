"""HTML with automatic escaping of everything that is not `Html`.

tag("td", "<b>", class_="name") -> <td class="name">&lt;b&gt;</td>
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["Html", "escape", "notebook", "row", "table", "tag"]

_VOID = frozenset({"br", "col", "input", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


_LEFT = Html(
    "div.detent div.scroll th, div.detent div.scroll td {text-align: left} "  # notebooks put all cells at the right
    "div.detent div.scroll .number {text-align: right}"
)


def escape(value: object) -> Html:
    """`value` as HTML.

    >>> escape("a < b"), escape(Html("<br>")), escape(3)
    ('a &lt; b', '<br>', '3')
    """
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Children that are None are left out; `class_` is `class`, `data_of` is `data-of`; an attribute that
    is None or False is left out, True stands alone.

    >>> tag("a", "x & y", class_="name", data_of=3, hidden=True, title=None)
    '<a class="name" data-of="3" hidden>x &amp; y</a>'
    """
    parts = [name]
    for key, value in attributes.items():
        written = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(written)
        elif value is not None and value is not False:
            parts.append(f'{written}="{html.escape(str(value))}"')
    opened = f"<{' '.join(parts)}>"
    if name in _VOID:
        return Html(opened)
    return Html(f"{opened}{''.join(escape(child) for child in children if child is not None)}</{name}>")


def table(head: Sequence[str], rows: Iterable[Sequence[object] | Html], **attributes: object) -> Html:
    """A table of cells, each text or `Html`; a row may be `Html` already, as `row` makes it. Columns whose head ends
    with `#` hold numbers, which stand at the right.

    >>> table(["name", "bits#"], [["conv", 8]])[-69:]
    '<tr><td>conv</td><td class="number">8</td></tr></tbody></table></div>'
    """
    heads = [tag("th", title.rstrip("#"), class_=_kind(title), scope="col") for title in head]
    lines = [cells if isinstance(cells, Html) else row(head, cells) for cells in rows]
    inner = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *lines), **attributes)
    return tag("div", inner, class_="scroll")


def row(head: Sequence[str], cells: Sequence[object], **attributes: object) -> Html:
    """One row of a table with that head."""
    kinds = zip(head, cells, strict=True)
    return tag("tr", *(tag("td", cell, class_=_kind(title)) for title, cell in kinds), **attributes)


def notebook(title: str, *parts: object) -> str:
    """What a notebook shows of an object: a title, and parts that scroll if they are long."""
    style = "max-height: 32em; overflow: auto"
    return str(tag("div", tag("style", _LEFT), tag("p", tag("b", title)), *parts, class_="detent", style=style))


def _kind(title: str) -> str | None:
    return "number" if title.endswith("#") else None
