"""A Plan is a value: looked up, printed as a table, written as JSON."""

from __future__ import annotations

import json

import pytest

from detent.errors import UnknownNameError
from detent.graph import FloatTensor, Plan, QuantizedTensor
from detent.numerics import IntGrid, PerChannel, Scheme

WEIGHT = QuantizedTensor(
    tensor="conv.weight",
    region="",
    node="conv",
    role="weight",
    kind="conv",
    scheme=Scheme(IntGrid(8, narrow=True), granularity=PerChannel(0)),
    quantizer="lsq",
    observer="lsq",
    why="weight of conv",
    quantizer_options={"gradient_scale": 0.5},
)
INPUT = QuantizedTensor(
    tensor="x",
    region="",
    node="x",
    role="activation",
    kind="input",
    scheme=Scheme(IntGrid(8, signed=False), symmetric=False),
    quantizer="fixed",
    observer="percentile",
    observer_options={"percentile": 99.9},
    why="input of conv",
    users=("conv",),
)
FLAT = QuantizedTensor(
    tensor="flatten",
    region="",
    node="flatten",
    role="activation",
    kind="reshape",
    scheme=INPUT.scheme,
    quantizer="fixed",
    observer="minmax",
    why="same numbers as relu",
    shares="relu",
)
BIAS = QuantizedTensor(
    tensor="conv.bias",
    region="",
    node="conv",
    role="bias",
    kind="conv",
    scheme=Scheme(IntGrid(32), granularity=PerChannel(0)),
    quantizer="derived",
    observer="",
    why="scale of input times weight",
)
GATE = FloatTensor(tensor="gate", kind="function bessel_j0", reason="not an operation Detent knows")
PLAN = Plan(
    backend="npu", recipe="mine", entries=(INPUT, WEIGHT, BIAS, FLAT, GATE), notes=("gate stays Python: a branch",)
)


def test_a_tensor_is_looked_up_by_its_name():
    assert PLAN["conv.weight"] is WEIGHT
    assert PLAN["gate"].reason == "not an operation Detent knows"


def test_an_unknown_tensor_is_an_error_that_says_its_name():
    with pytest.raises(UnknownNameError) as refusal:
        PLAN["conv.wieght"]
    assert "'conv.wieght'" in refusal.value.asked


def test_entries_come_in_the_order_of_the_network():
    assert [entry.tensor for entry in PLAN] == ["x", "conv.weight", "conv.bias", "flatten", "gate"]
    assert len(PLAN) == 5


def test_what_is_quantized_and_what_is_not():
    assert PLAN.quantized == (INPUT, WEIGHT, BIAS, FLAT)
    assert PLAN.kept_float == (GATE,)


def test_it_prints_as_a_table():
    assert str(PLAN).splitlines() == [
        "npu / mine",
        "tensor       kind                as                                    by                  why",
        "x            input               uint8 affine per-tensor               fixed < percentile  "
        "input of conv (for conv)",
        "conv.weight  conv                int8 narrow symmetric per-channel(0)  lsq < lsq           weight of conv",
        "conv.bias    conv                int32 symmetric per-channel(0)        derived             "
        "scale of input times weight",
        "flatten      reshape             uint8 affine per-tensor               = relu              "
        "same numbers as relu",
        "gate         function bessel_j0  float                                                     "
        "not an operation Detent knows",
        "note: gate stays Python: a branch",
    ]


def test_it_is_plain_json():
    data = PLAN.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["backend"], data["recipe"], data["notes"]) == ("npu", "mine", ["gate stays Python: a branch"])
    rows = {row["tensor"]: row for row in data["tensors"]}
    assert list(rows) == [entry.tensor for entry in PLAN]
    assert rows["gate"] == {
        "tensor": "gate",
        "kind": "function bessel_j0",
        "float": "not an operation Detent knows",
    }
    assert rows["x"]["users"] == ["conv"]
    assert rows["flatten"]["shares"] == "relu"
    assert rows["x"]["observer options"] == {"percentile": 99.9}
    assert rows["conv.weight"]["quantizer options"] == {"gradient_scale": 0.5}


@pytest.mark.parametrize("entry", PLAN.quantized, ids=lambda entry: entry.tensor)
def test_the_scheme_comes_back_from_json(entry):
    (row,) = [row for row in PLAN.to_dict()["tensors"] if row["tensor"] == entry.tensor]
    assert Scheme.from_dict(json.loads(json.dumps(row["scheme"]))) == entry.scheme


def test_plans_are_values():
    same = Plan(backend="npu", recipe="mine", entries=PLAN.entries, notes=PLAN.notes)
    assert same == PLAN
    assert hash(same) == hash(PLAN)
    assert Plan(backend="npu", recipe="mine", entries=PLAN.entries[:4], notes=PLAN.notes) != PLAN
