"""The table in docs/backends.md says what the backends say."""

from pathlib import Path

import pytest

from detent.planning import plan
from detent.planning.methods import choose
from detent.recipes import TensorRequest
from detent.targets import BACKENDS
from tests.planning.nets import DEFAULT, captured_model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"


def rows():
    """Backend to the cells behind its name: weights, activations, bias, where, kinds, source."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines() if "|" in line]
    return {row[0].strip("`"): row[1:] for row in cells if row[0].startswith("`")}


def expected(backend):
    """The first five of them, from the backend and from its Plan of a small network."""
    entries = {e.tensor: str(e.scheme) for e in plan(captured_model("residual_cnn", 0), backend, DEFAULT).quantized}
    # academic_nlp leaves convolutions alone; 16 inputs are no group.
    weight = entries.get("conv1.weight") or entries.get("fc.weight") or _first_scheme(backend)
    activation = entries.get("maxpool") or entries.get("flatten", "float")
    rules = backend.rules.values()
    where = "inputs, outputs" if any(rule.output for rule in rules) else "inputs"
    where = where if any(rule.inputs for rule in rules) else "weights"
    return [weight.replace("(0)", ""), activation, backend.bias, where, ", ".join(backend.rules)]


def _first_scheme(backend):
    request = TensorRequest()
    found = choose(backend.weight, request, backend="", tensor="", role="weight", axis=0, negative=True)
    return str(found.scheme)


def test_every_backend_has_a_row():
    assert list(rows()) == list(BACKENDS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_says_what_the_backend_says(backend):
    wanted = expected(BACKENDS[backend])
    assert backend in rows(), f"add: | `{backend}` | {' | '.join(wanted)} | where that is from |"
    *facts, source = rows()[backend]
    assert facts == wanted
    assert source
