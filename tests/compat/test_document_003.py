"""MQBench's page "Benchmark", item by item. A docstring begins with the item."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from detent import twin
from detent.compat.mqbench import (
    BackendType,
    convert_deploy,
    disable_all,
    enable_calibration,
    enable_quantization,
    get_foldbn_config,
    get_qconfig,
    model_entry,
    prepare_by_platform,
    quantize_fx,
    register_hardware,
    register_method,
    solver,
)
from detent.compat.mqbench.hardware import GRAPHS, hardware_named
from detent.compat.mqbench.zoo_config import sections_of
from detent.errors import DataError, NotCalibratedError, NotQuantizedWarning, RangeError, RecipeError, UnknownNameError
from detent.graph import FoldedBatchNorm, quantizers_of
from detent.numerics import QParams
from detent.quantizers import QUANTIZERS
from detent.recipes import Recipe
from tests.compat.mqbench_code import MyLsq, MyLsqObserver
from tests.models import resnet18

HARDWARE = ("academic", "tensorrt", "snpe", "acl", "tvm", "fbgemm")
QPARAMS = {"w_method": "lsq", "a_method": "lsq", "bit": 4}
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def _my_lsq() -> None:
    register_method("my_lsq", MyLsq, MyLsqObserver)


@pytest.fixture
def process_group(tmp_path):
    """One process that talks to itself, which is all that DistributedDataParallel needs."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip


def residual() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(width=0.125, classes=4, depths=(1, 1, 1, 1))


def prepared(net: nn.Module, backend: str = "academic", bnfold: int = 4, **qparams: Any):
    hardware = hardware_named(backend)
    qconfig = get_qconfig(**{**QPARAMS, **qparams}, **hardware.params._asdict())
    return quantize_fx.prepare_qat_fx(net, {"": qconfig}, get_foldbn_config(bnfold), backend=GRAPHS[hardware.graph])


def calibrate(model: nn.Module, images: torch.Tensor = IMAGES) -> None:
    enable_calibration(model)
    model(images)
    enable_quantization(model)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor = IMAGES) -> None:
    optimizer.zero_grad()
    model(images).square().mean().backward()
    optimizer.step()


def changed(model: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    """The names of parameters that are others than `before`."""
    return {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


# ---- 1-6: the official API ----


def test_003_01_backend_params():
    """backend_params of SNPE: asymmetric, per tensor, float scales."""
    backend_params = dict(ada_sign=False, symmetry=False, per_channel=False, pot_scale=False)  # noqa: C408
    assert hardware_named("snpe").params._asdict() == backend_params
    found = get_qconfig(**QPARAMS, **backend_params)
    assert (found["weight"].symmetric, found["weight"].granularity, found["weight"].scale) == (
        False,
        "per_tensor",
        "float",
    )


def test_003_02_get_qconfig():
    """get_qconfig(**qparams, **backend_params): methods, bits and schemes of weights and activations."""
    found = get_qconfig("dorefa", "pact", 3, symmetry=True, per_channel=True, pot_scale=False)
    assert (found["weight"].quantizer, found["weight"].bits, found["weight"].granularity) == (
        "dorefa",
        3,
        "per_channel",
    )
    assert (found["activation"].quantizer, found["activation"].bits) == ("pact", 3)
    assert found["activation"].granularity == "per_tensor"
    with pytest.raises(UnknownNameError, match=r"w_method 'lsk'(.|\n)*lsq, lsq_plus, dorefa"):
        get_qconfig("lsk", "lsq", 4)


def test_003_03_get_foldbn_config():
    """get_foldbn_config(-1..4)."""
    assert [get_foldbn_config(number).strategy for number in range(-1, 5)] == [-1, 0, 1, 2, 3, 4]
    with pytest.raises(RecipeError, match="-1, 0, 1, 2, 3, 4"):
        get_foldbn_config(7)


def test_003_04_prepare_qat_fx():
    """prepare_qat_fx(model, {"": model_qconfig}, foldbn_config): torch's graph, the ends at 8 bits."""
    model_qconfig = get_qconfig(**QPARAMS, symmetry=False)
    model = quantize_fx.prepare_qat_fx(small(), {"": model_qconfig}, get_foldbn_config(4))
    plan = model.prepared.plan
    widths = {entry.tensor: str(entry.scheme) for entry in plan.quantized}
    assert widths["3.weight"] == "int4 affine per-tensor"
    assert widths["0.weight"] == widths["8.weight"] == "int8 affine per-tensor", "first and last layers have 8 bits"
    assert model.prepared.backend.name == "mqbench_graph_3"
    assert model.prepared.recipe.batch_norm.strategy == 4


def test_003_05_can_be_trained_as_a_normal_module():
    """After prepare_qat_fx the model can be trained as a normal nn.Module."""
    model = prepared(small()).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = values(model)
    with pytest.warns(NotQuantizedWarning, match="its scales are those of its first batch"):
        step(model, optimizer)
    first = model(IMAGES).square().mean().item()
    for _ in range(5):
        step(model, optimizer)  # and no second word, which would be an error here
    assert model(IMAGES).square().mean().item() < first
    assert changed(model, before) == set(before)


@pytest.mark.pairwise
@pytest.mark.parametrize("wrapped", ["no", "before calibration", "after calibration"])
@pytest.mark.parametrize("made", ["before calibration", "after calibration"])
@pytest.mark.parametrize("how", ["prepare_by_platform", "prepare_qat_fx"])
@pytest.mark.usefixtures("process_group")
def test_003_06_optimizer_made_right_after_prepare(how, made, wrapped):
    """An optimizer made right after prepare_* trains every parameter, as one made later does; DDP before or after."""
    by_platform = how == "prepare_by_platform"
    model = prepare_by_platform(residual(), BackendType.Tensorrt) if by_platform else prepared(residual())
    whole: nn.Module = model
    if wrapped == "before calibration":
        whole = DistributedDataParallel(model)
    if made == "before calibration":
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    held = dict(model.named_parameters())
    calibrate(whole)
    model.load_state_dict(model.state_dict())
    if wrapped == "after calibration":
        whole = DistributedDataParallel(model)
    if made == "after calibration":
        optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    before = values(model)
    for _ in range(3):
        step(whole.train(), optimizer)
    assert changed(model, before) == set(before)
    assert all(value is held[name] for name, value in model.named_parameters()), "the same objects throughout"
    assert any(name.endswith("scale") for name in before), "what quantizers learn among them"


def test_003_06_offsets_of_ranges_that_cut_nothing_off():
    """Offsets of affine hardware are trained; the gradient is 0 as long as no value reaches an end of the range."""
    model = prepare_by_platform(small(), BackendType.SNPE)
    calibrate(model)
    ends: dict[str, int] = {}

    def count(quantizer, given):
        scale, zero_point = quantizer.qparams().scale, quantizer.qparams().zero_point
        codes = (given[0] * given[1] if len(given) > 1 else given[0]).detach() / scale + zero_point
        grid = quantizer.scheme.grid
        ends[quantizer.name] = int(((codes <= grid.qmin) | (codes >= grid.qmax)).sum())

    learned = [one for one in quantizers_of(model.prepared) if hasattr(one, "offset")]
    for one in learned:
        one.register_forward_pre_hook(count)
    model.train()(0.5 * IMAGES).square().mean().backward()
    still = {name for name, value in model.named_parameters() if not value.grad.any()}
    unmoved = {one.name for one in learned if not one.offset.grad.any()}
    assert len(still) == len(unmoved) > 1
    assert all(name.endswith(".offset") for name in still)
    assert unmoved == {name for name, count in ends.items() if count == 0}


def test_003_06_training_in_float_says_so():
    """Training while the model is calibrated, or with quantization off, says so once."""
    model = prepared(small()).train()
    enable_calibration(model)
    with pytest.warns(NotQuantizedWarning, match="trained in float: it is being calibrated"):
        model(IMAGES).sum().backward()
    model(IMAGES).sum().backward()  # and no second word, which would be an error here
    disable_all(model)
    with pytest.warns(NotQuantizedWarning, match="trained in float: disable_all"):
        model(IMAGES).sum().backward()
    model(IMAGES).sum().backward()
    enable_quantization(model)
    model(IMAGES).sum().backward()


def test_003_06_sizes_that_are_not_found_out():
    """A model whose input sizes are not found has no parameters to hand out before its first batch, and says so."""

    class TwoInputs(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(9, 2)

        def forward(self, image, other):
            return self.fc(torch.cat([self.conv(image).mean((2, 3)), other], 1))

    model = prepare_by_platform(TwoInputs(), BackendType.Tensorrt)
    with pytest.raises(NotCalibratedError, match=r"example_inputs=\(batch,\)"):
        torch.optim.SGD(model.parameters(), lr=0.1)
    model = prepare_by_platform(TwoInputs(), BackendType.Tensorrt, example_inputs=(IMAGES, torch.randn(2, 5)))
    assert len(list(model.parameters())) > 4


# ---- 7: networks ----


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("mobilenet_v2", 3_504_872),
        ("efficientnetlite_b0", 4_652_008),
        ("regnetx_600m", 6_196_040),
    ],
)
def test_003_07_model_entry(name, parameters, tmp_path):
    """model_entry(config.model, pretrained=True): the five networks of the benchmark; weights are a file."""
    config = {"type": name, "kwargs": {"bn": {"use_sync_bn": False, "kwargs": {}}}}
    assert sum(one.numel() for one in model_entry(config, pretrained=False).parameters()) == parameters
    with pytest.raises(DataError, match="the benchmark's files are not published, and nothing is downloaded"):
        model_entry(config, pretrained=True)
    tiny = {"type": name, "kwargs": {"num_classes": 3, "width": 0.125}}
    weights = model_entry(tiny, pretrained=False).state_dict()
    torch.save(weights, tmp_path / "w.pth")
    loaded = model_entry(tiny, pretrained=tmp_path / "w.pth").state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in loaded.items())


# ---- 8-13: folding batch norms ----


@pytest.mark.parametrize("strategy", [-1, 0, 1, 2, 3, 4])
def test_003_08_to_13_bnfold(strategy):
    """bnfold -1 to 4: what is quantized, whose statistics move, what is trained."""
    model = prepared(small(), bnfold=strategy).train()
    calibrate(model)
    model.train()
    folded = [one for one in model.modules() if isinstance(one, FoldedBatchNorm)]
    norms = [one for one in model.modules() if isinstance(one, nn.BatchNorm2d)]
    statistics = [one.running_mean.clone() for one in norms]
    model(IMAGES).square().mean().backward()
    moved = [not torch.equal(one.running_mean, was) for one, was in zip(norms, statistics, strict=True)]
    weights = {entry.tensor for entry in model.prepared.plan.quantized if entry.role == "weight"}
    assert {"0.weight", "3.weight", "8.weight"} == weights
    assert len(folded) == (2 if strategy >= 1 else 0)
    if strategy == 0:
        assert not norms, "merged"
    else:
        assert moved == [strategy != 1] * 2, "frozen statistics in strategy 1 alone"
        assert all(one.weight.grad.abs().max() > 0 for one in norms), "gamma is trained"


# ---- 14-16: algorithms ----


@pytest.mark.parametrize(
    ("weights", "activations"),
    [("lsq", "lsq"), ("dorefa", "dorefa"), ("dorefa", "pact"), ("dsq", "dsq"), ("qil", "qil"), ("lsq", "ema"),
     ("quantile", "quantile")],
)  # fmt: skip
def test_003_14_algorithms(weights, activations):
    """lsq, dorefa, dorefa + pact, dsq, qil, ema, quantile: each trains the network."""
    model = prepared(small(), w_method=weights, a_method=activations)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    calibrate(model)
    entry = model.prepared.plan["3.weight"]
    assert entry.quantizer == {"quantile": "fixed"}.get(weights, weights)
    first = model.train()(IMAGES).square().mean().item()
    for _ in range(8):
        step(model, optimizer)
    assert model(IMAGES).square().mean().item() < first


@pytest.mark.parametrize(("weights", "activations"), [("lsq", "lsq"), ("dorefa", "dorefa"), ("dorefa", "pact")])
def test_003_14_the_first_batch_calibrates_for_training(weights, activations):
    """lsq, dorefa, dorefa + pact: the first batch of training calibrates, and every layer gets gradients."""
    # DoReFa's weights need no data, and were taken for a calibrated model. Ranges measured with the running statistics
    # of a network that was never trained cut every batch off: all gradients before the last layer were 0.
    model = prepared(small(), w_method=weights, a_method=activations).train()
    plain = small().train()
    plain(IMAGES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    before = {name: value.clone() for name, value in model.named_parameters()}
    with pytest.warns(NotQuantizedWarning, match="nobody calibrated the model"):
        step(model, optimizer)
    assert {"model.0.op.weight", "model.3.op.weight", "model.8.bias"} <= changed(model, before)
    assert all(one.calibrated for one in quantizers_of(model.prepared))
    norm = model.prepared.get_submodule("0").bn
    assert norm.num_batches_tracked == plain[1].num_batches_tracked == 1, "the batch counts once"


def test_003_15_apot():
    """apot: weights and activations lie on sums of powers of two, and its clip is trained."""
    model = prepared(small(), w_method="apot", a_method="apot")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    calibrate(model)
    assert str(model.prepared.plan["3.weight"].scheme) == "apot4 symmetric per-tensor"
    quantizer = next(one for one in model.modules() if getattr(one, "name", "") == "3.weight")
    layer = model.prepared.get_submodule("3")
    weight = layer.op.weight if isinstance(layer, FoldedBatchNorm) else layer.parametrizations.weight.original
    levels = (quantizer(weight.detach()) / quantizer.clip.detach()).unique()
    magnitudes = torch.tensor(quantizer.scheme.grid.magnitudes)
    assert len(levels) > 3
    assert all((magnitudes - level.abs()).abs().min() < 1e-6 for level in levels)
    before = quantizer.clip.item()
    step(model.train(), optimizer)
    assert quantizer.clip.item() != before


def test_003_16_gradient_of_lsq():
    """LSQ's gradient of the scale: codes less positions inside, the ends outside, over sqrt(N Qp), or bounded."""
    scheme = prepared(small()).prepared.plan["3.weight"].scheme
    x = torch.tensor([0.3, 0.8, -9.0, 9.0])
    terms = (1 - 0.6) + (2 - 1.6) - 8 + 7
    for choice, expected in (("lsq", terms / (4 * 7) ** 0.5), ("bounded", terms / 7**2)):
        quantizer = QUANTIZERS["lsq"](scheme, (4,), role="weight", gradient_scale=choice)
        quantizer.initialize(QParams.symmetric(torch.tensor(0.5)))
        quantizer(x).sum().backward()
        assert quantizer.scale.grad.item() == pytest.approx(expected)


# ---- 17-19: hardware ----


def test_003_17_academic():
    """academic: first and last layer 8 bits; ada_sign: what follows a ReLU is unsigned."""
    schemes = {entry.tensor: str(entry.scheme) for entry in prepared(residual()).prepared.plan.quantized}
    assert schemes["conv1.weight"] == schemes["fc.weight"] == "int8 symmetric per-tensor"
    activations = [e for e in prepared(residual()).prepared.plan.quantized if e.role == "activation"]
    assert [entry.tensor for entry in activations if entry.scheme.grid.signed] == ["x"]
    assert len(activations) == 10


@pytest.mark.parametrize(
    ("backend", "symmetric", "granularity", "scale"),
    [
        ("academic", True, "per_tensor", "float"),
        ("tensorrt", True, "per_channel", "float"),
        ("snpe", False, "per_tensor", "float"),
        ("acl", False, "per_channel", "float"),
        ("tvm", True, "per_tensor", "power_of_two"),
        ("fbgemm", False, "per_channel", "float"),
        ({"symmetry": True, "per_channel": False, "pot_scale": True}, True, "per_tensor", "power_of_two"),
    ],
    ids=str,
)
def test_003_18_hardware(backend, symmetric, granularity, scale):
    """symmetry, per_channel and pot_scale of each hardware."""
    recipe = Recipe.from_dict(solver.recipe_of({"qparams": QPARAMS, "backend": backend}))
    assert (recipe.weight.symmetric, recipe.weight.granularity, recipe.weight.scale) == (symmetric, granularity, scale)
    assert (recipe.activation.symmetric, recipe.activation.granularity) == (symmetric, "per_tensor")
    assert (recipe.activation.signed == "auto") == (backend == "academic")


@pytest.mark.parametrize(
    ("backend", "graph", "total", "added"),
    [
        ("academic", 1, 23, None),
        ("acl", 1, 23, None),
        ("tensorrt", 2, 29, {"downsample": True, "branch": False}),
        ("tvm", 3, 33, {"downsample": True, "branch": True}),
        ("snpe", 3, 33, {"downsample": True, "branch": True}),
        ("fbgemm", 3, 33, {"downsample": True, "branch": True}),
    ],
)
def test_003_19_graphs_of_hardware(backend, graph, total, added):
    """The hardware settings' graphs: where a residual network has quantization nodes, for each."""
    assert hardware_named(backend).graph == graph
    plan = prepared(residual(), backend).prepared.plan
    assert len(plan.quantized) == total
    activations = {entry.tensor for entry in plan.quantized if entry.role == "activation"}
    if added is None:
        assert "layer2_0_conv2" not in activations
        assert "layer2_0_downsample_0" not in activations
        return
    assert ("layer2_0_downsample_0" in activations) == added["downsample"]
    assert ("layer2_0_conv2" in activations) == added["branch"], "the other addend"
    assert "layer2_0_relu_1" in activations, "what the addition gives"
    assert plan["avgpool"].shares == "layer4_0_relu_1"
    assert str(plan["flatten"].scheme).startswith(("int8", "uint8")), "what the last layer takes in"
    assert "fc" not in activations, "network outputs stay float"


# ---- 20-25: the solver ----


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A dozen pictures, listed as the benchmark lists ImageNet."""
    folder = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        (folder / split).mkdir()
        for index in range(count):
            Image.fromarray(draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / split / f"{index}.png")
        lines = [f"{index}.png {index % 3}" for index in range(count)]
        (folder / f"{split}.txt").write_text("\n".join(lines))
    return folder


ZOO = Path(__file__).parents[2] / "examples" / "qbench_zoo"
EXPERIMENT = ZOO / "lsq_experiments" / "resnet18_4bit_academic"


def small_config(pictures: Path, **changes: Any) -> dict[str, Any]:
    """The zoo's config, with pictures, sizes and steps for a test."""
    config = yaml.safe_load((EXPERIMENT / "config.yaml").read_text())
    config["model"]["kwargs"] |= {"num_classes": 3, "width": 0.125}
    config["lr_scheduler"]["kwargs"] |= {"max_iter": 6, "warmup_steps": 2}
    config["saver"]["val_freq"] = 3
    config["data"] |= {"batch_size": 4, "num_workers": 0, "input_size": 32, "test_resize": 36}
    for split, name in (("train", "train"), ("test", "val")):
        config["data"][split] |= {"root_dir": str(pictures / name), "meta_file": str(pictures / f"{name}.txt")}
    return {**config, **changes}


def test_003_20_run_script():
    """cd qbench_zoo/lsq_experiments/resnet18_4bit_academic; sh run.sh: the core running command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = {"cwd": EXPERIMENT, "env": {**os.environ, "PATH": path}, "capture_output": True, "text": True}
    ran = subprocess.run(["sh", "run.sh"], **options, check=False, timeout=300)
    assert ran.returncode == 2
    assert "the benchmark's files are not published, and nothing is downloaded" in ran.stderr
    config = yaml.safe_load((EXPERIMENT / "config.yaml").read_text())
    assert config["qparams"] == QPARAMS
    assert (config["backend"], config["bnfold"]) == ("academic", 4)


def test_003_21_the_zoos_config(pictures, tmp_path, monkeypatch, capsys):
    """The solver with the zoo's config.yaml, all its sections: trains, validates, deploys."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(small_config(pictures, backend="tensorrt")))
    monkeypatch.chdir(tmp_path)
    assert solver.main(["--config", "config.yaml"]) == 2
    assert "nothing is downloaded" in capsys.readouterr().err
    assert solver.main(["--config", "config.yaml", "--pretrained", "none"]) == 0
    assert "quantized.top1" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "mqbench_run" / "artifact" / "manifest.json").read_text())
    assert (manifest["backend"], manifest["recipe"]["weight"]["bits"]) == ("mqbench_graph_2", 4)


def test_003_21_sections_of_the_zoos_config(pictures):
    """The zoo's sections: iterations become epochs, learning rates grow from base_lr to warmup_lr, and so on."""
    changes = {"ema": {"enable": True, "kwargs": {"decay": 0.99}}, "freeze_step": 3, "seed": 5}
    found = sections_of(small_config(pictures, **changes), pretrained="w.pth", folder=None, processes=2)
    assert found["model"] == {"name": "resnet18", "options": {"classes": 3, "width": 0.125}, "pretrained": "w.pth"}
    assert found["data"]["batch_size"] == 8, "the benchmark counts those of one process"
    assert found["train"] == {
        "loop": "lsq", "epochs": 3, "val_interval": 2, "ema": 0.99, "freeze_bn_begin": 2, "seed": 5,
    }  # fmt: skip
    assert found["optimizer"] == {"name": "sgd", "nesterov": True, "momentum": 0.9, "weight_decay": 0.0001, "lr": 0.004}
    assert found["schedule"] == {"name": "cosine", "warmup_steps": 2, "start": pytest.approx(0.025), "end": 0.0}
    assert found["loss"] == {"label_smoothing": 0.1}


def test_003_21_gradients_are_averaged_either_way(pictures):
    """dist.sync false, as in most of the zoo: the benchmark averages during the backward pass, not after it."""
    either = [
        sections_of(small_config(pictures, dist={"sync": sync}), pretrained="none", folder=None) for sync in (0, 1)
    ]
    assert either[0] == either[1]


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("lr_scheduler", {"type": "Step", "kwargs": {}}, "allowed is Cosine"),
        ("optimizer", {"type": "LAMB", "kwargs": {}}, "allowed are SGD, Adam, AdamW"),
        ("model", {"type": "vgg16"}, "resnet18, resnet50, mobilenet_v2, efficientnetlite_b0, regnetx_600m"),
        ("spring", {}, "allowed are model, dist"),
    ],
)
def test_003_21_what_the_zoos_config_cannot_say(section, value, said, pictures):
    """A section of the zoo's config that means nothing here is refused with what is allowed."""
    with pytest.raises(RecipeError) as error:
        sections_of(small_config(pictures, **{section: value}), pretrained="none", folder=None)
    assert said in error.value.found


CONFIG = """
qparams:
    w_method: lsq
    a_method: lsq
    bit: 4

backend: academic
bnfold: 4
"""
REST = """
model: {name: resnet20, options: {depth: 1, width: 0.25}}
data: {name: made_up, batch_size: 8, train_batches: 2, val_batches: 1, calibration_batches: 1}
train: {loop: lsq, epochs: 1}
deploy: {verify_batches: 1}
"""


def test_003_22_the_documents_yaml(tmp_path):
    """The solver with the document's yaml and the sections of `detent train`."""
    (tmp_path / "config.yaml").write_text(CONFIG + REST)
    assert solver.main(["--config", str(tmp_path / "config.yaml"), "--output", str(tmp_path / "run")]) == 0
    manifest = json.loads((tmp_path / "run" / "artifact" / "manifest.json").read_text())
    assert manifest["recipe"]["weight"]["quantizer"] == "lsq"
    assert manifest["recipe"]["weight"]["bits"] == 4
    assert manifest["recipe"]["batch_norm"] == {"strategy": 4}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("backend: academic", "backend: tpu", "allowed are academic, tensorrt"),
        ("backend: academic", "backend: {symetry: true}", "allowed are ada_sign, symmetry"),
        ("bit: 4", "bits: 4", "allowed are w_method, a_method, bit"),
        ("w_method: lsq", "w_method: lsk", "not one of lsq"),
    ],
)
def test_003_23_yaml_mistakes(old, new, said, tmp_path, capsys):
    """w_method, a_method, bit, backend, bnfold in the yaml: what is wrong is said in one line."""
    (tmp_path / "config.yaml").write_text((CONFIG + REST).replace(old, new))
    assert solver.main(["--config", str(tmp_path / "config.yaml"), "--output", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("backend", HARDWARE)
def test_003_24_solver_for_each_hardware(backend, pictures):
    """The solver's tensorrt, snpe, acl, tvm, fbgemm: recipe and graph of each."""
    config = small_config(pictures, backend=backend)
    graph = hardware_named(backend).graph
    expected = "academic" if graph == 1 else f"detent.compat.mqbench.hardware:GRAPH_{graph}"
    assert solver.backend_of(config) == expected
    assert solver.recipe_of(config)["name"] == f"lsq-{backend}-4bit"


def test_003_25_tflitemicro(pictures):
    """Adding a new hardware TFLite Micro: another branch of the if-else, or register_hardware for the solver."""
    backend, qparams = "tflitemicro", {"w_method": "lsq", "a_method": "lsq", "bit": 8}
    foldbn_config = get_foldbn_config(4)
    if backend == "snpe":
        backend_params = dict(ada_sign=False, symmetry=False, per_channel=False, pot_scale=False)  # noqa: C408
    elif backend == "tflitemicro":
        backend_params = dict(ada_sign=False, symmetry=True, per_channel=False, pot_scale=True)  # noqa: C408

    model_qconfig = get_qconfig(**qparams, **backend_params)
    model = quantize_fx.prepare_qat_fx(small(), {"": model_qconfig}, foldbn_config)

    assert {str(entry.scheme) for entry in model.prepared.plan.quantized} == {"int8 symmetric per-tensor power-of-two"}
    register_hardware("tflitemicro", **backend_params)
    said = solver.recipe_of(small_config(pictures, backend="tflitemicro"))
    assert (said["name"], said["weight"]["scale"]) == ("lsq-tflitemicro-4bit", "power_of_two")


# ---- 26-30: an algorithm of one's own ----


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"symmetry": True}, (torch.per_tensor_symmetric, -1, False)),
        ({"symmetry": True, "per_channel": True}, (torch.per_channel_symmetric, 0, False)),
        ({"symmetry": False}, (torch.per_tensor_affine, -1, False)),
        ({"symmetry": False, "per_channel": True}, (torch.per_channel_affine, 0, False)),
        ({"symmetry": True, "pot_scale": True}, (torch.per_tensor_symmetric, -1, True)),
    ],
    ids=str,
)
def test_003_26_quantize_base(scheme, expected):
    """QuantizeBase: quant_min, quant_max, qscheme, ch_axis, pot_scale, and an observer with the same."""
    qconfig = get_qconfig("my_lsq", "my_lsq", 4, **scheme)
    model = quantize_fx.prepare_qat_fx(small(), {"": qconfig}, get_foldbn_config(-1), backend="academic")
    inner = model.prepared.get_submodule("3.parametrizations.weight.0.inner")
    assert (inner.qscheme, inner.ch_axis, inner.pot_scale) == expected
    assert (inner.quant_min, inner.quant_max, inner.bitwidth) == (-8, 7, 4)
    assert (inner.activation_post_process.quant_min, inner.activation_post_process.quant_max) == (-8, 7)
    assert inner.scale.numel() == (4 if expected[1] == 0 else 1)


@pytest.mark.parametrize("ada_sign", [True, False], ids=["ada_sign", "signed"])
def test_003_27_ada_sign(ada_sign, tmp_path):
    """ada_sign of QuantizeBase: a tensor without negative numbers gets the unsigned range, in plan and file too."""
    qconfig = get_qconfig("my_lsq", "my_lsq", 4, ada_sign=ada_sign)
    model = quantize_fx.prepare_qat_fx(small(), {"": qconfig}, get_foldbn_config(-1), backend="academic").eval()
    images = IMAGES.abs()
    calibrate(model, images)
    quantizer = model.prepared.activation_quantizers["input_1"]
    assert (quantizer.inner.quant_min, quantizer.inner.quant_max) == ((0, 255) if ada_sign else (-128, 127))
    assert quantizer.qparams().scale.item() == pytest.approx(images.max().item() / (255 if ada_sign else 127))
    assert str(model.prepared.plan["input_1"].scheme).startswith("uint8" if ada_sign else "int8")
    artifact = convert_deploy(model, "academic", output_path=tmp_path, model_name="net")
    assert next(t for t in artifact.manifest["tensors"] if t["tensor"] == "input_1")["scheme"]["grid"]["signed"] == (
        not ada_sign
    )


@pytest.mark.parametrize("symmetry", [True, False], ids=["symmetric", "affine"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("pot_scale", [False, True], ids=["float", "power-of-two"])
def test_003_28_own_lsq(per_channel, pot_scale, symmetry, tmp_path):
    """An LSQ of one's own, per tensor, per channel, affine, with pot_quantization in forward: trained and deployed."""
    qconfig = get_qconfig("my_lsq", "my_lsq", 4, symmetry=symmetry, per_channel=per_channel, pot_scale=pot_scale)
    model = quantize_fx.prepare_qat_fx(small(), {"": qconfig}, get_foldbn_config(-1), backend="academic")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    calibrate(model)
    for _ in range(3):
        step(model.train(), optimizer)
    quantizer = model.prepared.get_submodule("3.parametrizations.weight.0")
    assert quantizer.inner.scale.grad.abs().max() > 0
    assert quantizer.inner.scale.numel() == (4 if per_channel else 1)
    scale = quantizer.qparams().scale
    if pot_scale:
        assert torch.equal(torch.log2(scale), torch.log2(scale).round()), (
            "a power of two, though what is trained is none"
        )
    model.eval()
    convert_deploy(model, "academic", output_path=tmp_path, model_name="net")
    (given,) = twin.run(tmp_path / "net", {"input_1": IMAGES.numpy()}, arithmetic="onnx_spec").values()
    # The same codes; sums of float32 in another order differ in their last bits.
    np.testing.assert_allclose(given, model(IMAGES).detach().numpy(), atol=1e-6)


def test_003_28_a_scale_that_a_step_made_negative_is_refused():
    """Own LSQ whose scale a step made negative: refused with the remedy, since its magnitude would be deployed."""
    model = prepared(small(), w_method="my_lsq", a_method="my_lsq")
    calibrate(model)
    name = "model.activation_quantizers.input_1.inner.scale"
    dict(model.named_parameters())[name].data.neg_()
    with pytest.raises(RangeError, match=r"MyLsq for 'input_1' with the scale -0(.|\n)*self.scale.data.abs_"):
        model(IMAGES)


def test_003_29_pot_quantization_is_deployed(tmp_path):
    """pot_quantization: what is deployed is the power of two that forward uses."""
    qconfig = get_qconfig("my_lsq", "my_lsq", 4, pot_scale=True)
    model = quantize_fx.prepare_qat_fx(small(), {"": qconfig}, get_foldbn_config(-1), backend="academic").eval()
    calibrate(model)
    quantizer = model.prepared.get_submodule("3.parametrizations.weight.0")
    with torch.no_grad():
        quantizer.inner.scale.fill_(0.048)
    assert quantizer.qparams().scale.item() == 0.0625
    artifact = convert_deploy(model, "academic", output_path=tmp_path, model_name="net")
    assert "PASS" in str(artifact.verify([IMAGES]))


def test_003_30_register_in_qconfig():
    """Import your quantizer and add it to get_qconfig: register_method makes it a w_method and an a_method."""
    assert get_qconfig("my_lsq", "lsq", 4)["weight"].quantizer == "mqbench.MyLsq.MyLsqObserver"

    class Another(MyLsq):
        pass

    Another.__name__ = "MyLsq"
    register_method("another_lsq", Another, MyLsqObserver)
    assert get_qconfig("another_lsq", "lsq", 4)["weight"].quantizer == "mqbench.MyLsq.MyLsqObserver_2", (
        "not the first one"
    )


def test_003_31_accuracy_tables():
    """The benchmark's accuracy tables and leaderboard: ImageNet is not to be had here; the guide says so."""
    guide = (Path(__file__).parents[2] / "docs" / "coming_from_mqbench.md").read_text()
    assert "accuracy tables and leaderboard" in guide
    assert "ImageNet" in guide
