"""Every relative link in the documents must point to a file of this repository.

Links to other sites and to headings of the same page are not looked at, and neither is anything inside
a code block. Prints each broken link with its line and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]*`")
# [text](target "title"), ![picture](target), <img src="target"> and the definitions [name]: target
LINK = re.compile(r"""\]\(\s*<?([^\s)>]+)|(?:src|href)="([^"]+)"|^\[[^\]]+\]:\s*(\S+)""", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)


def links(text: str) -> list[tuple[int, str]]:
    """(line, target) of each link outside code."""
    for code in (FENCED, INLINE_CODE):
        text = code.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    return [
        (text.count("\n", 0, found.start()) + 1, next(filter(None, found.groups()))) for found in LINK.finditer(text)
    ]


def broken(page: Path) -> list[str]:
    """One line for each relative link of `page` that leads nowhere, or out of the repository."""
    out = []
    for line, target in links(page.read_text(encoding="utf-8")):
        if ELSEWHERE.match(target):
            continue
        file = (page.parent / target.split("#")[0]).resolve()
        if not (file.exists() and file.is_relative_to(ROOT)):
            out.append(f"{page.relative_to(ROOT)}:{line}: no such file: {target}")
    return out


def main() -> int:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    missing = [f"{page.relative_to(ROOT)}: no such page" for page in pages if not page.exists()]
    problems = missing + [problem for page in pages if page.exists() for problem in broken(page)]
    print("\n".join(problems) or f"{len(pages)} pages, every link leads to a file")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
