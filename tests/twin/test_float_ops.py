"""Which operations the twin computes with the reference kernels, and which it leaves to ONNX Runtime."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from detent.errors import DeployError
from detent.ir import Network, Op, Operand
from detent.ir.reference import REFERENCE
from detent.twin.float_ops import FLOAT_OPS, compute, float_kernel, only_moves

ROWS = torch.linspace(-3, 3, 60).reshape(4, 5, 3)


def computed(kind: str, inputs: list[Tensor], domain: str = "", **attributes: Any) -> Any:
    op = Op(kind, "op", tuple(Operand(f"x{index}") for index in range(len(inputs))), ("y",), attributes, domain)
    return float_kernel(Network({}, (), (op,), {}, frozenset(), {}, 21), op)(*inputs)


def test_the_twin_has_the_reference_kernels() -> None:
    assert FLOAT_OPS["Gelu"] is REFERENCE["Gelu"]
    assert torch.equal(computed("Elu", [ROWS], alpha=0.5), torch.nn.functional.elu(ROWS, 0.5))


def test_sums_in_another_order_are_left_to_onnxruntime() -> None:
    assert "ReduceL2" in REFERENCE
    assert "ReduceL2" not in FLOAT_OPS
    torch.testing.assert_close(computed("ReduceL2", [ROWS], keepdims=0), ROWS.norm(), rtol=1e-6, atol=0)


def test_outputs_without_a_name_are_not_given() -> None:
    assert isinstance(compute(Op("Dropout", "op", (Operand("x"),), ("y", "")), ROWS), Tensor)
    assert len(compute(Op("Dropout", "op", (Operand("x"),), ("y", "mask")), ROWS)) == 2


def test_an_operation_of_another_domain_is_refused() -> None:
    with pytest.raises(DeployError, match=r"compute own\.Relu 'op'"):
        computed("Relu", [ROWS], "own")


@pytest.mark.parametrize(
    ("kind", "attributes", "moves"),
    [
        ("Reshape", {}, True),
        ("MaxPool", {}, True),
        ("Resize", {"mode": "nearest"}, True),
        ("Resize", {"mode": "linear"}, False),
        ("Pad", {}, False),
        ("AveragePool", {}, False),
        ("Concat", {}, False),
    ],
)
def test_which_operations_run_on_codes_as_they_are(kind: str, attributes: dict[str, Any], moves: bool) -> None:
    assert only_moves(Op(kind, "op", (), ("y",), attributes)) is moves


def test_a_sequence_is_refused() -> None:
    with pytest.raises(DeployError, match="it gives a list"):
        computed("SequenceConstruct", [ROWS, ROWS])
