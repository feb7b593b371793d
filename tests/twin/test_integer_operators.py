"""An arithmetic names the operators that it has integer kernels for; docs/operators.md shows them."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from detent.errors import DeployError
from detent.ir import OPS, Network, read_qdq
from detent.targets.arithmetics import ARITHMETICS
from tests.twin.nets import SMALL, Style, small_net

TOOL = Path(__file__).resolve().parents[2] / "tools" / "operator_table.py"

# Chips that shift, and those with one scale and no zero point, take other grids.
STYLES = [Style(), Style(activation="int8", symmetric=True, scales="pot", per_channel=False)]


# An operator that only the engine has, and the one whose work it does.
OWN = {"MatMulNBits": "MatMul", "GgmlMulMat": "MatMul", "XnnpackLinear": "MatMul"}


def in_blocks(kind: int) -> Network:
    """A product whose weight has a scale for each block of 32, as MatMulNBits takes it."""
    codes = helper.make_tensor("codes", kind, [64, 8], np.arange(64 * 8) % 7)
    scale = np.full((2, 8), 0.5, np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["w"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size])] for name, size in (("x", 64), ("y", 8))]
    constants = [codes, numpy_helper.from_array(scale, "scale")]
    graph = helper.make_graph(nodes, "blocks", *ends, constants)
    return read_qdq(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


@cache
def networks() -> list[Network]:
    usual = [read_qdq(small_net(name, style).model) for name in SMALL for style in STYLES]
    return [*usual, in_blocks(TensorProto.INT8), in_blocks(TensorProto.INT4)]


@pytest.mark.parametrize("name", ARITHMETICS)
def test_no_other_operator_runs_on_integers(name: str) -> None:
    arithmetic = ARITHMETICS[name]()
    seen: set[str] = set()
    for network in networks():
        try:
            steps = arithmetic.lower(arithmetic.rewrite(network))
        except DeployError:  # a grid that the engine does not have
            continue
        seen |= {
            OWN.get(step.ops[0].type, step.ops[0].type)
            for step in steps
            if step.ops and step.ran_as == "integer" and not step.off
        }
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
