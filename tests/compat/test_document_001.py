"""Document 001, Vitis AI's quantization aware training, item by item.

Its code has only other imports, and what it leaves out is filled in. The first line of each docstring is the item.
"""

from __future__ import annotations

import io
import json
import runpy
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from detent.artifact import Artifact
from detent.compat.vitis import QatProcessor, VitisConfig, functional, wrap
from detent.compat.vitis.models import resnet18
from detent.errors import CaptureError, DataError, RangeError, RecipeError
from detent.graph import DeQuantStub, FloatTensor, QuantStub, quantizers_of
from detent.targets.vitis.quant_info import read_quant_info
from tests.models import resnet18 as narrow_resnet18

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vitis"


# Use QuantStub and DeQuantStub to specify quantization scope
class ModelWithQuantStub(nn.Module):
    def __init__(self, pretrained=False, make=lambda _: narrow_resnet18(width=0.125, classes=4, depths=(1, 1, 1, 1))):
        super().__init__()
        self._model = make(pretrained)
        self.quant_stub = QuantStub()
        self.dequant_stub = DeQuantStub()

    def forward(self, imgs):
        imgs = self.quant_stub(imgs)
        out = self._model(imgs)
        return self.dequant_stub(out)


class Residual(nn.Module):
    """`second` and `short` read the same tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()
        self.second, self.short = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.act(self.first(x))
        return self.fc((self.second(y) + self.short(y)).mean((2, 3)))


def train(model, train_loader, val_loader=(), criterion=nn.functional.cross_entropy, device_ids=(), rate=1e-3):  # noqa: ARG001
    # training loop here
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    model.train()
    for images, labels in train_loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def batches(count, size=8):
    torch.manual_seed(3)
    labels = torch.tensor([0, 1, 2, 3])
    images = torch.randn(4, 3, size, size) * 0.3 + labels.reshape(-1, 1, 1, 1)
    return [(images, labels)] * count


@pytest.fixture
def processor(tmp_path):
    """A QatProcessor of a config, for a small network unless another is given."""

    def make(model=None, inputs=None, **config):
        file = tmp_path / "cfg.json"
        file.write_text(json.dumps(config))
        given = batches(1)[0][0] if inputs is None else inputs
        return QatProcessor(model or Residual().eval(), given, config_file=file)

    return make


def cpu(**overall):
    return {"target_device": "CPU", "overall_quantize_config": overall}


def scales(model):
    return {one.name: one.qparams().scale.clone() for one in quantizers_of(model)}


def learned(model):
    return {one.name: [part.detach().clone() for part in one.parameters(recurse=False)] for one in quantizers_of(model)}


def schemes(model, role=None):
    return {str(one.scheme) for one in model.plan.quantized if role in (None, one.role)}


def is_power_of_two(scale):
    return bool((torch.log2(scale) == torch.log2(scale).round()).all())


# ---- Usage ----


def test_001_01_the_model_of_step_1_with_resnet18():
    """Step 1, ModelWithQuantStub with torchvision's resnet18, `pretrained` included."""
    model = ModelWithQuantStub(pretrained=False, make=resnet18)
    assert sum(one.numel() for one in model.parameters()) == 11_689_512
    with pytest.raises(DataError, match="weights are not downloaded here") as error:
        ModelWithQuantStub(pretrained=True, make=resnet18)
    assert "https://download.pytorch.org/models/resnet18-f37072fd.pth" in error.value.to_do


def test_001_02_stubs_set_the_scope():
    """QuantStub and DeQuantStub set the scope: input and output are float outside."""
    plan = QatProcessor(ModelWithQuantStub().eval(), batches(1, 32)[0][0]).trainable_model().plan
    assert plan["imgs"] == FloatTensor(tensor="imgs", kind="input", reason="outside of the stubs")
    assert plan["quant_stub"].scheme.grid.bits == 8
    assert plan["dequant_stub"].reason


def test_001_03_the_train_function_of_step_2():
    """Step 2, a training loop of one's own: every weight gets a gradient and moves."""
    model = QatProcessor(Residual().eval(), batches(1)[0][0]).trainable_model()
    before = [value.detach().clone() for value in model.non_quantizer_parameters()]
    train(model, batches(2), batches(1), nn.functional.cross_entropy, [0])
    assert len(before) == 8
    assert not any(map(torch.equal, model.non_quantizer_parameters(), before))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_001_04_the_default_config(training):
    """Step 3, QatProcessor(model, inputs), default config, model in train or eval mode: TQT everywhere, loss falls."""
    torch.manual_seed(0)
    data = batches(6, 32)
    # Use default quantization config
    qat_processor = QatProcessor(ModelWithQuantStub().train(training), data[0][0])
    # Get trainable quantized model
    quantized_model = qat_processor.trainable_model()
    assert {one.quantizer for one in quantized_model.plan.quantized} == {"tqt"}
    # Train the quantized model
    losses = train(quantized_model, data, data, nn.functional.cross_entropy, [0])
    assert losses[-1] < losses[0]


def test_001_05_a_config_file(tmp_path):
    """Step 3, QatProcessor(model, inputs, config_file='cfg.json')."""
    (tmp_path / "cfg.json").write_text(json.dumps(cpu(bit_width=6, scale_type="float")))
    qat_processor = QatProcessor(Residual().eval(), batches(1)[0][0], config_file=tmp_path / "cfg.json")
    assert schemes(qat_processor.trainable_model()) == {"int6 symmetric per-tensor"}


def test_001_06_the_trainable_model_is_an_ordinary_module():
    """trainable_model() gives an ordinary module and leaves the float model as it was."""
    model = Residual().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quantized = QatProcessor(model, batches(1)[0][0]).trainable_model()
    train(quantized, batches(1))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = QatProcessor(model, batches(1)[0][0]).trainable_model()
    again.load_state_dict(quantized.state_dict())
    images = batches(1)[0][0]
    assert torch.equal(again.eval()(images), quantized.eval()(images))


# ---- Overview ----


def test_001_07_float_scales(processor):
    """Scale type float: scales are any numbers."""
    found = scales(processor(**cpu(scale_type="float", method="maxmin")).trainable_model())
    assert len(found) == 15
    assert not any(map(is_power_of_two, found.values()))


def test_001_08_power_of_two_scales(processor):
    """Scale type power of two: every scale is 2**n."""
    for method in ("tqt", "maxmin", "percentile"):
        found = scales(processor(**cpu(scale_type="poweroftwo", method=method)).trainable_model())
        assert len(found) == 15
        assert all(map(is_power_of_two, found.values()))


@pytest.mark.parametrize(("method", "scale"), [("tqt", "poweroftwo"), ("lsq", "float")])
def test_001_09_learnable_scales(processor, method, scale):
    """Learnable: the scale factor is trained with the network by gradients, TQT's thresholds and LSQ's scales."""
    model = processor(**cpu(method=method, scale_type=scale)).trainable_model()
    before = learned(model)
    train(model, batches(2))
    still = [name for name, values in learned(model).items() if torch.equal(values[0], before[name][0])]
    assert len(before) == 15
    # Addends have the step of their sum where it is a power of two: nothing is rounded, and nothing to be learned.
    assert still == (["add"] if method == "tqt" else [])


@pytest.mark.parametrize("method", ["maxmin", "percentile", "std"])
def test_001_10_unlearnable_scales_follow_training(processor, method):
    """Unlearnable: during training an observer does the statistic for every weight, bias and activation."""
    model = processor(**cpu(scale_type="float", method=method), inputs=0.1 * torch.randn(4, 3, 8, 8)).trainable_model()
    before = scales(model)
    data = batches(1)
    model.train()(2 * data[0][0])
    model(data[0][0])
    images = torch.stack([2 * data[0][0], data[0][0]])
    most = images.abs().amax()
    after = scales(model)
    assert not [name for name in before if name.endswith("x") and torch.equal(before[name], after[name])]
    if method == "maxmin":  # of all that was trained on, whatever `inputs` were
        assert after["x"].item() == pytest.approx(most.item() / 127, rel=1e-5)
    train(model, 2 * data)
    unmoved = [name for name, scale in scales(model).items() if torch.equal(scale, before[name])]
    assert not unmoved


def test_001_11_unlearnable_scales_with_a_moving_average(processor):
    """Unlearnable with a moving average: ranges of activations are averaged exponentially over batches."""
    model = processor(**cpu(scale_type="float", method="moving_avg_maxmin")).trainable_model()
    images = batches(1)[0][0]
    start = scales(model)["x"].item()
    model.train()(3 * images)
    assert scales(model)["x"].item() == pytest.approx(0.9 * start + 0.1 * 3 * start, rel=1e-5)


def test_001_12_per_tensor(processor):
    """Per-tensor: all elements of a tensor share a scale."""
    model = processor(**cpu(scale_type="float", per_channel=False)).trainable_model()
    assert {scale.numel() for scale in scales(model).values()} == {1}


def test_001_13_per_channel_is_for_weights(processor):
    """Per-channel: each channel of a weight has a scale; for activations it is refused."""
    model = processor(**cpu(scale_type="float", per_channel=True)).trainable_model()
    weight = model.get_submodule("first").weight.detach()
    assert schemes(model, "weight") == {"int8 symmetric per-channel(0)"}
    assert schemes(model, "activation") == {"int8 symmetric per-tensor"}
    found = scales(model)["first.weight"]
    assert torch.allclose(found, weight.abs().amax((1, 2, 3)) / 127, rtol=0.01)
    with pytest.raises(RecipeError, match="allowed are false for activation"):
        VitisConfig.from_dict({**cpu(), "tensor_quantize_config": {"activation": {"per_channel": True}}})


# ---- TQT, LSQ ----


def test_001_14_the_schema_of_tqt():
    """TQT: signed, symmetric, per tensor, power-of-two scales, also after training with a large rate."""
    model = QatProcessor(Residual().eval(), batches(1)[0][0]).trainable_model()
    train(model, batches(3), rate=1.0)
    assert {(one.scheme.grid.qmin, one.scheme.grid.qmax) for one in quantizers_of(model)} == {(-128, 127)}
    assert all(one.scheme.symmetric and one.qparams().zero_point == 0 for one in quantizers_of(model))
    assert all(map(is_power_of_two, scales(model).values()))


@pytest.mark.parametrize("device", ["DPU", "CPU"])
def test_001_15_a_power_of_two_scale_is_enough_for_tqt(processor, device):
    """TQT: assigning `scale_type` to `poweroftwo` is enough."""
    config = {"target_device": device, "overall_quantize_config": {"scale_type": "poweroftwo"}}
    model = processor(**config).trainable_model()
    assert {(one.quantizer, one.scheme.grid.bits) for one in model.plan.quantized} == {("tqt", 8)}


def test_001_16_lsq(processor):
    """LSQ: `method=lsq` and `scale_type=float`; `per_channel`, `round_mode` and `signed` are optional."""
    plain = processor(**cpu(method="lsq", scale_type="float")).trainable_model()
    assert schemes(plain) == {"int8 symmetric per-tensor"}
    assert {one.quantizer for one in plain.plan.quantized} == {"lsq"}
    more = cpu(method="lsq", scale_type="float", per_channel=True, round_mode="std_round", signed=True)
    assert schemes(processor(**more).trainable_model(), "weight") == {"int8 symmetric per-channel(0) half_away"}


LSQ = """{
"overall_quantize_config": {
  "datatype": "int",
  "bit_width": 8,
  "scale_type": "float",
  "method": "lsq",
  "calib_statistic_method": "mean"
}
}"""


def test_001_17_the_lsq_block_of_the_document(tmp_path):
    """LSQ's block of JSON as it is printed, without a target_device: float scales are for a CPU."""
    (tmp_path / "cfg.json").write_text(LSQ)
    plan = QatProcessor(Residual().eval(), batches(1)[0][0], config_file=tmp_path / "cfg.json").trainable_model().plan
    assert plan.backend == "vitis_cpu"
    assert {(one.quantizer, str(one.scheme)) for one in plan.quantized} == {("lsq", "int8 symmetric per-tensor")}
    with pytest.raises(RecipeError, match="'poweroftwo' on a DPU"):
        VitisConfig.from_dict({"target_device": "DPU", **json.loads(LSQ)})


def test_001_18_calib_statistic_method_has_no_effect_on_lsq(processor):
    """LSQ: `calib_statistic_method=mean` has no effect."""
    with_it = scales(
        processor(**cpu(method="lsq", scale_type="float", calib_statistic_method="mean")).trainable_model()
    )
    without = scales(processor(**cpu(method="lsq", scale_type="float")).trainable_model())
    assert all(torch.equal(scale, without[name]) for name, scale in with_it.items())


UNLEARNABLE = """{
"overall_quantize_config": {
    "datatype": "int",
    "bit_width": 8,
    "round_mode": "half_even",
    "scale_type": "float",
    "calib_statistic_method":"mean"\uff0c
    "symmetry": true,
    "per_channel": false,
    "method": "maxmin",
    "signed": true,
    "narrow_range": true
}
}"""


def test_001_19_the_maxmin_block_of_the_document(tmp_path):
    """The maxmin block of JSON as it is printed: its full-width comma is answered with the line and the remedy."""
    file = tmp_path / "cfg.json"
    file.write_text(UNLEARNABLE, encoding="utf-8")
    with pytest.raises(RecipeError, match="it is not JSON") as error:
        QatProcessor(Residual().eval(), batches(1)[0][0], config_file=file)
    assert error.value.to_do == "line 7 has the full-width '\uff0c': write ','"
    file.write_text(UNLEARNABLE.replace("\uff0c", ","))
    model = QatProcessor(Residual().eval(), batches(1)[0][0], config_file=file).trainable_model()
    assert schemes(model) == {"int8 narrow symmetric per-tensor"}


def test_001_20_the_numbers_of_maxmin(processor):
    """maxmin: the scale is max|w| / 127 with narrow_range."""
    model = processor(**cpu(scale_type="float", method="maxmin", narrow_range=True)).trainable_model()
    for layer in ("first", "second", "fc"):
        weight = model.get_submodule(layer).parametrizations["weight"].original
        assert scales(model)[f"{layer}.weight"].item() == pytest.approx(weight.abs().max().item() / 127, rel=1e-6)


# ---- Unlearnable scale: the table ----

ONE_OUTLIER = torch.randn(1, 1, 100, 100, generator=torch.Generator().manual_seed(0))
ONE_OUTLIER[0, 0, 0, 0] = 30


def range_of_input(processor, **overall):
    """The largest code of the input's grid, as a real number."""
    model = processor(nn.Conv2d(1, 1, 1), ONE_OUTLIER, **cpu(**overall)).trainable_model()
    return 127 * next(one.qparams().scale.item() for one in quantizers_of(model) if one.name == "input_1")


@pytest.mark.parametrize(("method", "top"), [("maxmin", 30.0), ("percentile", 4.05), ("std", 3.13)])
def test_001_21_methods(processor, method, top):
    """method maxmin, percentile, std: the ranges of N(0, 1) with one outlier of 30."""
    assert range_of_input(processor, scale_type="float", method=method) == pytest.approx(top, rel=0.1)


@pytest.mark.parametrize(
    "said",
    [{"method": "moving_avg_maxmin"}, {"method": "moving_avg_max_min"}, {"method": "maxmin", "moving_avg": True}],
    ids=lambda said: said["method"] + str(said.get("moving_avg", "")),
)
def test_001_22_methods_with_a_moving_average(processor, said):
    """The methods with the prefix moving_avg_, as moving_avg_max_min, and with moving_avg: true."""
    assert range_of_input(processor, scale_type="float", **said) == pytest.approx(30.0)
    assert VitisConfig.from_dict(cpu(**said)).tensors()["activation"].moving


@pytest.mark.parametrize(("method", "exponent"), [("maxmin", -2), ("percentile", -4), ("std", -5)])
def test_001_23_methods_with_powers_of_two(processor, method, exponent):
    """The methods with poweroftwo: the next power of two."""
    found = range_of_input(processor, scale_type="poweroftwo", method=method) / 127
    assert found == 2.0**exponent


@pytest.mark.parametrize("percentage", [90, 99.0, 99.9])
def test_001_24_percentage(processor, percentage):
    """percentage: the share of values that is kept, as torch.quantile has it."""
    found = range_of_input(processor, scale_type="float", method="percentile", percentage=percentage)
    assert found == pytest.approx(torch.quantile(ONE_OUTLIER.abs(), percentage / 100).item(), rel=0.02)


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        ({"symmetry": True, "signed": True}, "int8 symmetric per-tensor"),
        ({"symmetry": False, "signed": True}, "int8 affine per-tensor"),
        ({"symmetry": False, "signed": False}, "uint8 affine per-tensor"),
    ],
    ids=["symmetric", "affine", "unsigned"],
)
def test_001_25_symmetry_and_sign(processor, said, scheme):
    """symmetric true or false, signed or unsigned; unsigned and symmetric is refused for data with a sign."""
    assert schemes(processor(**cpu(scale_type="float", **said)).trainable_model()) == {scheme}
    with pytest.raises(RangeError, match="an unsigned symmetric grid holds no negative number"):
        processor(**cpu(scale_type="float", symmetry=True, signed=False)).trainable_model()


def test_001_26_narrow_range(processor):
    """narrow_range, only signed: codes from -127 with it, from -128 without; refused for unsigned tensors."""
    for narrow, least in ((True, -127), (False, -128)):
        model = processor(**cpu(scale_type="float", narrow_range=narrow)).trainable_model()
        assert {one.scheme.grid.qmin for one in model.plan.quantized} == {least}
    with pytest.raises(RecipeError, match="false for unsigned tensors"):
        VitisConfig.from_dict(cpu(narrow_range=True, signed=False, symmetry=False))


TIES = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])


def rounded(processor, mode, values=TIES):
    """What the input's quantizer makes of `values`, on a grid of step 1."""
    inputs = torch.full((1, 1, 2, 2), 127.0)
    model = processor(nn.Conv2d(1, 1, 1), inputs, **cpu(scale_type="float", round_mode=mode)).trainable_model().eval()
    quantizer = next(one for one in quantizers_of(model) if one.name == "input_1")
    assert quantizer.qparams().scale.item() == 1.0
    return quantizer(values)


@pytest.mark.parametrize(
    ("mode", "codes"),
    [
        ("half_even", [-2, -2, 0, 0, 2, 2]),
        ("half_up", [-2, -1, 0, 1, 2, 3]),
        ("floor", [-3, -2, -1, 0, 1, 2]),
        ("std_round", [-3, -2, -1, 1, 2, 3]),
    ],
)
def test_001_27_rounding_modes(processor, mode, codes):
    """rounding half_even, half_up, floor, std_round, on ties."""
    assert rounded(processor, mode).tolist() == codes


def test_001_28_stochastic_rounding(processor, tmp_path):
    """rounding stochastic_round: in training down or up, so that the mean is exact; deployed to nearest."""
    torch.manual_seed(0)
    config = cpu(scale_type="float", method="lsq", round_mode="stochastic_round")
    qat_processor = processor(nn.Conv2d(1, 1, 1), torch.full((1, 1, 2, 2), 127.0), **config)
    model = qat_processor.trainable_model().train()
    (quantizer,) = (one for one in quantizers_of(model) if one.name == "input_1")
    assert quantizer.qparams().scale.item() == 1.0
    given = quantizer(torch.full((10_000,), 0.3))
    assert set(given.tolist()) == {0.0, 1.0}
    assert given.mean().item() == pytest.approx(0.3, abs=0.02)  # its deviation is 0.0046
    images = 40 * torch.randn(50, 1, 2, 2)
    deployed = qat_processor.to_deployable(model, tmp_path / "out")
    assert torch.equal(deployed(images), model.eval()(images))
    assert deployed.artifact.verify([images]).holds


@pytest.mark.parametrize("method", ["maxmin", "lsq"])
def test_001_29_floor_is_deployed(processor, tmp_path, method):
    """A model that rounds by floor is trained and deployed, and computes what was simulated."""
    qat_processor = processor(**cpu(scale_type="float", method=method, round_mode="floor"))
    model = qat_processor.trainable_model()
    train(model, batches(1))
    deployed = qat_processor.to_deployable(model, tmp_path / "out")
    images = batches(1)[0][0]
    assert torch.equal(deployed(images), model.eval()(images))
    verdict = deployed.artifact.verify([images])
    assert verdict.holds, str(verdict)
    assert "QuantizeLinear rounds half to even; this target rounds floor" in deployed.artifact.manifest["notes"]


@pytest.mark.parametrize(("bits", "codes"), [(4, (-8, 7)), (6, (-32, 31)), (8, (-128, 127))])
def test_001_30_bit_widths(processor, bits, codes):
    """bit width 4, 6, 8."""
    model = processor(**cpu(scale_type="float", bit_width=bits)).trainable_model()
    assert {(one.scheme.grid.qmin, one.scheme.grid.qmax) for one in model.plan.quantized} == {codes}


def test_001_31_ch_axis(processor):
    """ch_axis: the axis of the output channels; another one is refused with that axis."""
    model = processor(**cpu(scale_type="float", per_channel=True, ch_axis=0)).trainable_model()
    assert schemes(model, "weight") == {"int8 symmetric per-channel(0)"}
    with pytest.raises(RecipeError, match="allowed is 0, where a conv has its output channels"):
        processor(**cpu(scale_type="float", per_channel=True, ch_axis=1)).trainable_model()


@pytest.mark.parametrize(
    ("statistic", "scale", "top"),
    [("max", "float", 8.0), ("mean", "float", 4.0), ("median", "float", 2.0), ("modal", "poweroftwo", 2.0)],
)
def test_001_32_calib_statistic_method(processor, statistic, scale, top):
    """calib_statistic_method max, mean, median, modal: how the ranges of calibration batches become one."""
    import detent

    config = cpu(scale_type=scale, method="maxmin", calib_statistic_method=statistic)
    model = processor(nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2), **config).trainable_model()
    detent.calibrate(model, [torch.full((1, 1, 2, 2), high * 127 / 128) for high in (2.0, 2.0, 8.0)])
    assert 128 * scales(model)["input_1"].item() == pytest.approx(top)


def test_001_33_tensor_quantize_config(processor):
    """tensor_quantize_config: weights, bias, activation and input of their own."""
    said = {"weights": {"bit_width": 6}, "bias": {"bit_width": 16}, "input": {"bit_width": 7}}
    plan = processor(**cpu(scale_type="float"), tensor_quantize_config=said).trainable_model().plan
    found = {name: plan[name].scheme.grid.bits for name in ("first.weight", "first.bias", "x", "act")}
    assert found == {"first.weight": 6, "first.bias": 16, "x": 7, "act": 8}


def test_001_34_layer_quantize_config(processor):
    """layer_quantize_config by layer_name and by layer_type, the name before the type."""
    layers = [
        {"layer_type": "Conv2d", "tensor_quantize_config": {"weights": {"bit_width": 5}}},
        {"layer_name": "second", "tensor_quantize_config": {"weights": {"bit_width": 4}}},
    ]
    plan = processor(**cpu(scale_type="float"), layer_quantize_config=layers).trainable_model().plan
    found = {one.tensor: one.scheme.grid.bits for one in plan.quantized if one.role == "weight"}
    assert found == {"first.weight": 5, "second.weight": 4, "short.weight": 5, "fc.weight": 8}


def test_001_35_the_activation_of_a_layer(processor):
    """layer_quantize_config, activation of a layer: what it takes in; noted where another layer reads that too."""
    narrow = {"tensor_quantize_config": {"activation": {"bit_width": 4}}}
    alone = [{"layer_name": "fc", **narrow}]
    plan = processor(**cpu(scale_type="float"), layer_quantize_config=alone).trainable_model().plan
    assert (plan["mean"].scheme.grid.bits, plan.notes) == (4, ())
    one = [{"layer_name": "second", **narrow}]
    plan = processor(**cpu(scale_type="float"), layer_quantize_config=one).trainable_model().plan
    assert plan["act"].scheme.grid.bits == 8
    (note,) = plan.notes
    assert note.startswith("second asks for bits 4 of act, and gets int8")
    assert note.endswith("short reads it too, and a tensor has one grid, the widest asked for")
    both = [{"layer_name": name, **narrow} for name in ("second", "short")]
    plan = processor(**cpu(scale_type="float"), layer_quantize_config=both).trainable_model().plan
    assert (plan["act"].scheme.grid.bits, plan.notes) == (4, ())


@pytest.mark.parametrize(
    ("said", "meant"), [("rounding_mode", "round_mode"), ("symmetric", "symmetry"), ("unsigned", "signed")]
)
def test_001_36_the_names_of_the_prose(said, meant):
    """The names of the prose (rounding_mode, symmetric, unsigned) are answered with those of the JSON."""
    with pytest.raises(RecipeError, match="no such key") as error:
        VitisConfig.from_dict(cpu(**{said: True}))
    assert error.value.to_do == f"did you mean {meant!r}?"


# ---- Quick start ----


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory):
    """What main.py prints for both networks: when it trains, and when it deploys."""
    folder = tmp_path_factory.mktemp("quick_start")
    size = ("--batch_size=4", "--batches=2", "--image_size=32", "--classes=3", "--width=0.125", "--epochs=1")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.chdir(EXAMPLE)
        main = runpy.run_path(str(EXAMPLE / "main.py"))["main"]
        for model_name, config in (("resnet18", "int_pof2_tqt"), ("MobileNetV2", "int_float_scale_min_max")):
            out = folder / model_name
            common = [f"--model_name={model_name}", f"--config_file=configs/{config}.json", *size]
            common += [f"--qat_ckpt={folder / model_name}.pth", f"--output_dir={out}"]
            for mode in ("train", "deploy"):
                printed = io.StringIO()
                with redirect_stdout(printed):
                    code = main([f"--mode={mode}", *common])
                found[model_name, mode] = code, printed.getvalue()
    return folder, found


@pytest.mark.parametrize("model_name", ["resnet18", "MobileNetV2"])
def test_001_37_quick_start_train(quick_start, model_name):
    """Quick start, train: `python main.py --mode=train`, for resnet18 and MobileNetV2."""
    folder, found = quick_start
    code, printed = found[model_name, "train"]
    assert (code, printed[:14]) == (0, "epoch 1: loss ")
    state = torch.load(folder / f"{model_name}.pth", weights_only=True)
    held = [name for name in state if name.endswith(("log2_threshold", ".low"))]
    assert len(held) == {"resnet18": 73, "MobileNetV2": 172}[model_name]


@pytest.mark.parametrize("model_name", ["resnet18", "MobileNetV2"])
def test_001_38_quick_start_deploy(quick_start, model_name):
    """Quick start, deploy: `python main.py --mode=deploy` writes the files; accuracy simulated is accuracy deployed."""
    folder, found = quick_start
    code, printed = found[model_name, "deploy"]
    simulated, in_integers = printed.splitlines()[0].removeprefix("accuracy simulated ").split(", deployed ")
    assert (code, simulated) == (0, in_integers)
    manifest = Artifact.load(_artifact_in(folder / model_name)).manifest
    assert manifest["backend"] == {"resnet18": "vitis", "MobileNetV2": "vitis_cpu"}[model_name]


def _artifact_in(folder):
    return next(path.parent for path in sorted(folder.rglob("manifest.json")))


METHODS = {
    "int_pof2_tqt": ("tqt", "poweroftwo"),
    "int_float_scale_lsq": ("lsq", "float"),
    "int_float_scale_min_max": ("minmax", "float"),
    "int_float_scale_percentile": ("percentile", "float"),
    "int_pof2_percentile": ("percentile", "poweroftwo"),
    "int_pof2_std": ("std", "poweroftwo"),
}


def trains_and_deploys(name, tmp_path):
    """One config file: what it plans, that it trains, and that the deployed model computes what was simulated."""
    torch.manual_seed(0)
    data = batches(3)
    qat_processor = QatProcessor(Residual().eval(), data[0][0], config_file=EXAMPLE / "configs" / f"{name}.json")
    model = qat_processor.trainable_model()
    method, scale = METHODS[name]
    entry = model.plan["fc.weight"]
    assert method in (entry.quantizer, entry.observer_options.get("method"))
    assert all(map(is_power_of_two, scales(model).values())) == (scale == "poweroftwo")
    before = scales(model)
    losses = train(model, data, rate=3e-3)
    assert losses[-1] < losses[0]
    assert [name for name in before if not torch.equal(before[name], scales(model)[name])] or scale == "poweroftwo"
    deployed = qat_processor.to_deployable(model, tmp_path / "out")
    # Nothing in between is on a tie of two codes, so that float and integers agree; one step of the output otherwise.
    step = scales(model)["fc"].item()
    assert (deployed(data[0][0]) - model.eval()(data[0][0])).abs().max().item() <= 1.01 * step


def test_001_39_int_pof2_tqt(tmp_path):
    """configs/int_pof2_tqt.json trains and deploys."""
    trains_and_deploys("int_pof2_tqt", tmp_path)


def test_001_40_int_float_scale_lsq(tmp_path):
    """configs/int_float_scale_lsq.json trains and deploys."""
    trains_and_deploys("int_float_scale_lsq", tmp_path)


def test_001_41_int_float_scale_min_max(tmp_path):
    """configs/int_float_scale_min_max.json trains and deploys."""
    trains_and_deploys("int_float_scale_min_max", tmp_path)


def test_001_42_int_float_scale_percentile(tmp_path):
    """configs/int_float_scale_percentile.json trains and deploys."""
    trains_and_deploys("int_float_scale_percentile", tmp_path)


def test_001_43_int_pof2_percentile(tmp_path):
    """configs/int_pof2_percentile.json trains and deploys."""
    trains_and_deploys("int_pof2_percentile", tmp_path)


def test_001_44_int_pof2_std(tmp_path):
    """configs/int_pof2_std.json trains and deploys."""
    trains_and_deploys("int_pof2_std", tmp_path)


def test_001_45_pretrained_weights(tmp_path):
    """--pretrained: the network begins with the weights of a state dict."""
    torch.manual_seed(5)
    given = resnet18().state_dict()
    torch.save(given, tmp_path / "resnet18.pth")
    found = resnet18(tmp_path / "resnet18.pth").state_dict()
    assert all(torch.equal(value, given[name]) for name, value in found.items())


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A trained model of the default config, its processor and the folder it was deployed to."""
    folder = tmp_path_factory.mktemp("deployed")
    data = batches(2)
    qat_processor = QatProcessor(Residual().eval(), data[0][0])
    model = qat_processor.trainable_model()
    train(model, data)
    qat_processor.to_deployable(model, folder / "deployable")
    return qat_processor, model.eval(), folder


def test_001_46_to_deployable_and_deployable_model(deployed):
    """to_deployable and deployable_model: what is read back computes what was trained."""
    qat_processor, model, folder = deployed
    images = batches(1)[0][0]
    again = qat_processor.deployable_model(folder / "deployable", used_for_xmodel=True)
    step = scales(model)["fc"].item()
    # The DPU shifts where the simulation divides: a code may be its neighbor, and verify tells that from mistakes.
    assert (again(images) - model(images)).abs().max().item() <= 1.01 * step
    assert again.artifact.verify([images]).holds


def test_001_47_the_onnx_model(deployed):
    """The ONNX file has Q and DQ, every scale a power of two, every zero point 0."""
    qat_processor, _, folder = deployed
    file = qat_processor.export_onnx_model(folder)
    assert file.name == "Residual.onnx"
    graph = onnx.load(file).graph
    held = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    assert len(nodes) == 16
    assert all(np.log2(held[node.input[1]]) == np.round(np.log2(held[node.input[1]])) for node in nodes)
    assert not any(held[node.input[2]].any() for node in nodes)


def test_001_48_the_xmodel(deployed, capsys):
    """.xmodel: the power-of-two model and its positions are written, and that AMD's compiler is needed is said."""
    qat_processor, model, folder = deployed
    artifact = qat_processor.export_xmodel(folder / "xmodel")
    assert "compiling it for a DPU needs AMD's compiler (vai_c_xir)" in capsys.readouterr().out
    positions = read_quant_info(artifact.path("quant_info.json").read_bytes())
    assert positions.parameters["fc.weight"].scale == scales(model)["fc.weight"].item()


# ---- Auto module ----


class Operators(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y, z):
        tmp = x + y
        ret = tmp * z
        return ret  # noqa: RET504


def three():
    return tuple(torch.rand((2, 2), generator=torch.Generator().manual_seed(seed)) for seed in range(3))


def test_001_49_auto_module():
    """auto_module.wrap: native operators are replaced by modules, and QatProcessor takes the model."""
    model = Operators()
    x, y, z = three()
    wrapped_model = wrap(model, x, y, z)
    assert [name for name, _ in wrapped_model.named_children()] == ["wrapped_add_1", "wrapped_mul_1"]
    assert torch.equal(wrapped_model(x, y, z), (x + y) * z)
    quantized = QatProcessor(wrapped_model, (x, y, z)).trainable_model()
    assert [one.tensor for one in quantized.plan.quantized] == ["x", "y", "z", "wrapped_add_1", "wrapped_mul_1"]


def test_001_50_the_signature_of_wrap():
    """wrap(model, *args, **kwargs): both are fed to the model."""
    x, y, z = three()
    assert torch.equal(wrap(Operators(), x, y=y, z=z)(x, y, z), (x + y) * z)


def test_001_51_wrap_of_a_network_with_in_place_sums():
    """wrap of a network with +=: one module for each, and state dicts keep their names."""

    class InPlace(Residual):
        def forward(self, x):
            y = self.act(self.first(x))
            z = self.second(y)
            z += self.short(y)
            z += y
            return self.fc(z.mean((2, 3)))

    model, images = InPlace().eval(), batches(1)[0][0]
    wrapped = wrap(model, images)
    assert [name for name, _ in wrapped.named_children() if "add" in name] == ["wrapped_add_1", "wrapped_add_2"]
    assert set(wrapped.state_dict()) == set(model.state_dict())
    assert torch.equal(wrapped(images), model(images))


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
        self.Mul = Mul()

    def forward(self, x, y, z):
        tmp = self.add(x, y)
        ret = self.mul(tmp, z)
        return ret  # noqa: RET504


def test_001_52_operators_replaced_by_hand():
    """Modules Add and Mul written by hand; the document's `self.mul` for `self.Mul` is answered with the line."""
    with pytest.raises(CaptureError, match="no attribute 'mul'") as error:
        QatProcessor(MyModel(), three()).trainable_model()
    line = MyModel.forward.__code__.co_firstlineno + 2
    assert error.value.to_do == f"line {line} of {__file__}: did you mean 'Mul'?"
    corrected = MyModel()
    corrected.mul = corrected.Mul
    # "QAT can insert quantizers for tensor x, y, tmp and z"
    plan = QatProcessor(corrected, three()).trainable_model().plan
    assert [one.tensor for one in plan.quantized] == ["x", "y", "z", "add", "mul"]


def test_001_53_operators_need_not_be_modules():
    """Plain + and * are quantized without wrap."""
    plan = QatProcessor(Operators(), three()).trainable_model().plan
    assert [one.tensor for one in plan.quantized] == ["x", "y", "z", "add", "mul"]


class Network(nn.Module):
    """In the style of network.py: sums are modules, and an activation is called twice."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.skip_add, self.fc = nn.ReLU(), functional.Add(), nn.Linear(4, 4)
        self.mean = functional.Mean()

    def forward(self, x):
        identity = self.relu(self.conv1(x))
        out = self.relu(self.skip_add(self.conv2(identity), identity))
        return self.fc(self.mean(out, (2, 3)))


def test_001_54_the_code_of_network_py():
    """network.py: functional.Add and its kin, two groups of parameters, trainable_model(allow_reused_module=True)."""
    images = batches(1)[0][0]
    qat_processor = QatProcessor(Network().eval(), images)
    model = qat_processor.trainable_model(allow_reused_module=True)
    assert [(one.kind, one.runs) for one in model.plan.ops if one.op == "add"] == [("add", "quantized")]
    groups = [
        {"params": model.quantizer_parameters(), "lr": 1e-2, "name": "quantizer"},
        {"params": model.non_quantizer_parameters(), "lr": 1e-5, "name": "weight"},
    ]
    assert len(groups[0]["params"]) == len(list(quantizers_of(model)))
    assert len(groups[1]["params"]) == len(list(Network().parameters()))
    before = learned(model)
    optimizer = torch.optim.Adam(groups, 1e-5, weight_decay=1e-4)
    model.train()(images).square().mean().backward()
    optimizer.step()
    assert all(not torch.equal(values[0], before[name][0]) for name, values in learned(model).items())
    with pytest.raises(RecipeError, match="relu is called more than once"):
        QatProcessor(Network().eval(), images).trainable_model(allow_reused_module=False)
    x, y, _ = three()
    assert torch.equal(functional.Cat()([x, y], dim=1), torch.cat([x, y], 1))
    assert torch.equal(functional.Sub()(x, y), x - y)
    assert torch.equal(functional.Matmul()(x, y), x @ y)
