"""Sizes and inputs that a user fixes, and the names of those that stay free."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, parser

import detent
from detent.errors import OnnxError
from detent.frontends.onnx import ports_of

RATE = """
<ir_version: 8, opset_import: ["": 17]> net (float[batch, length] x, int64 sr) => (float[batch, length] y)
{
    wide = Constant <value = int64 {16000}> ()
    two = Constant <value = float {2.0}> ()
    is_wide = Equal (sr, wide)
    y = If (is_wide) <
        then_branch = a () => (float[batch, length] p) { p = Mul (x, two) },
        else_branch = b () => (float[batch, length] q) { q = Add (x, two) }
    >
}
"""
BY_SIZE = """
<ir_version: 8, opset_import: ["": 17]> net (float[batch, length] x) => (float[batch, length] y)
{
    sizes = Shape (x)
    first = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    rows = Gather (sizes, first)
    single = Equal (rows, one)
    y = If (single) <
        then_branch = a () => (float[batch, length] p) { p = Neg (x) },
        else_branch = b () => (float[batch, length] q) { q = Abs (x) }
    >
}
"""


def relu(*shape: int | str | None) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("free", [-1, None, "?"])
def test_sizes_without_a_name_are_free(free) -> None:
    assert ports_of(detent.load(relu(free, 3, free))) == {"x": ("size0", 3, "size2")}


def test_a_named_size_is_fixed() -> None:
    made = relu("n", 3, -1)
    assert ports_of(detent.load(made, sizes={"size2": 7})) == {"x": ("n", 3, 7)}
    assert made == relu("n", 3, -1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": {"width": 3}}, "name one of 'n'"),
        ({"values": {"rate": 3}}, "name one of 'x'"),
        ({"values": {"x": 3}}, "not a single number"),
    ],
)
def test_names_that_are_not_there_are_refused(options, message) -> None:
    with pytest.raises(OnnxError, match=message):
        detent.load(relu("n", 3), **options)


@pytest.mark.parametrize("shape", [(2**62, 4), (10**9, 10**9), (1,) * 200])
def test_inputs_that_no_machine_holds_are_refused(shape) -> None:
    with pytest.raises(OnnxError, match="the input 'x'"):
        detent.load(relu(*shape))


@pytest.mark.parametrize(("rate", "expected"), [(16000, 2.0), (8000, 3.0)])
def test_a_branch_is_decided_by_an_input_that_is_fixed(rate, expected) -> None:
    network = detent.load(parser.parse_model(RATE), values={"sr": rate})
    assert list(ports_of(network)) == ["x"]
    assert network(torch.ones(2, 3)).unique().tolist() == [expected]


def test_a_branch_is_decided_by_a_size_that_is_fixed() -> None:
    network = detent.load(parser.parse_model(BY_SIZE), sizes={"batch": 1})
    assert network(torch.ones(1, 3)).unique().tolist() == [-1.0]


def test_a_branch_that_nothing_decides_says_what_to_fix() -> None:
    with pytest.raises(OnnxError, match=r"--size batch=SIZE or --size length=SIZE or --set sr=NUMBER"):
        detent.load(parser.parse_model(RATE))


def test_a_fixed_input_is_of_its_own_type() -> None:
    with pytest.raises(OnnxError, match="it is of the type int64"):
        detent.load(parser.parse_model(RATE), values={"sr": 0.5})


@pytest.mark.parametrize("opset", [7, 8])
def test_operators_of_old_opsets_that_mean_the_same(opset) -> None:
    text = f'<ir_version: 3, opset_import: ["": {opset}]> net (float[n, 2, 3] x) => (float[n, c] y)'
    made = parser.parse_model(f"{text} {{ y = Flatten <axis = 1> (x) }}")
    assert detent.load(made)(torch.zeros(4, 2, 3)).shape == (4, 6)


def test_a_signal_without_a_last_axis() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> net (float[n, 8] x) => (float[n, f, b, 2] y)'
    made = parser.parse_model(
        f"{text} {{ step = Constant <value = int64 {{2}}> () size = Constant <value = int64 {{4}}> ()"
        " y = STFT (x, step, , size) }"
    )
    x = torch.arange(8.0).reshape(1, 8)
    expected = torch.view_as_real(torch.fft.rfft(x.unfold(1, 4, 2)))
    assert np.allclose(detent.load(made)(x), expected)
