"""`analyze`: literal figures of one tensor, the table, and the tensor that was made bad."""

import json
import math

import pytest
import torch

import detent
from detent.algorithms import analyze
from detent.algorithms.common.errors_core import Deviation
from detent.errors import NotCalibratedError
from detent.graph import quantizers_of
from detent.quantizers import QUANTIZE
from tests.algorithms.nets import Convs, images, ready
from tests.graph.nets import EIGHT, made


def test_measures():
    deviation = Deviation()
    deviation.add(torch.tensor([1.0, 0.0]), torch.tensor([0.9, 0.0]))
    deviation.add(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.1]))
    assert deviation.relative == pytest.approx(0.01)
    assert deviation.sqnr == pytest.approx(20.0)
    assert deviation.mean_squared == pytest.approx(0.005)
    assert deviation.cosine == pytest.approx(2.0 / math.sqrt(2 * 2.02))


def test_measures_of_nothing():
    assert Deviation().relative == 0
    assert Deviation().sqnr == math.inf
    assert Deviation().cosine == 1
    alone = Deviation()
    alone.add(torch.zeros(2), torch.ones(2))
    assert alone.sqnr == -math.inf


@pytest.fixture
def prepared():
    return ready(Convs(), images(2), backend="onnxruntime")


def test_every_quantizer_is_there_in_the_order_of_the_graph(prepared):
    found = analyze(prepared, images(1))
    assert [loss.tensor for loss in found.tensors if loss.role == "weight"] == [
        f"{name}.weight" for name in ("stem", "expand", "depthwise", "project", "fc")
    ]
    assert {loss.tensor for loss in found.tensors} == {quantizer.name for quantizer in quantizers_of(prepared)}
    names = [loss.tensor for loss in found.tensors]
    assert names.index("x") < names.index("stem.weight") < names.index("act1") < names.index("fc.weight")
    assert all(20 < loss.sqnr < 80 for loss in found.tensors)
    assert all((loss.accumulated is None) == (loss.role == "weight") for loss in found.tensors)


def test_errors_accumulate_along_the_network():
    found = analyze(ready(Convs(), images(2), backend="litert"), images(1))
    behind = {loss.tensor: loss for loss in found.tensors if loss.accumulated is not None}
    assert behind["x"].accumulated == pytest.approx(behind["x"].sqnr)  # nothing comes before it
    assert all(loss.accumulated < loss.sqnr for name, loss in behind.items() if name != "x")
    assert found.output_sqnr == pytest.approx(behind["fc"].accumulated)
    assert found.output_cosine == pytest.approx(behind["fc"].accumulated_cosine)


@pytest.mark.parametrize("tensor", ["fc.weight", "act2"])
def test_the_costliest_is_the_one_that_was_made_bad(prepared, tensor):
    bad = next(quantizer for quantizer in quantizers_of(prepared) if quantizer.name == tensor)
    bad.scale.mul_(60)
    found = analyze(prepared, images(1))
    worst = found.costliest[0]
    assert worst.tensor == tensor
    assert worst.cost > 10 * found.costliest[1].cost
    assert f"costliest: {tensor} (" in str(found)


def test_it_is_a_table_and_plain_json(prepared):
    found = analyze(prepared, images(1))
    assert str(found).splitlines()[0].split()[:3] == ["tensor", "role", "as"]
    assert len(str(found).splitlines()) == len(found.tensors) + 3
    again = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert again["costliest"][0] == found.costliest[0].tensor
    assert again["tensors"][0].keys() == {
        "tensor", "role", "scheme", "sqnr", "cosine", "cost", "accumulated", "accumulated cosine"
    }  # fmt: skip


def test_the_model_is_left_as_it_was(prepared):
    x = images(1)[0]
    with torch.no_grad():
        before = prepared(x)
    analyze(prepared, [x])
    with torch.no_grad():
        assert torch.equal(prepared(x), before)
    assert all(quantizer.mode == QUANTIZE for quantizer in quantizers_of(prepared))


@pytest.mark.parametrize("name", ["control_flow", "several_modes", "dict_io", "bert_encoder", "reused_module"])
def test_networks_of_every_shape(name):
    net, inputs = made(name)
    result = detent.prepare(net, inputs, backend=EIGHT)
    detent.calibrate(result, [inputs])
    found = analyze(result, [inputs])
    assert found.tensors
    assert math.isfinite(found.output_sqnr)


def test_it_wants_a_calibrated_model():
    with pytest.raises(NotCalibratedError, match="calibrate first"):
        analyze(ready(Convs(), images(1), calibrated=False), images(1))


def test_a_notebook_shows_the_costliest_first():
    found = analyze(ready(Convs(), images(1)), images(1))
    shown = found._repr_html_()
    places = [shown.index(f"<td>{loss.tensor}</td>") for loss in found.costliest]
    assert places == sorted(places)
    assert f"<b>outputs: {found.output_sqnr:.1f} dB" in shown
