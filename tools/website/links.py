"""The repository as a website: which page shows which file, and links between files as links between pages.

Pages of `docs` keep their places; a notebook is a page. README.md, CONTRIBUTING.md and the others beside `docs` are
shown under `project`. An example or a test that a page links to is shown under `source`, a folder as one page with its
files.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".md": "markdown", ".sh": "bash"}


def page_of(file: str) -> str:
    """The page that shows a file or folder of the repository, relative to the root of the site.

    >>> page_of("docs/cpus.md"), page_of("SECURITY.md"), page_of("examples/own_backend.py")
    ('cpus.md', 'project/security.md', 'source/examples/own_backend.py.md')
    """
    if file.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", file.removeprefix("docs/"))
    if file in PROJECT:
        return f"project/{'about.md' if file == 'README.md' else file.lower()}"
    return f"source/{file.rstrip('/')}.md"


def rewritten(text: str, file: str) -> str:
    """The text of a page whose links lead to pages instead of files."""
    page = page_of(file)

    def link(found: re.Match[str]) -> str:
        target, hash_, heading = found[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        return f"{found[1]}{os.path.relpath(page_of(path), posixpath.dirname(page) or '.')}{hash_}{heading}{found[3]}"

    return _outside_code(text, lambda part: LINK.sub(link, part))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """`text` with everything changed that is not code. A link whose words are code counts as a link."""
    parts, end = [], 0
    for code in CODE.finditer(text):
        if text[code.end() : code.end() + 2] == "](":
            continue
        parts += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def linked_sources(pages: dict[str, str]) -> Iterator[str]:
    """The files and folders outside of `docs` that pages link to, by the text of each page, in order."""
    found: dict[str, None] = {}
    for file, text in pages.items():
        for target in (match[2].partition("#")[0] for match in LINK.finditer(CODE.sub(_keep_links, text))):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
            if target and page_of(path).startswith("source/") and (ROOT / path).exists():
                found[path] = None
    yield from found


def _keep_links(code: re.Match[str]) -> str:
    return "" if code[0].startswith(("```", "~~~")) else "`"


def source_page(path: str) -> str:
    """A page with the text of a file, or of the files of a folder."""
    place = ROOT / path
    files = [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.suffix in LANGUAGES)
    lines = ["---", "search:", "  exclude: true", "---", "", f"# {path}", ""]
    for file in files:
        if file != place:
            lines += [f"## {file.relative_to(place)}", ""]
        lines += [f"````{LANGUAGES.get(file.suffix, 'text')}", file.read_text(encoding="utf-8").rstrip(), "````", ""]
    return "\n".join(lines)
