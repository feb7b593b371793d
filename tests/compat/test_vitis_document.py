"""The code of the Vitis AI document, section by section: only imports differ, and what it leaves out is filled in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from detent.artifact import Artifact
from detent.compat.vitis import QatProcessor, wrap
from detent.graph import DeQuantStub, QuantStub
from detent.targets.vitis.quant_info import read_quant_info
from tests.models import resnet18 as narrow_resnet18

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "examples" / "vitis" / "configs").glob("*.json"))
METHODS = {
    "int_float_scale_lsq": ("lsq", "lsq"),
    "int_float_scale_min_max": ("vitis_statistic", "vitis_statistic"),
    "int_float_scale_percentile": ("vitis_statistic", "vitis_statistic"),
    "int_pof2_percentile": ("vitis_statistic", "vitis_statistic"),
    "int_pof2_std": ("vitis_statistic", "vitis_statistic"),
    "int_pof2_tqt": ("tqt", "tqt"),
}


# ---- Usage, step 1 ----


def resnet18(pretrained):  # noqa: ARG001, torchvision's, with fewer layers
    return narrow_resnet18(width=0.125, classes=4, depths=(1, 1, 1, 1))


# Use QuantStub and DeQuantStub to specify quantization scope
class ModelWithQuantStub(nn.Module):
    def __init__(self, pretrained=False) -> None:
        super().__init__()
        self._model = resnet18(pretrained)
        self.quant_stub = QuantStub()
        self.dequant_stub = DeQuantStub()

    def forward(self, imgs):
        imgs = self.quant_stub(imgs)
        out = self._model(imgs)
        return self.dequant_stub(out)


# ---- Usage, step 2 ----


def train(model, train_loader, val_loader=(), criterion=nn.functional.cross_entropy, device_ids=()):  # noqa: ARG001
    # Small steps: what is tested is that it trains, not how well.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    model.train()
    for images, labels in train_loader:
        loss = criterion(model(images), labels)
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
    train_loader, val_loader, criterion, device_ids = data, data, nn.functional.cross_entropy, [0]
    losses = train(quantized_model, train_loader, val_loader, criterion, device_ids)
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


def test_operators_replaced_by_modules_by_hand():
    class Add(nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, x, y):
            return x + y

    class Mul(nn.Module):
        def __init__(self):
            super().__init__()

        def forward(self, x, y):
            return x * y

    class MyModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.add = Add()
            self.mul = Mul()  # the document has self.Mul here, and self.mul below

        def forward(self, x, y, z):
            tmp = self.add(x, y)
            ret = self.mul(tmp, z)
            return ret  # noqa: RET504

    x, y, z = (torch.rand((2, 2)) for _ in range(3))
    quantized = QatProcessor(MyModel(), (x, y, z)).trainable_model()
    # "QAT can insert quantizers for tensor x, y, tmp and z"
    assert [entry.tensor for entry in quantized.plan.quantized] == ["x", "y", "z", "add", "mul"]


def test_operators_need_not_be_modules():
    class MyModel(nn.Module):
        def forward(self, x, y, z):
            tmp = x + y
            ret = tmp * z
            return ret  # noqa: RET504

    x, y, z = (torch.rand((2, 2)) for _ in range(3))
    assert len(QatProcessor(MyModel(), (x, y, z)).trainable_model().plan.quantized) == 5
    assert torch.equal(wrap(MyModel(), x, y=y, z=z)(x, y, z), (x + y) * z)


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
