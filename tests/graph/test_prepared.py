"""PreparedModel: a type to name, and an ordinary module, also where its code could not be traced."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import detent
from detent.algorithms.common.layers import regions_of
from detent.errors import CaptureError, DataError, DeployError, RunError
from detent.graph import RESERVED, PreparedModel, Region, without_quantizers


class Traced(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)
        self.input_count = 7  # a plain attribute with the name of one of PreparedModel's

    def forward(self, x):
        return self.fc(self.conv(x).relu().mean((2, 3)))


class Untraced(Traced):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.training_was: bool | None = None

    def forward(self, x):
        self.training_was = self.training
        self.seen = self.seen + 1
        return super().forward(x) if x.sum() > 0 else self.fc(self.conv(-x).mean((2, 3)))

    def described(self) -> str:
        return f"seen {int(self.seen)}"


def prepared_from(net: nn.Module) -> tuple[PreparedModel, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 6, 6)
    prepared = detent.prepare(net.eval(), (x,), backend="onnxruntime")
    detent.calibrate(prepared, [(x, torch.zeros(2))])  # labels are not for the model
    return prepared, x


@pytest.mark.parametrize("net", [Traced, Untraced])
def test_prepare_gives_a_prepared_model(net):
    prepared, x = prepared_from(net())
    assert isinstance(prepared, detent.PreparedModel)
    assert (prepared.backend.name, prepared.recipe.name, prepared.input_count) == ("onnxruntime", "ptq", 1)
    assert torch.equal(prepared.example.args[0], x)
    assert prepared.plan["conv.weight"].role == "weight"
    assert prepared.algorithm_notes == []


@pytest.mark.parametrize("net", [Traced, Untraced])
def test_float_checkpoints_go_in_and_out(net):
    other = net().eval()
    prepared, _ = prepared_from(net())
    prepared.load_state_dict(other.state_dict())
    found = detent.float_state_dict(prepared)
    assert list(found) == list(other.state_dict())
    assert torch.equal(found["fc.weight"], other.fc.weight)


@pytest.mark.parametrize("net", [Traced, Untraced])
def test_a_copy_is_whole_and_its_own(net):
    prepared, x = prepared_from(net())
    copied = copy.deepcopy(prepared)
    assert isinstance(copied, PreparedModel)
    assert list(copied.state_dict()) == list(prepared.state_dict())
    with torch.no_grad():
        before = prepared(x)
        for parameter in copied.parameters():
            parameter.add_(1.0)
        assert torch.equal(prepared(x), before)
        assert not torch.equal(copied(x), before)


def test_code_that_was_not_traced_runs_over_the_same_parts():
    prepared, x = prepared_from(Untraced())
    assert isinstance(prepared.untraced, Untraced)
    assert prepared.graphs == {}
    assert sorted(regions_of(prepared)) == ["conv", "fc"]
    seen = int(prepared.seen)
    prepared.train()(x)
    assert (int(prepared.seen), prepared.training_was) == (seen + 1, True)
    prepared.eval()(x)
    assert (prepared.described(), prepared.training_was) == (f"seen {seen + 2}", False)
    prepared.double()
    assert {tensor.dtype for tensor in prepared.untraced.parameters()} == {torch.float64}
    assert prepared.untraced.seen.dtype == torch.float64
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = prepared.nothing


def test_code_that_was_not_traced_is_calibrated_by_name_and_not_deployed(tmp_path):
    prepared, x = prepared_from(Untraced())
    detent.calibrate(prepared, [{"x": x}])
    with pytest.raises(DeployError, match="could not be traced"):
        detent.deploy(prepared, tmp_path / "out")


@pytest.mark.parametrize("net", [Traced, Untraced])
def test_without_quantizers_it_is_no_prepared_model(net):
    prepared, x = prepared_from(net())
    plain = without_quantizers(prepared)
    assert type(plain) is (Region if net is Traced else Untraced)
    assert not hasattr(plain, "plan")
    assert not any("quantizer" in name or "parametrizations" in name for name in plain.state_dict())
    with torch.no_grad():
        assert not torch.equal(plain(x), prepared(x))


def test_what_is_no_prepared_model_is_refused(tmp_path):
    """Also one that has a plan of its own."""
    net = Traced()
    net.plan = net.recipe = "the user's"
    with pytest.raises(DataError, match="not prepared"):
        detent.calibrate(net, [torch.rand(1, 3, 6, 6)])
    with pytest.raises(DeployError, match="not prepared"):
        detent.deploy(net, tmp_path / "out")


def test_no_part_may_have_a_name_of_a_prepared_models():
    prepared, _ = prepared_from(Traced())
    own = {name for name in vars(prepared) if not name.startswith("_")} - {*vars(nn.Module()), *vars(Traced())}
    assert own <= RESERVED
    assert {"plan", "float_names", "float_originals", "carried", "graphs", "float_ranges"} <= RESERVED
    net = nn.Sequential(nn.Linear(2, 2))
    net.graphs = nn.Linear(2, 2)
    with pytest.raises(CaptureError, match="a part named 'graphs'"):
        detent.prepare(net, (torch.rand(1, 2),), backend="onnxruntime")


@pytest.mark.parametrize("save", [pickle.dumps, lambda model: torch.save(model, io.BytesIO())], ids=["pickle", "save"])
@pytest.mark.parametrize("net", [Traced, Untraced])
def test_a_pickle_is_refused_with_what_to_use(net, save, refuses):
    prepared, _ = prepared_from(net())
    with refuses(RunError, asked="pickle", to_do="detent.training.checkpoint.save"):
        save(prepared)


@pytest.mark.parametrize("net", [Traced, Untraced])
def test_a_deep_copy_is_another_model_of_the_same_numbers(net):
    prepared, x = prepared_from(net())
    copied = copy.deepcopy(prepared)
    before = prepared(x)
    assert torch.equal(copied(x), before)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert not torch.equal(copied(x), before)
    assert torch.equal(prepared(x), before)


class OfADict(nn.Module):
    """Takes a dict, and a number by keyword."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, batch, *, scale=1.0):
        return (self.left(batch["left"]) + self.right(batch["right"])) * scale


@pytest.mark.parametrize("form", ["alone", "in a tuple", "by name"])
def test_a_batch_may_be_the_dict_that_forward_takes(form, tmp_path):
    given = {"left": torch.randn(5, 3), "right": torch.randn(5, 2)}
    batch = {"alone": {**given, "labels": torch.zeros(5)}, "in a tuple": (given,), "by name": {"batch": given}}[form]
    model = OfADict().eval()
    prepared = detent.prepare(model, (given,), example_kwargs={"scale": 0.5}, backend="onnxruntime")
    detent.calibrate(prepared, [batch])
    torch.testing.assert_close(prepared(given, scale=0.5), model(given, scale=0.5), rtol=0, atol=0.05)  # 8 bits
    assert detent.deploy(prepared, tmp_path / "net").verify([batch]).holds
