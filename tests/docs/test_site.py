"""The documentation site: its generated pages, and, where mkdocs is installed, all of it."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tools.website import api, check, links, methods, notebooks, targets
from tools.website.docstrings import as_markdown
from tools.website.options import ABOUT, OF

from detent.algorithms import ALGORITHMS
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.recipes import BUILTIN, Recipe
from detent.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]


# ---- targets ----


def test_every_target_has_a_page():
    assert set(targets.pages()) == {"index.md", *(f"{name}.md" for name in TARGETS)}


def test_the_page_of_a_target_says_what_it_is():
    page = targets.pages()["openvino.md"]
    assert "OpenVINO, CPU plugin." in page
    assert (
        "| weights | int | 8, 7 | signed, narrow (-127 to 127 for 8 bits), full | 0 | per channel, per tensor |" in page
    )
    assert "| inputs and weights are quantized | `conv`, `conv_transpose`, `linear`, " in page
    assert "| `openvino_ir` | `model.xml`, `model.bin` | `openvino` |" in page
    assert "`verify` runs **openvino**. To install it: `pip install 'detent[openvino]'" in page
    assert "| `conv_transpose_as_conv` |" in page
    assert "On `avx2`, `avx512` CPUs its kernels add products in pairs" in page


def test_a_target_without_an_engine_says_so():
    page = targets.pages()["nnie.md"]
    assert "Detent runs no engine of this target: `verify` compares the simulation with the twin." in page
    assert "| weights | log | 8 |" in page
    assert "## Rewrites" not in page


def test_a_target_lists_its_operators():
    page = targets.pages()["ncnn.md"]
    (row,) = [line for line in page.splitlines() if line.startswith("| on integers")]
    assert "`Conv`" in row
    assert "| refused: the file cannot hold them |" in page


# ---- methods ----


def test_every_method_has_a_page():
    kinds = {"algorithms": ALGORITHMS, "quantizers": QUANTIZERS, "observers": OBSERVERS}
    expected = {f"{kind}/{name}.md" for kind, table in kinds.items() for name in table}
    assert set(methods.pages()) == {"index.md", *expected}


def test_the_page_of_an_algorithm():
    page = methods.pages()["algorithms/adaround.md"]
    assert "Runs after calibration." in page
    assert "Nagel et al., ICML 2020" in page
    assert "| `steps` | `int` | `2000` | learning steps for each layer or block |" in page
    assert "Used by the built-in recipe `adaround`." in page


def test_the_page_of_a_quantizer():
    page = methods.pages()["quantizers/lsq.md"]
    assert "- Quantizes: weights, activations, biases." in page
    assert "```pycon\n>>> from detent.numerics import IntGrid" in page
    assert "| `gradient_scale` | `Literal['lsq', 'bounded', 'none']` | `'lsq'` | what" in page


def test_a_line_about_an_option_is_of_one_that_exists():
    owners = [*QUANTIZERS.items(), *OBSERVERS.items(), *((name, each.run) for name, each in ALGORITHMS.items())]
    existing = {(name, option) for name, owner in owners for option in inspect.signature(owner).parameters}
    assert set(ABOUT) <= {option for _, option in existing}
    assert set(OF) <= existing


def shown_recipe(page):
    return re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("name", [name for name in methods.pages() if name != "index.md"])
def test_the_recipe_of_a_page_uses_the_method(name, tmp_path):
    kind, _, file = name.partition("/")
    (shown,) = shown_recipe(methods.pages()[name])
    (tmp_path / "shown.yaml").write_text(shown)
    recipe = Recipe.load(tmp_path / "shown.yaml")
    assert methods.uses(recipe, file.removesuffix(".md"), kind.removesuffix("s"))


def test_a_recipe_uses_what_it_names():
    assert methods.uses(BUILTIN["brecq"].recipe, "brecq", "algorithm")
    assert not methods.uses(BUILTIN["brecq"].recipe, "adaround", "algorithm")
    assert methods.uses(BUILTIN["brecq"].recipe, "adaround", "quantizer")
    assert methods.uses(BUILTIN["kl"].recipe, "kl", "observer")


# ---- the API reference ----


def test_the_reference_shows_each_name_once():
    pages = api.pages()
    shown = [line for page in pages.values() for line in page.splitlines() if line.startswith("::: ")]
    assert len(shown) == len(set(shown))
    assert "::: detent.preparing.prepare" in pages["detent.md"]
    assert "::: detent.observers.OBSERVERS" in pages["detent.observers.md"]
    assert "- [`Recipe`][detent.recipes.recipe.Recipe]" in pages["detent.recipes.md"]


# ---- links and docstrings ----


def test_links_lead_to_pages():
    text = (
        "[a](../SECURITY.md#x) [b](../examples/own_backend.py) [c](cpus.md) [d](#here) [e](https://e.org) `[f](../x)`"
    )
    assert links.rewritten(text, "docs/onnx.md") == (
        "[a](project/security.md#x) [b](source/examples/own_backend.py.md) [c](cpus.md) [d](#here) [e](https://e.org) "
        "`[f](../x)`"
    )
    assert links.rewritten("[`code`](docs/cpus.md)", "README.md") == "[`code`](../cpus.md)"


def test_only_files_that_are_linked_are_shown():
    pages = {
        "docs/a.md": "[x](../examples/own_backend.py) [y](../README.md) `[z](../Makefile)`\n```\n[w](../Makefile)\n```"
    }
    assert list(links.linked_sources(pages)) == ["examples/own_backend.py"]


def test_a_folder_is_one_page():
    page = links.source_page("examples/recipes")
    assert "## w4a8_lsq.yaml\n\n````yaml\n" in page


def test_formulas_and_examples_of_docstrings_are_blocks():
    text = "One line.\n\n    y = x + 1\n\n    z = y\n\n- a list\n  of two lines\n\n>>> 1 + 1\n2\n"
    assert as_markdown(text) == (
        "One line.\n\n```text\ny = x + 1\n\nz = y\n```\n\n- a list\n  of two lines\n\n```pycon\n>>> 1 + 1\n2\n```"
    )


def test_a_notebook_becomes_a_page(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"text": ["1\n"], "output_type": "stream"}]},
        {"cell_type": "code", "source": ["x"], "outputs": [{"data": {"text/plain": ["x"], "text/html": ["<b>x</b>"]}}]},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert notebooks.as_markdown(tmp_path / "a.ipynb") == (
        "# Title\n\n[Download the notebook](a.ipynb){ download }\n\nText.\n\n```python\nprint(1)\n```\n\n"
        '```{ .text .output .no-copy }\n1\n```\n\n```python\nx\n```\n\n<div class="output"><b>x</b></div>\n'
    )


# ---- nothing from elsewhere ----


@pytest.mark.parametrize(
    ("page", "loads"),
    [
        ('<script src="https://a.org/a.js"></script>', ["https://a.org/a.js"]),
        ('<link rel="stylesheet" href="//a.org/a.css">', ["//a.org/a.css"]),
        ('<img srcset="a.png 1x, https://a.org/b.png 2x">', ["https://a.org/b.png"]),
        ("<style>@import 'https://a.org/a.css'; b { c: url(https://a.org/f.woff) }</style>", None),
        ('<p style="background: url(https://a.org/p.png)">', ["https://a.org/p.png"]),
        ('<script>import("https://a.org/m.js")</script>', ["https://a.org/m.js"]),
        ('<a href="https://a.org">a</a> <img src="data:image/png;base64,//a"> <script src="a.js"></script>', []),
        ('<link rel="canonical" href="https://a.org/page">', []),
    ],
)
def test_what_a_page_loads(page, loads):
    assert check.loaded(page) == (["https://a.org/a.css", "https://a.org/f.woff"] if loads is None else loads)


def test_an_empty_folder_is_no_site(tmp_path, capsys):
    assert check.main(tmp_path) == 1
    (tmp_path / "index.html").write_text("<p>all here</p>")
    assert check.main(tmp_path) == 0
    (tmp_path / "style.css").write_text("a { b: url('https://a.org/c.png') }")
    assert check.main(tmp_path) == 1
    assert "style.css loads https://a.org/c.png" in capsys.readouterr().out


def python_with_mkdocs() -> str:
    if find_spec("mkdocs") and find_spec("material"):
        return sys.executable
    own = ROOT / ".venv-docs" / "bin" / "python"
    if own.exists():
        return str(own)
    pytest.skip("mkdocs is not installed: `make docs` sets up .venv-docs")


@pytest.mark.full
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path, capsys):
    python = python_with_mkdocs()
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    built = subprocess.run(
        [python, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert check.main(tmp_path / "site") == 0, capsys.readouterr().out
    for page in ("index", "quickstart", "targets/openvino", "methods/quantizers/lsq", "reference/detent", "operators"):
        assert (tmp_path / "site" / f"{page}.html").is_file()
    index = (tmp_path / "site" / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "Learned Step Size Quantization" in index, "search works without a server"
    tutorial = (tmp_path / "site" / "tutorials" / "01_ptq_of_a_cnn.html").read_text(encoding="utf-8")
    assert "computes what was predicted" in tutorial, "stored outputs are shown"
