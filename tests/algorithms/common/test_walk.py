"""Walking through a graph twice at once: the float values are the float model's, the others the quantized one's."""

import pytest
import torch

import detent
from detent.algorithms import adaround, bias_correction, gptq
from detent.algorithms.common.batches import held_back
from detent.algorithms.common.floating import as_float, remember_float
from detent.algorithms.common.layers import layers_of
from detent.algorithms.common.walk import walks
from detent.recipes import Recipe
from tests.algorithms.nets import Convs, images, ready
from tests.graph.nets import made

ROUNDED = Recipe.from_dict({"name": "mine", "weight": {"quantizer": "adaround", "bits": 4}})


def test_both_runs_are_those_of_the_model():
    net, data = Convs(torch.nn.ReLU), images(4)
    prepared = ready(net, data, backend="onnxruntime")
    (walk,) = walks(prepared, data[:3], data[3:])
    output = next(node for node in walk.nodes if node.op == "output")
    walk.to(output)
    last = output.args[0]
    for call, x in zip(walk.calls, data, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(call.got[last], prepared(x), rtol=0, atol=0)
            torch.testing.assert_close(call.wanted[last], net(x), rtol=1e-4, atol=1e-5)


def test_what_is_behind_is_let_go_and_what_is_needed_kept():
    data = images(2)
    prepared = ready(Convs(), data, backend="onnxruntime")
    (walk,) = walks(prepared, data[:1], data[1:])
    project = layers_of(prepared)[3]
    walk.to(project.node)
    alive = {node.name for node in walk.calls[0].got}
    assert alive == {"activation_quantizers_act0", "activation_quantizers_act2"}  # one to be added, one to go in


def test_inputs_are_not_written_into():
    net = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))
    data = [torch.randn(8, 4) for _ in range(2)]
    kept = [x.clone() for x in data]
    prepared = ready(net, data)
    data = [x.clone() for x in kept]
    bias_correction(prepared, data)
    assert all(torch.equal(x, y) for x, y in zip(data, kept, strict=True))


def test_too_much_for_the_memory_is_left_out(monkeypatch):
    data = images(8)
    prepared = ready(Convs(), data)
    monkeypatch.setattr("detent.algorithms.common.walk._MOST_BYTES", 500_000)
    (walk,) = walks(prepared, data[:6], data[6:])
    assert 2 <= len(walk.calls) < 8
    assert walk.left_out == 8 - len(walk.calls)
    assert walk.train_calls()
    assert walk.judge_calls()


def test_the_float_model_is_the_one_that_was_prepared():
    net, data = Convs(), images(1)
    prepared = ready(net, data, backend="onnxruntime")
    bias = prepared.fc.parametrizations.bias.original
    remember_float(prepared, bias)
    with torch.no_grad():
        bias.add_(1)
        with as_float(prepared):
            torch.testing.assert_close(prepared(data[0]), net(data[0]), rtol=1e-4, atol=1e-5)
        assert (prepared(data[0]) - net(data[0])).mean() > 0.3


# ---- what is held back ----


def test_the_last_quarter_is_held_back():
    assert held_back([1, 2, 3, 4, 5, 6, 7, 8]) == ([1, 2, 3, 4, 5, 6], [7, 8])
    assert held_back([1, 2]) == ([1], [2])


def test_rows_of_a_single_batch_are_held_back():
    train, judge = held_back([torch.arange(8.0)])
    assert train[0].tolist() == [0, 1, 2, 3, 4, 5]
    assert judge[0].tolist() == [6, 7]
    train, judge = held_back([{"a": torch.zeros(4, 2), "b": torch.zeros(4)}])
    assert train[0]["a"].shape == (3, 2)
    assert judge[0]["b"].shape == (1,)


def test_what_cannot_be_split_is_used_for_both():
    odd = (torch.zeros(4, 2), torch.zeros(1, 1))
    assert held_back([odd]) == ([odd], [odd])


# ---- networks of every shape ----


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name",
    ["control_flow", "several_modes", "dict_io", "dataclass_io", "reused_module", "conv_transpose_bn", "bert_encoder"],
)
def test_algorithms_run_on_it(name):
    net, inputs = made(name)
    backend = "academic_nlp" if name == "bert_encoder" else "academic"
    prepared = detent.prepare(net, inputs, backend=backend, recipe=ROUNDED)
    batches = [inputs, made(name, 1)[1]]
    detent.calibrate(prepared, batches)
    first = adaround(prepared, batches, steps=3)
    second = bias_correction(prepared, batches)
    third = gptq(prepared, batches)
    for report in (first, second, third):
        assert report.changes or report.skipped
    with torch.no_grad():
        prepared(*inputs)
