"""The code of the Vitis AI document, section by section: only imports differ, and what it leaves out is filled in."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from detent.artifact import Artifact
from detent.compat.vitis import DeQuantStub, QatProcessor, QuantStub
from detent.compat.vitis.auto_module import wrap
from detent.deploy.formats.vitis_quant_info import read_quant_info
from tests.models import resnet18

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "examples" / "vitis" / "configs").glob("*.json"))
MAIN = ROOT / "examples" / "vitis" / "main.py"
METHODS = {
    "int_float_scale_lsq": ("lsq", "lsq"),
    "int_float_scale_min_max": ("vitis_statistic", "vitis_statistic"),
    "int_float_scale_percentile": ("vitis_statistic", "vitis_statistic"),
    "int_pof2_percentile": ("vitis_statistic", "vitis_statistic"),
    "int_pof2_std": ("vitis_statistic", "vitis_statistic"),
    "int_pof2_tqt": ("tqt", "tqt"),
}


# ---- Usage, step 1 ----


class ModelWithQuantStub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._model = resnet18(width=0.125, classes=4, depths=(1, 1, 1, 1))
        self.quant_stub = QuantStub()
        self.dequant_stub = DeQuantStub()

    def forward(self, imgs):
        imgs = self.quant_stub(imgs)
        out = self._model(imgs)
        return self.dequant_stub(out)


# ---- Usage, step 2 ----


def train(model, batches):
    # Small steps: what is tested is that it trains, not how well.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    model.train()
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(count):
    labels = torch.tensor([0, 1, 2, 3])
    images = torch.randn(4, 3, 32, 32) * 0.3 + labels.reshape(-1, 1, 1, 1)
    return [(images, labels)] * count


# ---- Usage, step 3 ----


def test_usage(tmp_path):
    torch.manual_seed(0)
    model = ModelWithQuantStub().eval()
    data = batches(8)
    inputs = data[0][0]

    # Use default quantization config
    qat_processor = QatProcessor(model, inputs)

    # Get trainable quantized model
    quantized_model = qat_processor.trainable_model()

    # Train the quantized model
    losses = train(quantized_model, data)
    assert losses[-1] < losses[0]

    assert {entry.quantizer for entry in quantized_model.plan.quantized} == {"tqt"}
    deployable = qat_processor.to_deployable(quantized_model, tmp_path / "deployable")
    again = qat_processor.deployable_model(tmp_path / "deployable")
    quantized_model.eval()
    assert torch.equal(deployable(inputs), quantized_model(inputs))
    assert torch.equal(again(inputs), quantized_model(inputs))

    positions = read_quant_info(qat_processor.export_xmodel(tmp_path / "xmodel").path("quant_info.json").read_bytes())
    trained = {q.name: q.qparams().scale.item() for q in quantized_model.modules() if hasattr(q, "scheme")}
    assert positions.parameters["_model.fc.weight"].scale == trained["_model.fc.weight"]
    assert Artifact.load(tmp_path / "xmodel").manifest["backend"] == "vitis"
    assert qat_processor.export_onnx_model(tmp_path).name == "ModelWithQuantStub.onnx"


def test_the_float_model_is_left_alone():
    model = ModelWithQuantStub().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    train(QatProcessor(model, batches(1)[0][0]).trainable_model(), batches(1))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- Quick start: the six configurations ----


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_config_trains_and_deploys(config, tmp_path):
    torch.manual_seed(0)
    data = batches(3)
    qat_processor = QatProcessor(ModelWithQuantStub().eval(), data[0][0], config_file=config)
    quantized_model = qat_processor.trainable_model()
    entries = {entry.tensor: entry for entry in quantized_model.plan.quantized}
    kinds = (entries["_model.fc.weight"].quantizer, entries["quant_stub"].quantizer)
    assert kinds == METHODS[config.stem]
    before = {name: value.clone() for name, value in quantized_model.state_dict().items()}
    losses = train(quantized_model, data)
    assert losses[-1] < losses[0]
    moved = [name for name, value in quantized_model.state_dict().items() if not torch.equal(value, before[name])]
    assert any("activation_quantizers" in name for name in moved), "scales of activations follow training"
    deployed = qat_processor.to_deployable(quantized_model, tmp_path / "out")
    quantized_model.eval()
    # Nothing in between is on a tie of two codes, so that float and integers agree; one step of the output otherwise.
    step = quantized_model.get_submodule("activation_quantizers")["_model_fc"].qparams().scale.item()
    assert (deployed(data[0][0]) - quantized_model(data[0][0])).abs().max().item() <= 1.01 * step


def test_there_are_the_documents_configs():
    assert {path.stem for path in CONFIGS} == set(METHODS)


@pytest.mark.parametrize(
    ("model_name", "config"), [("resnet18", "int_pof2_tqt"), ("MobileNetV2", "int_float_scale_lsq")]
)
def test_quick_start_commands(model_name, config, tmp_path, monkeypatch, capsys):
    common = [
        f"--model_name={model_name}",
        f"--config_file={MAIN.parent / 'configs' / config}.json",
        f"--qat_ckpt={tmp_path / 'qat.pth'}",
        f"--output_dir={tmp_path / 'out'}",
        "--tiny",
        "--epochs=1",
        "--batch_size=4",
        "--image_size=32",
        "--classes=4",
    ]
    monkeypatch.syspath_prepend(str(MAIN.parent))
    main = runpy.run_path(str(MAIN))["main"]
    main(["--mode=train", *common])
    trained = capsys.readouterr().out
    assert trained.startswith("epoch 1: loss ")
    main(["--mode=deploy", *common])
    answer = capsys.readouterr().out
    simulated, deployed = answer.splitlines()[0].removeprefix("accuracy simulated ").split(", deployed ")
    assert simulated == deployed
    assert (tmp_path / "out" / "ModelWithQuantStub.onnx").is_file()
    assert (tmp_path / "out" / "xmodel" / "quant_info.json").is_file() == (config == "int_pof2_tqt")


# ---- Supported quantizers: the two blocks of JSON ----

LSQ = """
"overall_quantize_config": {
  "datatype": "int",
  "bit_width": 8,
  "scale_type": "float",
  "method": "lsq",
  "calib_statistic_method": "mean"
}
"""

UNLEARNABLE = """
"overall_quantize_config": {
  "datatype": "int",
  "bit_width": 8,
  "round_mode": "half_even",
  "scale_type": "float",
  "calib_statistic_method":"mean",
  "symmetry": true,
  "per_channel": false,
  "method": "maxmin",
  "signed": true,
  "narrow_range": true
}
"""


@pytest.mark.parametrize(
    ("block", "scheme", "method"),
    [
        (LSQ, "int8 symmetric per-tensor", "lsq < lsq"),
        (UNLEARNABLE, "int8 narrow symmetric per-tensor", "vitis_statistic < vitis_batches"),
    ],
    ids=["lsq", "unlearnable"],
)
def test_blocks_of_the_document(block, scheme, method, tmp_path):
    file = tmp_path / "cfg.json"
    file.write_text('{"target_device": "CPU",' + block + "}")
    plan = QatProcessor(ModelWithQuantStub().eval(), batches(1)[0][0], config_file=file).trainable_model().plan
    weight = plan["_model.conv1.weight"]
    assert str(weight.scheme) == scheme
    assert f"{weight.quantizer} < {weight.observer}" == method


def test_a_power_of_two_scale_is_enough_for_tqt(tmp_path):
    file = tmp_path / "cfg.json"
    file.write_text(json.dumps({"overall_quantize_config": {"scale_type": "poweroftwo"}}))
    plan = QatProcessor(ModelWithQuantStub().eval(), batches(1)[0][0], config_file=file).trainable_model().plan
    assert {entry.quantizer for entry in plan.quantized} == {"tqt"}


# ---- Auto module ----


def test_auto_module():
    class MyModel(nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, x, y, z):
            tmp = x + y
            ret = tmp * z
            return ret  # noqa: RET504

    model = MyModel()
    x = torch.rand((2, 2))
    y = torch.rand((2, 2))
    z = torch.rand((2, 2))
    wrapped_model = wrap(model, x, y, z)

    assert [type(part).__name__ for part in wrapped_model.children()] == ["Functional", "Functional"]
    assert [name for name, _ in wrapped_model.named_children()] == ["wrapped_add_1", "wrapped_mul_1"]
    assert torch.equal(wrapped_model(x, y, z), (x + y) * z)
    # "which can be processed by QatProcessor like normal models"
    quantized = QatProcessor(wrapped_model, (x, y, z)).trainable_model()
    activations = [entry.tensor for entry in quantized.plan.quantized]
    assert activations == ["x", "y", "z", "wrapped_add_1", "wrapped_mul_1"]
