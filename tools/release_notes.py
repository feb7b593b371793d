"""Prints what CHANGELOG.md says of a version, for the release that a tag makes.

    python tools/release_notes.py v0.2.0

The tag has to be that of `detent.__version__`, and the version has to have a section, so that nothing is released that
was not written down.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version_of(source: str) -> str:
    """
    >>> version_of('__version__ = "0.1.0"')
    '0.1.0'
    """
    found = re.search(r'^__version__ = "([^"]+)"$', source, re.MULTILINE)
    if found is None:
        raise ValueError("src/detent/__init__.py has no __version__")
    return found[1]


def notes_of(changelog: str, version: str) -> str:
    """The section of a version, without its heading.

    >>> notes_of("# Changelog\\n\\n## [0.2.0] - 2026-12-01\\n\\n- New.\\n\\n## [0.1.0]\\n\\n- Old.\\n", "0.2.0")
    '- New.'
    """
    sections = re.split(r"^## +\[?([^\]\s]+)\]?.*$", changelog, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True)).get(version, "").strip()
    if not found:
        raise ValueError(f"CHANGELOG.md has no section of {version}, or nothing in it")
    return found


def main(tag: str) -> None:
    version = version_of((ROOT / "src" / "detent" / "__init__.py").read_text())
    if tag != f"v{version}":
        raise SystemExit(f"the tag {tag} is not that of the version {version}")
    try:
        print(notes_of((ROOT / "CHANGELOG.md").read_text(), version))
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1])
