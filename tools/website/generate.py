"""Writes the pages of the site that are no files of `docs`. mkdocs-gen-files runs it at each build.

- `targets`, `methods` and `reference`: from the tables and docstrings of the library; no engine has to be installed;
- `project` and `source`: files beside `docs` that pages link to;
- pages of `docs` again, with links to these pages, and the notebooks of `docs` as pages.
"""

from __future__ import annotations

import mkdocs_gen_files
from tools.website import api, methods, notebooks, targets
from tools.website.links import PROJECT, ROOT, linked_sources, page_of, rewritten, source_page


def main() -> None:
    for folder, pages in {"targets": targets.pages(), "methods": methods.pages(), "reference": api.pages()}.items():
        for name, text in pages.items():
            write(f"{folder}/{name}", text)
    documents = [*PROJECT, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in documents}
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        texts[str(path.relative_to(ROOT))] = notebooks.as_markdown(path)
    for file, text in texts.items():
        write(page_of(file), rewritten(text, file))
    for path in linked_sources(texts):
        write(page_of(path), source_page(path))


def write(page: str, text: str) -> None:
    with mkdocs_gen_files.open(page, "w") as file:
        file.write(text)


main()
