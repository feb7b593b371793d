"""The table of operators."""

from __future__ import annotations

import onnx
import pytest

from detent.ir import OPS, Trait, ops_with
from detent.ir.reference import REFERENCE
from detent.ir.roundoff import ROUNDOFF
from detent.ir.torch_functions import FUNCTIONS
from detent.twin.float_ops import FLOAT_OPS


def test_every_operator_that_is_computed_is_in_the_table() -> None:
    assert FUNCTIONS.keys() | FLOAT_OPS.keys() <= OPS.keys()


def test_every_operator_of_the_table_is_one_of_onnx() -> None:
    assert all(onnx.defs.has(name) for name in OPS)


@pytest.mark.parametrize(
    ("traits", "names"),
    [
        (Trait.WEIGHTED, {"Conv", "ConvTranspose", "Gemm", "MatMul"}),
        (Trait.CONVOLUTION, {"Conv", "ConvTranspose"}),
        (Trait.ARITHMETIC, {"Add", "Div", "Mul", "Sub"}),
        (Trait.CLIPS, {"Clip", "Relu"}),
        (Trait.RESHAPES, {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}),
        (Trait.EXTREME | Trait.POOL, {"GlobalMaxPool", "MaxPool"}),
        (Trait.EXACT | Trait.ELEMENTWISE, {"Abs", "Clip", "Neg", "Relu"}),
    ],
    ids=lambda value: str(value) if isinstance(value, Trait) else "",
)
def test_operators_by_their_traits(traits: Trait, names: set[str]) -> None:
    assert ops_with(traits) == names


def test_what_follows_from_a_trait() -> None:
    assert ops_with(Trait.RESHAPES) < ops_with(Trait.MOVES_VALUES) < ops_with(Trait.EXACT)
    assert ops_with(Trait.EXTREME) < ops_with(Trait.EXACT)
    assert ops_with(Trait.CONVOLUTION) < ops_with(Trait.WEIGHTED)


def test_an_entry_has_the_kernel_and_the_round_off_of_its_operator() -> None:
    assert OPS["HardSigmoid"].reference is REFERENCE["HardSigmoid"]
    assert OPS["HardSigmoid"].roundoff is ROUNDOFF["HardSigmoid"]
    assert OPS["ReduceProd"].reference is None
    assert OPS["ReduceProd"].roundoff is None


def test_defaults_are_those_of_the_schema() -> None:
    assert OPS["Gemm"].defaults == {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
