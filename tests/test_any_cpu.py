"""Portable by default: from one file, engines compute the same integers on every CPU, whatever the weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import detent
from detent.cpus import X86
from detent.errors import UnknownNameError
from detent.graph import QuantizedTensor
from detent.ir import can_saturate
from detent.numerics import PAIR_LIMIT, Pairs
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.twin import Twin
from tests.cpus.nets import NETS, inputs_of, skewed

TARGETS = ("onnxruntime", "openvino", "torch_x86")


def prepared(net: nn.Module, batch: Tensor, backend: str, recipe: str = "ptq", **options: Any) -> Any:
    model = detent.prepare(net, (batch,), backend=backend, recipe=recipe, **options)
    detent.calibrate(model, [batch])
    return model


def skewed_net(name: str) -> tuple[nn.Module, Tensor]:
    build, shape = NETS[name]
    torch.manual_seed(len(name))
    return skewed(build().eval()), torch.rand(8, *shape)


def assert_the_same_everywhere(artifact: Any) -> None:
    """By the twins of a CPU without VNNI and of one with it, in every tensor, codes exactly and real numbers but for
    how float32 rounds them; and on the engine of this one."""
    inputs = inputs_of(artifact.graph)
    arithmetic = ARITHMETICS[artifact.manifest["arithmetic"]]
    ours, theirs = (Twin(artifact.graph, arithmetic(cpu)).tensors(inputs) for cpu in ("avx2", "vnni"))
    for name, values in ours.items():
        within = 1e-6 * np.abs(values).max() if values.dtype == np.float32 else 0
        assert np.abs(values - theirs[name].astype(np.float64)).max() <= within, name
    assert artifact.manifest["cpus"] == list(X86)
    engine = ENGINES[artifact.manifest["engine"]]
    if engine.version() is not None:
        assert artifact.verify([*inputs.values()], latency=False).holds


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("backend", TARGETS)
def test_weights_of_one_sign_do_not_saturate(backend: str, net: str, tmp_path: Path) -> None:
    assert_the_same_everywhere(detent.deploy(prepared(*skewed_net(net), backend), tmp_path / "net"))


@pytest.mark.few(1)
@pytest.mark.parametrize("backend", TARGETS)
def test_odd_numbers_of_channels_do_not_saturate(backend: str, tmp_path: Path) -> None:
    """Some kernels pad the channels of each place, others take a window as one row."""
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 5, 7, padding=3), nn.Conv2d(5, 9, 2), nn.Conv2d(9, 15, 3, groups=3), nn.Conv2d(15, 7, 1))
    rows = (nn.Flatten(), nn.Linear(7 * 9 * 9, 65), nn.Linear(65, 33))
    net = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), *rows)
    model = prepared(skewed(net.eval()), torch.rand(8, 3, 12, 12), backend)
    orders = [model.plan[f"{index}.weight"].pairs.order for index in (0, 2, 4, 6, 9, 10)]
    assert orders == ["memory"] * 6
    assert_the_same_everywhere(detent.deploy(model, tmp_path / "net"))


@pytest.mark.parametrize("backend", TARGETS)
def test_whole_8_bits_are_for_those_who_name_a_cpu(backend: str, tmp_path: Path) -> None:
    model = prepared(*skewed_net("convolutions"), backend, cpu="vnni")
    assert all(entry.pairs is None for entry in model.plan.quantized)
    artifact = detent.deploy(model, tmp_path / "net")
    assert "avx2" not in artifact.manifest["cpus"]
    assert "vnni" in artifact.manifest["cpus"]
    assert any("saturate" in note for note in artifact.manifest["notes"])
    inputs = inputs_of(artifact.graph)
    arithmetic = ARITHMETICS[artifact.manifest["arithmetic"]]
    ours, theirs = (Twin(artifact.graph, arithmetic(cpu)).run(inputs) for cpu in ("avx2", "vnni"))
    assert any(not np.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_recipe_may_name_the_cpu_and_a_wrong_name_is_refused() -> None:
    recipe = detent.recipes.Recipe(name="mine", cpu="vnni")
    net, batch = skewed_net("linears")
    assert all(e.pairs is None for e in prepared(net, batch, "onnxruntime", recipe).plan.quantized)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="avx512"):
        detent.prepare(net, (batch,), backend="onnxruntime", cpu="avx521")
    with pytest.raises(detent.errors.RecipeError, match="not one of"):
        detent.recipes.Recipe.from_dict({"name": "mine", "cpu": "avx521"})


def test_the_plan_says_which_weights_and_by_how_much() -> None:
    net, batch = skewed_net("separable")
    model = detent.prepare(net, (batch,), backend="onnxruntime")
    entries = {entry.tensor: entry for entry in model.plan.quantized if entry.role == "weight"}
    assert entries["0.weight"].pairs == Pairs(0, 1, order="memory")  # three channels
    assert entries["2.weight"].pairs is None  # depthwise
    assert entries["4.weight"].pairs == Pairs(0, 1)
    detent.calibrate(model, [batch])
    found = model.plan["4.weight"]
    assert isinstance(found, QuantizedTensor)
    assert found.widened is not None
    assert 1.5 < found.widened < 2
    assert f"pairs add up to 128 at most, steps x{found.widened:.2f}" in str(model.plan)
    other = model.plan["2.weight"]
    assert isinstance(other, QuantizedTensor)
    assert other.widened is None


@pytest.mark.few(3)
@pytest.mark.parametrize("recipe", ["lsq", "lsq_plus", "tqt", "dorefa", "pact", "dsq", "qil", "adaround", "qdrop"])
def test_training_stays_within_the_bound(recipe: str) -> None:
    """Whichever method: weights move, scales are learned, and no pair of codes leaves the limit."""
    net, batch = skewed_net("residual")
    method = detent.recipes.BUILTIN[recipe].recipe.model_copy(update={"algorithms": ()})
    model = prepared(net, batch, "onnxruntime", method)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        model.train()(batch).square().mean().backward()
        optimizer.step()
    model.eval()
    checked = 0
    for layer in (model.stem, model.one, model.two, model.down, model.head):
        (quantizer,) = layer.parametrizations.weight
        codes = quantizer.codes(layer.parametrizations.weight.original)
        assert quantizer.pairs.largest(codes) <= PAIR_LIMIT
        checked += 1
    assert checked == 5


def test_the_bound_acts_in_training() -> None:
    """With scales far smaller than calibrated, pairs would leave the limit: what is simulated is what is deployed."""
    net, batch = skewed_net("linears")
    model = prepared(net, batch, "onnxruntime", "lsq")
    (quantizer,) = model.get_submodule("0").parametrizations.weight
    weight = model.get_submodule("0").parametrizations.weight.original
    with torch.no_grad():
        quantizer.scale.mul_(0.05)
    free = torch.round(weight / quantizer.scale[:, None]).clamp(-127, 127)
    assert quantizer.pairs.largest(free.long()) > PAIR_LIMIT
    assert quantizer.pairs.largest(quantizer.codes(weight)) <= PAIR_LIMIT
    assert torch.equal(model.get_submodule("0").weight, quantizer.codes(weight) * quantizer.scale[:, None])


def test_a_file_of_another_tool_keeps_its_grids_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, batch = skewed_net("linears")
    detent.deploy(prepared(net, batch, "litert"), tmp_path / "lite", files=["onnx"])
    file = tmp_path / "lite" / "model.onnx"
    artifact = detent.quantize(file, [batch], backend="onnxruntime", folder=tmp_path / "own")
    assert "saturate on avx2, avx512" in caplog.text
    assert artifact.manifest["cpus"] == ["avx_vnni", "vnni", "amx"]
    assert any(can_saturate(artifact.graph, op) for op in artifact.graph.ops)


def test_only_engines_that_add_in_pairs_have_bounds() -> None:
    assert [name for name, backend in BACKENDS.items() if backend.saturates_on] == list(TARGETS)
