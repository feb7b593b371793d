"""Ranges of tensors that stay float: measured beside the others, and nothing computes with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import detent
from detent.errors import RangeError
from detent.graph import FloatTensor, keeping_ranges, quantizers_of, ranges_of, sum_of_weights
from detent.numerics import choose_qparams

X = torch.linspace(-1, 3, 24).reshape(4, 6)


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def calibrated(net: nn.Module | None = None, backend: str = "onnxruntime", recipe: str = "ptq"):
    prepared = detent.prepare(net or classifier(), (X,), backend=backend, recipe=recipe)
    detent.calibrate(prepared, [X])
    return prepared.eval()


def test_the_range_of_a_float_output_is_that_of_the_float_network():
    prepared = calibrated()
    assert isinstance(prepared.plan["_2"], FloatTensor)
    [entry] = prepared.plan.ranges
    assert (entry.tensor, str(entry.scheme)) == ("_2", "uint8 affine per-tensor")
    [one] = ranges_of(prepared)
    with torch.no_grad():
        logits = classifier()(X)
    wanted = choose_qparams(logits.min(), logits.max(), entry.scheme)
    assert (one.name, one.scale, one.zero_point) == ("_2", wanted.scale, wanted.zero_point)


def test_no_graph_calls_it_but_while_observed():
    prepared = calibrated()
    before = [node.name for node in prepared.graphs["forward"].nodes]
    with detent.observing(prepared):
        inside = [node.name for node in prepared.graphs["forward"].nodes]
        prepared(X)
    assert set(inside) - set(before) == {"float_ranges__2"}
    assert [node.name for node in prepared.graphs["forward"].nodes] == before


def test_an_error_in_the_block_leaves_the_graphs_as_they_were():
    prepared = calibrated()
    runners = dict(prepared.runners)
    with pytest.raises(RuntimeError, match="stop"), detent.observing(prepared):
        raise RuntimeError("stop")
    assert prepared.runners == runners


def test_the_output_stays_float():
    prepared = calibrated()
    with torch.no_grad():
        one = prepared(X)
        ranges_of(prepared)[0].scale.fill_(100.0)
        assert torch.equal(prepared(X), one)


class Masked(nn.Module):
    """Infinities among numbers that are no mask by their making."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return torch.softmax(self.fc(x) - torch.where(x > x.mean(-1, keepdim=True), x * 0, torch.inf), -1)


def test_what_holds_infinities_has_no_range_and_is_no_error():
    prepared = calibrated(Masked(), "ncnn")
    found = {one.name: one.measured for one in ranges_of(prepared)}
    assert (found["fc"], found["where"], found["sub"], found["softmax"]) == (True, False, False, True)


# ---- states ----


def test_a_state_without_ranges_loads_and_voids_what_was_measured_with_other_weights():
    """Those of earlier versions have none, nor has an average of the parameters."""
    prepared = calibrated()
    own, other = (
        {name: value for name, value in model.state_dict().items() if "float_ranges" not in name}
        for model in (prepared, trained(calibrated()))
    )
    assert len(own) < len(prepared.state_dict())
    prepared.load_state_dict(own, strict=True)
    assert ranges_of(prepared)[0].is_of(sum_of_weights(prepared))
    prepared.load_state_dict(other, strict=True)
    assert not ranges_of(prepared)[0].is_of(sum_of_weights(prepared))


def test_a_part_of_a_state_voids_nothing():
    prepared = calibrated()
    prepared.load_state_dict({"0.bias": torch.zeros(8)}, strict=False)
    assert ranges_of(prepared)[0].measured


def test_a_state_brings_its_ranges():
    prepared, fresh = calibrated(), detent.prepare(classifier(), (X,), backend="onnxruntime")
    assert not ranges_of(fresh)[0].measured
    fresh.load_state_dict(prepared.state_dict(), strict=True)
    assert ranges_of(fresh)[0].is_of(sum_of_weights(fresh))


def test_a_checkpoint_of_an_earlier_version_loads(tmp_path, monkeypatch):
    from detent.training import checkpoint

    prepared = calibrated()
    whole = prepared.state_dict
    older = {name: value for name, value in whole().items() if "float_ranges" not in name}
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "state_dict", lambda: older)
        checkpoint.save(tmp_path / "last.safetensors", prepared)
    fresh = detent.prepare(classifier(), (X,), backend="onnxruntime")
    checkpoint.load(tmp_path / "last.safetensors", fresh)
    assert torch.equal(fresh.eval()(X), prepared(X))
    assert not ranges_of(fresh)[0].measured


# ---- training ----


def trained(prepared):
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.1)
    prepared(X).square().mean().backward()
    optimizer.step()
    return prepared.eval()


def test_training_makes_a_range_out_of_date():
    prepared = calibrated()
    [one] = ranges_of(prepared)
    assert one.is_of(sum_of_weights(prepared))
    trained(prepared)
    assert not one.is_of(sum_of_weights(prepared))


def test_the_sum_of_weights_sees_a_change_of_one_number():
    prepared = calibrated()
    before = sum_of_weights(prepared)
    with torch.no_grad():
        prepared.get_submodule("0").parametrizations.bias.original[3] += 1e-3
    assert sum_of_weights(prepared) != before


def test_measuring_float_ranges_alone_leaves_learned_scales():
    prepared = trained(calibrated(recipe="lsq"))
    learned = copy.deepcopy({q.name: q.state_dict() for q in quantizers_of(prepared)})
    with detent.observing(prepared, only_float=True), torch.no_grad():
        logits = prepared(X)
    [one] = ranges_of(prepared)
    assert one.is_of(sum_of_weights(prepared))
    assert torch.equal(one.scale, choose_qparams(logits.min(), logits.max(), one.scheme).scale)
    for quantizer in quantizers_of(prepared):
        assert all(torch.equal(value, learned[quantizer.name][key]) for key, value in quantizer.state_dict().items())


def test_measuring_them_without_a_batch_is_an_error():
    with pytest.raises(RangeError, match="no batch was run"), detent.observing(calibrated(), only_float=True):
        pass


def test_what_aims_at_the_same_outputs_keeps_ranges():
    prepared = calibrated()
    with keeping_ranges(prepared), torch.no_grad():
        prepared.get_submodule("2").parametrizations.weight.original.mul_(1.001)
    assert ranges_of(prepared)[0].is_of(sum_of_weights(prepared))


def test_algorithms_behind_calibration_keep_ranges():
    prepared = calibrated(recipe="gptq")
    assert ranges_of(prepared)[0].is_of(sum_of_weights(prepared))


# ---- which tensors ----


def test_fused_and_moved_tensors_need_none():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval()
    prepared = detent.prepare(net, (torch.randn(2, 3, 2, 2),), backend="academic")
    assert [one.name for one in ranges_of(prepared)] == ["_2", "_4"]  # neither the convolution, its norm nor a Flatten


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "tensorrt", "ncnn", "academic"])
def test_the_float_output_of_a_classifier_has_a_range(backend):
    prepared = calibrated(backend=backend)
    assert isinstance(prepared.plan["_2"], FloatTensor)
    assert [one.name for one in ranges_of(prepared) if one.measured] == ["_2"]
