"""Nothing in the built site may be loaded from elsewhere: `python -m tools.website.check out/site`.

Links that a reader follows are not looked at. Prints each address that a browser would load by itself, and exits with 1
if there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADED = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
"""Tags and those of their attributes whose address a browser loads."""
NAMED_ONLY = ("canonical", "license")
"""Relations of <link> that name an address."""
ADDRESS = re.compile(r"(?:https?:)?//[^\s\"')]+")
STYLE = re.compile(r"(?:@import\s+|url\(\s*)[\"']?((?:https?:)?//[^\s\"')]+)")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {name: value or "" for name, value in attrs}
        self._inside = tag
        self.loads += STYLE.findall(held.get("style", ""))
        if tag == "link" and held.get("rel") in NAMED_ONLY:
            return
        for name in LOADED.get(tag, ()):
            self.loads += ADDRESS.findall(held.get(name, "")) if held.get(name, "").strip()[:4] != "data" else []

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.loads += STYLE.findall(data)
        if self._inside == "script":
            self.loads += re.findall(r"(?:\bimport\s*\(?|\.src\s*=|fetch\()\s*[\"'](https?://[^\"']+)", data)


def loaded(page: str) -> list[str]:
    """The addresses of other sites that an HTML page loads.

    >>> loaded('<a href="https://a.org">a</a> <img src="b.png"> <script src="https://c.org/c.js"></script>')
    ['https://c.org/c.js']
    """
    parser = _Page()
    parser.feed(page)
    return parser.loads


def problems(folder: Path) -> Iterator[str]:
    """A line for each address that a page or a style sheet of the site loads from elsewhere."""
    for file in sorted(folder.rglob("*")):
        if file.suffix not in (".html", ".css"):
            continue
        text = file.read_text(encoding="utf-8")
        for address in loaded(text) if file.suffix == ".html" else STYLE.findall(text):
            yield f"{file.relative_to(folder)} loads {address}"


def main(folder: Path) -> int:
    pages = len(list(folder.rglob("*.html")))
    found = list(problems(folder)) if pages else [f"{folder} has no pages"]
    print("\n".join(found) or f"{pages} pages, nothing is loaded from elsewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
