"""An arithmetic names the operators that it has integer kernels for; docs/operators.md shows them."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from detent.errors import DeployError
from detent.ir import OPS, Network, read_qdq
from detent.targets.arithmetics import ARITHMETICS
from tests.twin.nets import SMALL, Style, small_net

TOOL = Path(__file__).resolve().parents[2] / "tools" / "operator_table.py"

# Chips that shift, and those with one scale and no zero point, take other grids.
STYLES = [Style(), Style(activation="int8", symmetric=True, scales="pot", per_channel=False)]


@cache
def networks() -> list[Network]:
    return [read_qdq(small_net(name, style).model) for name in SMALL for style in STYLES]


@pytest.mark.parametrize("name", ARITHMETICS)
def test_no_other_operator_runs_on_integers(name: str) -> None:
    arithmetic = ARITHMETICS[name]()
    seen: set[str] = set()
    for network in networks():
        try:
            steps = arithmetic.lower(arithmetic.rewrite(network))
        except DeployError:  # a grid that the engine does not have
            continue
        seen |= {step.ops[0].type for step in steps if step.ops and step.ran_as == "integer" and not step.off}
    assert seen <= arithmetic.integer_operators
    assert bool(seen) == bool(arithmetic.integer_operators)
    assert arithmetic.integer_operators <= OPS.keys()


def test_the_page_of_operators_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("operator_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.PAGE.read_text() == tool.page(), f"run python tools/{TOOL.name}"
