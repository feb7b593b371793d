"""Document 000, MMRazor's "Customize Quantization algorithms", item by item; `mmrazor_document.py` has its code.

No OpenMMLab package is installed: the architecture and its head stand for those of mmcls.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import detent
from detent.compat.mmrazor import (
    DATASETS,
    LOOPS,
    MODELS,
    TASK_UTILS,
    BaseModule,
    BaseQuantizer,
    Config,
    CustomTracer,
    DeployConfigWarning,
    EpochBasedTrainLoop,
    FakeQuantizeBase,
    FXFloatFunctional,
    LSQEpochBasedLoop,
    LSQObserver,
    LSQPerChannelObserver,
    MinMaxObserver,
    MMArchitectureQuant,
    NativeQuantizer,
    PerChannelMinMaxObserver,
    PTQLoop,
    QATEpochBasedLoop,
    Runner,
    enable_static_estimate,
    freeze_bn_stats,
    sync_tensor,
)
from detent.compat.mmrazor.schedule import schedule_of
from detent.errors import DataError, RecipeError, RegistrationError, RunError
from detent.graph import FoldedBatchNorm, quantizers_of
from detent.quantizers import Quantizer
from detent.targets.engines import ENGINES
from tests.compat.mmrazor_document import (
    CHECKPOINT,
    DEPLOY,
    DOCUMENT,
    FIRST,
    GAPS,
    MMCLS,
    OVERALL,
    PTQ,
    QAT,
    register_channel_observer,
    register_fake_quant,
    register_loop,
    register_observer,
)
from tests.compat.mmrazor_nets import ClsHead, ImageClassifier, Pictures
from tests.compat.registering import Registered

METHODS = ["mmcls.models.heads.ClsHead._get_loss", "mmcls.models.heads.ClsHead._get_predictions"]
PREPROCESSOR = {"type": "ClsDataPreprocessor", "mean": [110.0] * 3, "std": [40.0] * 3}


class Classifier(ImageClassifier):
    """mmcls's class of that name, for what the document's base says of it."""

    def __init__(self, backbone: object = None, neck: object = None, head: object = None):
        super().__init__()


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """What a test registers is gone after it."""
    heads = ModuleType("mmcls.models.heads")
    heads.ClsHead = ClsHead
    for name in ("mmcls", "mmcls.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, heads.__name__, heads)
    for registry in (MODELS, LOOPS, TASK_UTILS, DATASETS):
        monkeypatch.setattr(registry, "_own", {})
    MODELS.register_module("ImageClassifier")(Classifier)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    registered = Registered()
    yield
    registered.withdraw()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with mmcls's configs."""
    for name, text in MMCLS.items():
        (tmp_path / "mmcls" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mmcls" / name).write_text(text)
    return tmp_path


@pytest.fixture
def cfg(files: Path) -> Config:
    """The document's config on the base that it names; ten epochs, and a rate for so few steps."""
    torch.save({"state_dict": Classifier().state_dict()}, files / "float.pth")
    found = read(files, FIRST + GAPS.format(checkpoint=str(files / "float.pth")) + DOCUMENT)
    found["train_cfg"]["max_epochs"] = 10
    found["optim_wrapper"]["optimizer"]["lr"] = 0.02
    return found


def read(files: Path, text: str) -> Config:
    (files / "config.py").write_text(text)
    return Config.fromfile(files / "config.py", scopes={"mmcls": files / "mmcls"})


def data(count: int = 48, size: int = 8) -> dict[str, object]:
    return {"dataset": Pictures(count, size=size), "batch_size": 8, "sampler": {"shuffle": True}}


def runner_of(cfg: Config, **options: object) -> Runner:
    return Runner.from_cfg(cfg, train_dataloader=data(), val_dataloader=data(24), **options)


def qconfig(
    method: str = "LearnableFakeQuantize", w_observer="LSQPerChannelObserver", a_observer="LSQObserver", **over
):
    """The document's, with entries changed; `w` and `a` are laid over its schemes."""
    w = {"qdtype": "qint8", "bit": 8, "is_symmetry": True, "is_symmetric_range": True, **over.pop("w", {})}
    a = {"qdtype": "quint8", "bit": 8, "is_symmetry": True, **over.pop("a", {})}
    return {
        "w_observer": {"type": w_observer},
        "a_observer": {"type": a_observer},
        "w_fake_quant": {"type": method},
        "a_fake_quant": {"type": method},
        "w_qscheme": w,
        "a_qscheme": a,
        **over,
    }


def model_of(quantizer: object = "OpenVINOQuantizer", net: nn.Module | None = None, config=None, **options):
    if isinstance(quantizer, str):
        quantizer = {"type": quantizer, "global_qconfig": config or qconfig(), "tracer": {"skipped_methods": METHODS}}
    chosen = {"data_preprocessor": PREPROCESSOR, "input_shapes": (2, 3, 8, 8), **options}
    return MMArchitectureQuant(net or ImageClassifier(), quantizer, **chosen)


def trained(model: MMArchitectureQuant, epochs: int = 3, loop="LSQEpochBasedLoop", lr=0.05, **options):
    runner = Runner(
        model,
        train_dataloader=data(),
        val_dataloader=data(24),
        train_cfg={"type": loop, "max_epochs": epochs, "val_interval": epochs, **options},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": lr, "momentum": 0.9}},
    )
    return runner, runner.train()


def ready(model: MMArchitectureQuant, count: int = 48) -> torch.Tensor:
    return model.data_preprocessor(Pictures(count).images)


def schemes(model: MMArchitectureQuant, role: str) -> dict[str, str]:
    return {entry.tensor: str(entry.scheme) for entry in model.prepared.plan.quantized if entry.role == role}


def test_000_01_imports_from_one_place():
    """Imports MODELS, TASK_UTILS, LOOPS, FakeQuantizeBase, MinMaxObserver, EpochBasedTrainLoop, sync_tensor."""
    assert [registry.name for registry in (MODELS, TASK_UTILS, LOOPS)] == ["MODELS", "TASK_UTILS", "LOOPS"]
    assert issubclass(FakeQuantizeBase, nn.Module)
    assert issubclass(MinMaxObserver, nn.Module)
    assert issubclass(QATEpochBasedLoop, EpochBasedTrainLoop)
    assert sync_tensor(torch.tensor(2.0)) == 2.0


def test_000_02_base_of_mmcls_is_read_with_its_four_bases(files):
    """`_base_ = ['mmcls::resnet/resnet18_8xb16_cifar10.py']`: mmcls's file and its four bases parse."""
    found = read(files, FIRST)
    assert len(found) == 25
    assert found.model["backbone"]["depth"] == 18
    assert found.train_dataloader["dataset"]["type"] == "CIFAR10"
    assert found.train_cfg == {"by_epoch": True, "max_epochs": 200, "val_interval": 1}


def test_000_03_the_config_verbatim_names_what_it_lacks(files):
    """The config of step 7 verbatim: its undefined names `resnet`, `float_ckpt` are refused, with line and remedy."""
    with pytest.raises(RecipeError) as caught:
        read(files, FIRST + DOCUMENT)
    assert caught.value.asked == f"line 25 of {files / 'config.py'}: the name 'resnet'"
    assert caught.value.to_do == "assign it above, as in resnet = _base_.model"
    with pytest.raises(RecipeError, match=r"line 27 of .*: the name 'float_ckpt'"):
        read(files, FIRST + "resnet = _base_.model\n" + DOCUMENT)
    both = FIRST + "resnet = _base_.model\nfloat_ckpt = None\n" + DOCUMENT
    assert read(files, both).model["architecture"]["type"] == "ImageClassifier"


def test_000_04_delete_and_scopes(cfg):
    """`_delete_`, `_scope_`, scopes in `type`."""
    assert cfg.model["type"] == "MMArchitectureQuant"
    assert not {"_delete_", "backbone", "head"} & set(cfg.model)
    assert type(runner_of(cfg).model) is MMArchitectureQuant  # with its scope in an entry of its own
    assert MODELS.get("mmcls.ClsDataPreprocessor") is MODELS.get("ClsDataPreprocessor")


def test_000_05_global_qconfig_with_six_entries(files):
    """`global_qconfig` with six entries."""
    entry = model_of().prepared.plan["backbone.0.weight"]
    assert (entry.quantizer, entry.observer) == ("lsq", "lsq")
    found = read(files, "resnet = dict(type='ImageClassifier')\n" + OVERALL)
    assert len(found.global_qconfig) == 6
    with pytest.raises(RecipeError, match="w_observer\nfound: it has no type"):
        MODELS.build(found.model["quantizer"])


def test_000_06_w_qscheme():
    """w_qscheme qdtype qint8, bit 8, is_symmetry, is_symmetric_range."""
    assert set(schemes(model_of(), "weight").values()) == {"int8 narrow symmetric per-channel(0)"}


def test_000_07_a_qscheme_quint8_symmetric():
    """a_qscheme quint8 symmetric: int8 for what may be negative, uint8 behind a ReLU."""
    found = schemes(model_of(), "activation")
    assert found["inputs"] == "int8 symmetric per-tensor"
    assert found["backbone_2"] == "uint8 symmetric per-tensor"


def test_000_08_bit_4_with_academic_quantizer_reaches_every_layer():
    """qscheme `bit` (4) with AcademicQuantizer: the first and the last layer too."""
    model = model_of("AcademicQuantizer", config=qconfig(w={"bit": 4}, a={"bit": 4}))
    weights, activations = schemes(model, "weight"), schemes(model, "activation")
    assert set(weights) == {"backbone.0.weight", "backbone.3.weight", "head.fc.weight"}
    assert set(weights.values()) == {"int4 narrow symmetric per-channel(0)"}
    assert {scheme.split()[0] for scheme in activations.values()} == {"int4", "uint4"}


def test_000_09_other_schemes():
    """is_symmetry False; is_pot_scale; is_per_channel: schemes as asked."""
    assert (
        schemes(model_of(config=qconfig(a={"is_symmetry": False})), "activation")["inputs"] == "uint8 affine per-tensor"
    )
    pot = qconfig("FakeQuantize", "MinMaxObserver", "MinMaxObserver", w={"is_pot_scale": True})
    model = model_of("AcademicQuantizer", config=pot)
    detent.calibrate(model.prepared, [ready(model)])
    scales = [q.qparams().scale for q in quantizers_of(model.prepared) if q.role == "weight"]
    assert all(float(scale.log2()) == round(float(scale.log2())) for scale in scales)
    channels = qconfig("FakeQuantize", "MinMaxObserver", "MinMaxObserver", w={"is_per_channel": True})
    assert set(schemes(model_of(config=channels), "weight").values()) == {"int8 narrow symmetric per-channel(0)"}


def test_000_10_forward_modes():
    """type MMArchitectureQuant, forward modes tensor/predict/loss."""
    model = model_of()
    images, labels = ready(model, 6), Pictures(6).labels
    model.calibrate_step({"inputs": Pictures(6).images, "data_samples": labels})
    model.eval()
    with torch.no_grad():
        scores = model(images)
        assert torch.equal(model(images, mode="predict"), scores.softmax(1))
        assert torch.equal(model(images, labels, mode="loss")["loss"], F.cross_entropy(scores, labels))


def test_000_11_data_preprocessor():
    """ClsDataPreprocessor num_classes, mean, std, to_rgb."""
    described = {"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375], "to_rgb": True, "num_classes": 1000}
    made = MODELS.build({"type": "mmcls.ClsDataPreprocessor", **described})
    blue_green_red = torch.tensor([10.0, 20.0, 200.0]).reshape(3, 1, 1)
    expected = [(200 - 123.675) / 58.395, (20 - 116.28) / 57.12, (10 - 103.53) / 57.375]
    assert made(blue_green_red).flatten().tolist() == pytest.approx(expected)


def test_000_12_float_checkpoint_local_file(cfg, files):
    """float_checkpoint: local file."""
    stored = torch.load(files / "float.pth")["state_dict"]
    float_weight = detent.float_state_dict(runner_of(cfg).model.prepared)["backbone.0.weight"]
    assert torch.equal(float_weight, stored["backbone.0.weight"])


def test_000_13_float_checkpoint_url(tmp_path, monkeypatch):
    """float_checkpoint: URL, as all of MMRazor's own configs have."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    kept = tmp_path / "checkpoints" / "resnet18_8xb32_in1k_20210831-fbbb1da6.pth"
    with pytest.raises(DataError) as caught:
        model_of(float_checkpoint=CHECKPOINT)
    assert caught.value.to_do == f"download {CHECKPOINT} to {kept}, or set float_checkpoint to where you have it"
    assert "nothing is downloaded" in caught.value.found
    kept.parent.mkdir()
    other = ImageClassifier()
    torch.save({"state_dict": other.state_dict()}, kept)
    found = detent.float_state_dict(model_of(float_checkpoint=CHECKPOINT).prepared)
    assert torch.equal(found["head.fc.weight"], other.head.fc.weight)


def test_000_14_is_qat():
    """quantizer is_qat=True."""
    described = {"type": "OpenVINOQuantizer", "tracer": {"skipped_methods": METHODS}}
    fixed = qconfig("FakeQuantize", "PerChannelMinMaxObserver", "MinMaxObserver")
    for is_qat, folded in ((True, 2), (False, 0)):
        model = model_of({**described, "global_qconfig": fixed, "is_qat": is_qat})
        assert sum(isinstance(module, FoldedBatchNorm) for module in model.modules()) == folded
    with pytest.raises(RecipeError, match="is_qat=False"):
        MODELS.build({**described, "global_qconfig": qconfig(), "is_qat": False})


def test_000_15_openvino_quantizer_in_the_first_block_s_spelling():
    """OpenvinoQuantizer (spelling of the first block)."""
    assert model_of("OpenvinoQuantizer").prepared.backend.name == "openvino"


def test_000_16_openvino_quantizer_and_its_engine(cfg, tmp_path):
    """OpenVINOQuantizer: trained and deployed; OpenVINO's outputs are those that were simulated."""
    pytest.importorskip("openvino", reason="the deployed model is run by it")
    runner = runner_of(cfg)
    metrics = runner.train()
    assert metrics["quantized.top1"] > 0.7  # a third by chance; how far so few steps get depends on the CPU
    images = ready(runner.model.eval())
    artifact = runner.model.deploy(tmp_path / "out")
    (answers,) = ENGINES["openvino"].load(artifact).run({"inputs": images.numpy()}).values()
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(answers), runner.model(images), rtol=0, atol=1e-5)


def test_000_17_tensorrt_quantizer():
    """TensorRTQuantizer (qint8 activations)."""
    model = model_of("TensorRTQuantizer", config=qconfig(a={"qdtype": "qint8"}))
    assert set(schemes(model, "activation").values()) == {"int8 symmetric per-tensor"}
    _, metrics = trained(model)
    assert metrics["quantized.top1"] > 0.5


def test_000_18_academic_quantizer_with_qconfig_mapping():
    """AcademicQuantizer with `qconfig_mapping`: a name comes before a class, a class before `_global_`."""
    mapping = {
        "_global_": qconfig(w={"bit": 8}),
        "object_type": [("torch.nn.Linear", qconfig(w={"bit": 6}))],
        "module_name": [("backbone.3", qconfig(w={"bit": 3}, a={"bit": 5}))],
    }
    quantizer = {"type": "AcademicQuantizer", "qconfig_mapping": mapping, "tracer": {"skipped_methods": METHODS}}
    model = model_of(quantizer)
    bits = {name: scheme.split()[0] for name, scheme in schemes(model, "weight").items()}
    assert bits == {"backbone.0.weight": "int8", "backbone.3.weight": "int3", "head.fc.weight": "int6"}
    assert schemes(model, "activation")["backbone_2"] == "uint5 symmetric per-tensor"
    only = {**quantizer, "qconfig_mapping": {"module_name": [("backbone", qconfig(w={"bit": 4}))]}}
    assert set(schemes(model_of(only), "weight")) == {"backbone.0.weight", "backbone.3.weight"}
    wrong = {**quantizer, "qconfig_mapping": {"module_name": [("backbone.33", qconfig())]}}
    with pytest.raises(RecipeError, match=r"module_name 'backbone.33'(.|\n)*did you mean 'backbone.3'"):
        model_of(wrong)


class TwoBranches(ImageClassifier):
    """Both convolutions at the end of the backbone read the same tensor."""

    def __init__(self):
        super().__init__()
        self.side = nn.Conv2d(8, 8, 1)

    def forward(self, inputs, data_samples=None, mode="tensor"):
        conv, norm, act, *others = self.backbone
        shared = x = act(norm(conv(inputs)))
        for layer in others:
            x = layer(x)
        return self.head(x.mean((2, 3)) + self.side(shared).mean((2, 3)))


def test_a_request_for_a_tensor_that_others_read_too_is_noted():
    """`module_name` with fewer activation bits than another reader of the tensor asks for."""
    mapping = {"_global_": qconfig(), "module_name": [("side", qconfig(a={"bit": 4}))]}
    quantizer = {"type": "AcademicQuantizer", "qconfig_mapping": mapping, "tracer": {"skipped_methods": METHODS}}
    plan = model_of(quantizer, TwoBranches()).prepared.plan
    assert plan["backbone_2"].scheme.grid.bits == 8
    note = next(note for note in plan.notes if note.startswith("side asks for bits 4 of backbone_2, and gets uint8"))
    assert note.endswith("backbone.3 reads it too, and a tensor has one grid, the widest asked for")


@pytest.mark.parametrize(
    ("quantizer", "a", "codes"),
    [
        ("NativeQuantizer", {}, "affine"),
        ("OpenVINOQuantizer", {}, "signed, or from 0 on where nothing is negative"),
        ("OpenVINOQuantizer", {"is_symmetry": False}, None),
        ("TensorRTQuantizer", {"qdtype": "qint8"}, None),
    ],
)
def test_the_plan_says_what_symmetric_quint8_becomes(quantizer, a, codes):
    """`a_qscheme=dict(qdtype='quint8', bit=8, is_symmetry=True)`."""
    notes = model_of(quantizer, config=qconfig(a=a)).prepared.plan.notes
    found = [note for note in notes if note.startswith("a_qscheme asks for symmetric quint8")]
    assert len(found) == (codes is not None)
    assert codes is None or f"its codes are {codes}, and" in found[0]


@pytest.mark.parametrize("loop", ["LSQEpochBasedLoop", "QATEpochBasedLoop"])
def test_000_19_native_quantizer_trains_past_the_first_epoch(loop):
    """NativeQuantizer: the document's a_qscheme, three epochs."""
    model = model_of("NativeQuantizer")
    assert set(schemes(model, "activation").values()) == {"uint8 affine per-tensor"}  # the codes torch's kernels have
    runner, metrics = trained(model, loop=loop)
    assert metrics["quantized.top1"] > 0.5
    assert all(quantizer.calibrated for quantizer in quantizers_of(runner.model.prepared))


def test_000_20_a_quantizer_with_the_document_s_methods():
    """class BaseQuantizer: __init__(tracer), TASK_UTILS.build; prepare(model, graph_module)."""

    class Bare(BaseModule):
        def __init__(self, tracer):
            super().__init__()
            self.tracer = TASK_UTILS.build(tracer)

        @abstractmethod
        def prepare(self, model, graph_module):
            """tmp."""
            pass  # noqa: PIE790

        def swap_ff_with_fxff(self, model):
            pass

    bare = Bare({"type": "mmrazor.CustomTracer", "skipped_methods": METHODS})
    assert isinstance(bare.tracer, CustomTracer)
    line = Bare.prepare.__code__.co_firstlineno
    with pytest.raises(
        RegistrationError, match=rf"line {line} of (.|\n)*gives a NoneType(.|\n)*return super\(\)\.prepare"
    ):
        model_of(bare)
    seen = {}

    class Looking(NativeQuantizer):
        backend = "openvino"

        def prepare(self, model, graph_module):
            seen[type(model)] = [str(node.target) for node in graph_module.graph.nodes if node.op == "call_module"]
            return super().prepare(model, graph_module)

    model = model_of(Looking(qconfig(), {"skipped_methods": METHODS}))
    assert seen[ImageClassifier][:3] == ["backbone.0", "backbone.1", "backbone.2"]
    assert model.prepared.backend.name == "openvino"


class FloatFunctional(nn.Module):
    """As torch's: what it gives goes through a module, which would be observed."""

    def __init__(self):
        super().__init__()
        self.activation_post_process = nn.Identity()

    def add(self, x, y):
        return self.activation_post_process(torch.add(x, y))


class Residual(ImageClassifier):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.branch, self.sum = nn.Conv2d(8, 8, 1), FloatFunctional()

    def forward(self, inputs, data_samples=None, mode="tensor"):
        feats = self.backbone(inputs)
        feats = self.sum.add(feats, self.branch(feats)).mean((2, 3))
        return self.head.loss(feats, data_samples) if mode == "loss" else self.head(feats)


def test_000_21_swap_ff_with_fxff():
    """BaseQuantizer.swap_ff_with_fxff."""
    net = Residual()
    BaseQuantizer.swap_ff_with_fxff(NativeQuantizer(qconfig()), net)
    assert isinstance(net.sum, FXFloatFunctional)
    assert net.sum.add_relu(torch.tensor(-2.0), torch.tensor(1.0)) == 0
    net = Residual()
    model = model_of(net=net)
    assert isinstance(net.sum, FXFloatFunctional)  # done before tracing
    assert model.prepared.plan["add"].kind == "add"
    assert {"add", "backbone_1"} <= set(schemes(model, "activation"))


def test_000_22_a_quantizer_for_another_backend_trains_past_the_first_epoch():
    """'develop a quantizer based on other backends': class Q(NativeQuantizer): backend = 'litert'."""

    @MODELS.register_module()
    class LiteRTQuantizer(NativeQuantizer):
        backend = "litert"

    model = model_of("LiteRTQuantizer", config=qconfig(a={"qdtype": "qint8", "is_symmetry": False}))
    _, metrics = trained(model)
    assert model.prepared.backend.name == "litert"
    assert metrics["quantized.top1"] > 0.5


def test_000_23_skipped_methods():
    """CustomTracer with skipped_methods."""
    tracer = {"type": "mmrazor.CustomTracer"}
    described = {"type": "OpenVINOQuantizer", "global_qconfig": qconfig()}
    whole = model_of({**described, "tracer": {**tracer, "skipped_methods": METHODS}}).prepared.graphs["predict"]
    assert "head__get_predictions" in [str(node.target) for node in whole.nodes]
    open_ = model_of({**described, "tracer": {**tracer, "skipped_methods": METHODS[:1]}}).prepared.graphs["predict"]
    assert "softmax" in [str(node.target) for node in open_.nodes]


def test_000_24_a_tracer_with_a_constructor_of_its_own():
    """Inherit CustomTracer, own constructor, registered in TASK_UTILS."""

    @TASK_UTILS.register_module()
    class HeadTracer(CustomTracer):
        def __init__(self, keep):
            super().__init__(skipped_methods=METHODS, skipped_module_names=[keep])

    tracer = {"type": "HeadTracer", "keep": "head"}
    quantizer = {"type": "OpenVINOQuantizer", "global_qconfig": qconfig(), "tracer": tracer}
    model = model_of(quantizer, forward_modes=("tensor",))
    assert "head" in [str(node.target) for node in model.prepared.graphs["tensor"].nodes]
    assert "head.fc.weight" not in schemes(model, "weight")


def test_000_25_a_tracer_with_methods_of_its_own():
    """'inherit this class and customize your own tracer': is_leaf_module and trace are called."""
    traced = []

    class Mine(CustomTracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, ClsHead) or super().is_leaf_module(m, module_qualified_name)

        def trace(self, root, concrete_args=None):
            graph = super().trace(root, concrete_args)
            traced.append((type(root), concrete_args["mode"]))
            return graph

    quantizer = NativeQuantizer(qconfig(), Mine(skipped_methods=METHODS))
    model = model_of(quantizer, forward_modes=("tensor",))
    assert traced == [(ImageClassifier, "tensor")]
    assert "head" in [str(node.target) for node in model.prepared.graphs["tensor"].nodes]
    assert set(schemes(model, "weight")) == {"backbone.0.weight", "backbone.3.weight"}


def own(model: MMArchitectureQuant, name: str) -> Quantizer:
    return next(quantizer for quantizer in quantizers_of(model.prepared) if quantizer.name == name)


def test_000_26_a_fake_quantizer_whose_scale_has_one_element(tmp_path):
    """Own LearnableFakeQuantize (signature verbatim, scale=Parameter(tensor([scale])))."""
    theirs = register_fake_quant()
    model = model_of()
    quantizer = own(model, "inputs")
    assert type(quantizer).theirs is theirs
    assert tuple(quantizer.scale.shape) == (1,)
    assert tuple(own(model, "backbone.0.weight").scale.shape) == (8,)
    model.calibrate_step(Pictures().images)
    start = quantizer.scale.detach().clone()
    _, metrics = trained(model)
    assert metrics["quantized.top1"] > 0.5
    assert not torch.equal(quantizer.scale.detach(), start)  # it is learned
    verdict = model.deploy(tmp_path / "out").verify([ready(model)])
    assert verdict.holds


def test_000_27_a_fake_quantizer_makes_the_observer_of_the_config():
    """Own LearnableFakeQuantize that makes the observer it is given, observer(quant_min=.., quant_max=.., **kwargs)."""
    register_fake_quant()
    moving = qconfig(a_observer="MovingAverageMinMaxObserver", a={"averaging_constant": 0.25})
    model = model_of(config=moving)
    observer = own(model, "inputs").activation_post_process
    assert type(observer).__name__ == "MovingAverageMinMaxObserver"
    assert (observer.averaging_constant, observer.quant_min, observer.quant_max) == (0.25, -128, 127)
    assert (observer.dtype, observer.qscheme) == (torch.qint8, torch.per_tensor_symmetric)
    weight = own(model, "backbone.0.weight").activation_post_process
    assert isinstance(weight, LSQPerChannelObserver)
    assert (weight.ch_axis, weight.quant_min, weight.qscheme) == (0, -127, torch.per_channel_symmetric)
    for value, expected in ((4.0, 4.0), (8.0, 5.0)):
        observer(torch.tensor([-value, value]))
        assert float(observer.max_val) == expected


def test_000_28_mmrazor_s_finished_lsq():
    """MMRazor's finished fake_quants/lsq.py and observers/lsq.py, imports changed: learned, or measured if switched."""
    register_fake_quant()
    register_observer()
    register_channel_observer()
    model = model_of()
    model.calibrate_step(Pictures().images)
    quantizer, images = own(model, "inputs"), ready(model)
    assert int(quantizer.static_enabled) == 0
    with torch.no_grad():
        quantizer.scale.mul_(2)
    doubled = float(quantizer.scale.detach())
    model(images)
    assert float(quantizer.scale.detach()) == doubled
    model.apply(lambda module: module.enable_static_estimate() if hasattr(module, "enable_static_estimate") else None)
    model.apply(enable_static_estimate)
    model(images)
    assert float(quantizer.scale.detach()) == pytest.approx(doubled / 2)
    assert not quantizer.scale.requires_grad
    _, metrics = trained(model)
    assert metrics["quantized.top1"] > 0.5


def test_000_29_what_calculate_qparams_gives_is_deployed(tmp_path):
    """calculate_qparams of an own fake quantizer is what is deployed."""

    @MODELS.register_module()
    class Absolute(FakeQuantizeBase):
        def __init__(self, observer, quant_min, quant_max, **observer_kwargs):
            super().__init__()
            self.activation_post_process = observer(quant_min=quant_min, quant_max=quant_max, **observer_kwargs)
            self.quant_min, self.quant_max = quant_min, quant_max
            self.scale = nn.Parameter(torch.ones(1))
            self.register_buffer("zero_point", torch.zeros(1))

        def calculate_qparams(self):
            return self.scale.abs(), self.zero_point

        def forward(self, X):  # noqa: N803
            return (X / self.scale.abs()).round().clamp(self.quant_min, self.quant_max) * self.scale.abs()

    model = model_of(config=qconfig(a_fake_quant={"type": "Absolute"}))
    model.calibrate_step(Pictures().images)
    with torch.no_grad():
        own(model, "inputs").scale.fill_(-0.03125)
    artifact = model.deploy(tmp_path / "out")
    graph = onnx.load(artifact.folder / "model.onnx").graph
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "inputs")
    stored = next(one for one in graph.initializer if one.name == first.input[1])
    assert float(onnx.numpy_helper.to_array(stored)) == 0.03125


def test_000_30_the_document_s_observer():
    """LSQObserverMixIn + LSQObserver verbatim (torch.jit.export, sync_tensor): scale = 2 mean|x| / sqrt(127)."""
    theirs = register_observer()
    model = model_of()
    assert model.prepared.plan["inputs"].observer == "mmrazor.LSQObserver"
    assert theirs(quant_min=-128, quant_max=127, dtype=torch.qint8).quant_max == 127
    model.calibrate_step(Pictures().images)
    expected = 2 * float(ready(model).abs().mean()) / math.sqrt(127)
    assert float(own(model, "inputs").scale.detach()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("scale = math.sqrt(self.quant_max)", "write import math at the top of that file"),
        ("sync_tensor(scale)", "write from detent.compat.mmrazor import sync_tensor at the top of that file"),
        ("return scales, zero_point", "define scales, or did you mean 'scale'?"),
    ],
)
def test_000_30_names_that_the_document_does_not_import(line, remedy):
    """LSQObserver as printed, which imports neither math nor sync_tensor: answered with the line and the remedy."""
    source = f"def calculate_qparams(self):\n    scale, zero_point = 1.0, 0\n    {line}\n"
    names: dict[str, object] = {}
    exec(source, names)  # where the names of this file are not there
    MODELS.register_module("LSQObserver")(type("LSQObserver", (MinMaxObserver,), names))
    with pytest.raises(RunError) as caught:
        model_of().calibrate_step(Pictures().images)
    assert caught.value.asked == "LSQObserver: calculate_qparams for 'inputs'"
    assert caught.value.found.startswith("<string>, line 3:")
    assert caught.value.to_do == remedy


def test_000_31_lsq_observer_built_in():
    """LSQObserver built in: the same numbers."""
    x = torch.randn(1000)
    both = [kind(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric) for kind in (LSQObserver, register_observer())]
    for observer in both:
        observer(x)
    (scale, zero_point), (theirs, _) = (observer.calculate_qparams() for observer in both)
    assert scale.tolist() == pytest.approx([2 * float(x.abs().mean()) / math.sqrt(127)])
    assert (scale.tolist(), zero_point.tolist()) == (pytest.approx(theirs.reshape(-1).tolist()), [0])
    MODELS._own.pop("LSQObserver")
    model = model_of()
    assert model.prepared.plan["inputs"].observer == "lsq"
    model.calibrate_step(Pictures().images)
    expected = 2 * float(ready(model).abs().mean()) / math.sqrt(127)
    assert float(own(model, "inputs").scale.detach()) == pytest.approx(expected, rel=1e-5)


def test_000_32_lsq_per_channel_observer_built_in():
    """LSQPerChannelObserver built in: 2 mean|w| / sqrt(127) of each channel of the folded weight."""
    model = model_of()
    folded = next(module for module in model.modules() if isinstance(module, FoldedBatchNorm))
    weight = folded.weight.detach()
    model.calibrate_step(Pictures().images)
    expected = 2 * weight.abs().flatten(1).mean(1) / math.sqrt(127)
    scale = own(model, "backbone.0.weight").scale.detach()
    torch.testing.assert_close(scale, expected, rtol=1e-5, atol=0)


def test_000_33_per_channel_min_max_observer():
    """PerChannelMinMaxObserver to derive LSQPerChannelObserver from."""
    theirs = register_channel_observer()
    assert issubclass(theirs, PerChannelMinMaxObserver)
    observer = theirs(dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=1)
    assert observer.min_val.numel() == 0
    x = torch.randn(4, 3, 5)
    observer(x)
    expected = 2 * x.abs().mean((0, 2)) / math.sqrt(127)
    torch.testing.assert_close(observer.calculate_qparams()[0], expected)
    assert observer.max_val.tolist() == x.amax((0, 2)).tolist()
    model = model_of()
    model.calibrate_step(Pictures().images)
    weight = model.prepared.head.fc.parametrizations.weight.original.detach()
    expected = 2 * weight.abs().mean(1) / math.sqrt(127)
    torch.testing.assert_close(own(model, "head.fc.weight").scale.detach(), expected, rtol=1e-5, atol=0)


def test_000_34_register_module_instead_of_editing_init():
    """register_module instead of editing __init__.py: what is registered comes before what is built in."""
    theirs = register_fake_quant()
    assert MODELS.get("mmrazor.LearnableFakeQuantize") is theirs
    assert model_of().prepared.plan["inputs"].quantizer.startswith("mmrazor.LearnableFakeQuantize")
    MODELS._own.pop("LearnableFakeQuantize")
    assert model_of().prepared.plan["inputs"].quantizer == "lsq"


def test_000_35_ptq_loop_in_test_cfg():
    """PTQLoop: in test_cfg, with runner.test()."""
    model = model_of(config=qconfig("FakeQuantize", "PerChannelMinMaxObserver", "MinMaxObserver"))
    calibration = {"dataset": Pictures(24), "batch_size": 8}
    test_cfg = {"type": "mmrazor.PTQLoop", "calibrate_dataloader": calibration, "calibrate_steps": 2}
    runner = Runner(model, test_dataloader=data(), test_cfg=test_cfg)
    metrics = runner.test()
    assert metrics["agreement"] > 0.9
    largest = float(ready(model)[:16].abs().max())  # of two batches of eight
    assert float(own(model, "inputs").qparams().scale) == pytest.approx(largest / 127.5, rel=0.005)
    again = PTQLoop(Runner(model, test_dataloader=data(), val_dataloader=data()), data(), only_val=True).run()
    assert again["quantized.top1"] == metrics["quantized.top1"]


def test_000_36_qat_epoch_based_loop():
    """QATEpochBasedLoop incl. val_begin, val_interval, disable_observer_begin."""
    model = model_of(config=qconfig("FakeQuantize", "PerChannelMinMaxObserver", "MinMaxObserver"))
    ranges, validated = [], []

    class Watching(QATEpochBasedLoop):
        def run_epoch(self):
            ranges.append(float(own(model, "backbone_5").qparams().scale))
            super().run_epoch()

        def run_val(self):
            validated.append(self.epoch)
            return super().run_val()

    runner = Runner(model, val_dataloader=data(24), optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.05}})
    Watching(runner, data(), 6, val_begin=2, val_interval=3, disable_observer_begin=4).run()
    assert validated == [2, 5, 6]
    assert ranges[0] != ranges[1] != ranges[2]
    assert ranges[2] == ranges[3] == ranges[4] == ranges[5]


def test_000_37_lsq_epoch_based_loop():
    """LSQEpochBasedLoop."""
    model = model_of()
    runner, metrics = trained(model)
    assert isinstance(LSQEpochBasedLoop(runner, data(), 1), QATEpochBasedLoop)
    learned = own(model, "inputs").scale.detach().clone()
    model.calibrate_step(Pictures().images)
    assert not torch.equal(own(model, "inputs").scale.detach(), learned)
    assert metrics["quantized.top1"] > 0.5


def test_000_38_a_loop_of_one_s_own_with_super(cfg):
    """Own LSQEpochBasedLoop: constructor verbatim, three hooks extended by super()."""
    order = []
    Empty = register_loop()  # noqa: N806

    class LSQEpochLoop(Empty):
        def prepare_for_run_epoch(self):
            order.append("epoch")
            QATEpochBasedLoop.prepare_for_run_epoch(self)

        def prepare_for_val(self):
            order.append("val")
            QATEpochBasedLoop.prepare_for_val(self)

        def run_epoch(self):
            order.append(f"run, first {self.is_first_batch}")
            QATEpochBasedLoop.run_epoch(self)

    LOOPS.register_module("LSQEpochBasedLoop", force=True)(LSQEpochLoop)
    cfg["train_cfg"]["max_epochs"] = 1
    metrics = runner_of(cfg).train()
    assert order == ["epoch", "run, first True", "val", "val"]
    assert set(metrics) >= {"quantized.top1", "float.top1"}


def test_000_39_a_loop_with_empty_bodies(cfg):
    """Own LSQEpochBasedLoop with `pass` bodies: the line, and what to write there."""
    loop = register_loop()
    with pytest.raises(DataError) as caught:
        runner_of(cfg).train()
    line = loop.run_epoch.__code__.co_firstlineno
    assert caught.value.found.startswith(f"its run_epoch, line {line} of ")
    assert "super().run_epoch()" in caught.value.to_do


def test_000_40_run_epoch_with_dataloader_and_run_iter(cfg):
    """run_epoch written with self.dataloader and self.run_iter(idx, data_batch)."""
    Empty, seen = register_loop(), []  # noqa: N806

    class LSQEpochLoop(Empty):
        """MMRazor's own `run_epoch`; the other bodies stay empty."""

        def run_epoch(self):
            self.runner.call_hook("before_train_epoch")
            self.runner.model.train()
            for idx, data_batch in enumerate(self.dataloader):
                self.run_iter(idx, data_batch)
                seen.append((self._epoch, idx))
            self.runner.model.sync_qparams(src_mode="loss")
            self.prepare_for_val()
            self.runner.call_hook("after_train_epoch")
            self._epoch += 1

    class Hook:
        def __init__(self):
            self.calls = []

        def after_train_iter(self, runner, batch_idx, data_batch, outputs):
            self.calls.append((batch_idx, len(data_batch[0]), outputs["loss"] > 0))

        def after_train_epoch(self, runner):
            self.calls.append("epoch")

    LOOPS.register_module("LSQEpochBasedLoop", force=True)(LSQEpochLoop)
    cfg["train_cfg"]["max_epochs"] = 3
    runner, hook = runner_of(cfg), Hook()
    runner.register_hook(hook)
    metrics = runner.train()
    assert seen == [(epoch, idx) for epoch in range(3) for idx in range(6)]
    assert hook.calls[:7] == [(idx, 8, True) for idx in range(6)] + ["epoch"]
    assert metrics["quantized.top1"] > 0.5


def test_000_41_freeze_bn_begin():
    """freeze_bn_begin: batch norms are trained, and keep their statistics from that epoch on."""
    model = model_of()
    norms = [module.bn for module in model.modules() if isinstance(module, FoldedBatchNorm)]
    assert len(norms) == 2
    gains = [norm.weight.detach().clone() for norm in norms]
    means = []

    class Watching(LSQEpochBasedLoop):
        def run_epoch(self):
            super().run_epoch()
            means.append(torch.cat([norm.running_mean for norm in norms]))

    runner = Runner(model, val_dataloader=data(24), optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.05}})
    Watching(runner, data(), 4, val_interval=4, freeze_bn_begin=3).run()
    assert not torch.equal(means[0], means[1])
    assert torch.equal(means[1], means[2])
    assert torch.equal(means[2], means[3])
    assert all(not torch.equal(norm.weight.detach(), gain) for norm, gain in zip(norms, gains, strict=True))
    other = model_of()
    other.apply(freeze_bn_stats)
    assert all(module.frozen for module in other.modules() if isinstance(module, FoldedBatchNorm))


def test_000_42_empty_dicts_keep_the_base(cfg):
    """optim_wrapper = dict(), param_scheduler = dict(), model_wrapper_cfg = dict(): merged over the base."""
    assert cfg.optim_wrapper["optimizer"] == {"type": "SGD", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.0001}
    assert cfg.model_wrapper_cfg == {}
    run = runner_of(cfg).run_on(data())
    assert [run.schedule.factor(6 * epoch) for epoch in (99, 100, 150)] == pytest.approx([1.0, 0.1, 0.01])


def test_000_43_train_cfg_over_the_base(files):
    """train_cfg = dict(type=LSQEpochBasedLoop) over the base: its max_epochs is kept."""
    found = read(files, FIRST + GAPS.format(checkpoint=None) + DOCUMENT)
    expected = {"by_epoch": True, "max_epochs": 200, "val_interval": 1, "type": "mmrazor.LSQEpochBasedLoop"}
    assert found.train_cfg == expected


def test_000_44_val_and_test(cfg):
    """test_cfg = val_cfg: runner.val() and runner.test()."""
    assert cfg.test_cfg == cfg.val_cfg == {}
    cfg["train_cfg"]["max_epochs"] = 1
    runner = runner_of(cfg, test_dataloader=data(48))
    last = runner.train()
    assert runner.val() == pytest.approx(last)
    tested = runner.test()
    assert set(tested) == set(last)
    assert tested["quantized.loss"] != last["quantized.loss"]  # other images


def test_000_45_the_file_takes_images_of_the_data(cfg, tmp_path):
    """Deploying the document's config: its base is CIFAR, and the file takes 32x32."""
    cfg["train_cfg"]["max_epochs"] = 1
    runner = Runner.from_cfg(cfg, train_dataloader=data(16, size=32), val_dataloader=data(8, size=32))
    runner.train()
    artifact = runner.model.deploy(tmp_path / "out")
    dims = onnx.load(artifact.folder / "model.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims][1:] == [3, 32, 32]
    assert artifact.verify([runner.model.data_preprocessor(Pictures(8, size=32).images)]).holds
    made = MMArchitectureQuant(Classifier(), cfg.model["quantizer"])
    assert (made.input_shapes, Runner(made, val_dataloader=data(8)).model.input_shapes) == (
        (1, 3, 224, 224),
        (1, 3, 8, 8),
    )


def test_000_46_the_linked_config_runs_as_it_is(files):
    """The linked config (qat base): model_wrapper_cfg, ConstantLR(factor=1.0), QATValLoop."""
    fixed = (
        DOCUMENT.partition("# learning policy")[0]
        .replace("LSQPerChannelObserver", "PerChannelMinMaxObserver")
        .replace("LSQObserver", "MovingAverageMinMaxObserver")
        .replace("LearnableFakeQuantize", "FakeQuantize")
        .replace("    float_checkpoint=float_ckpt,\n", "")
    )
    found = read(files, FIRST + "resnet = _base_.model\n" + fixed + QAT)
    found["train_cfg"]["max_epochs"] = 1
    runner = runner_of(found)
    assert runner.run_on(data()).schedule.factor(0) == 1.0
    assert set(runner.train()) == set(runner.val())
    third = schedule_of({"type": "ConstantLR", "factor": 0.25, "end": 3}, lr=1.0, steps_per_epoch=10)
    assert [third.factor(step) for step in (0, 19, 20)] == [0.25, 0.25, 1.0]


def test_000_47_mmrazor_s_ptq_config(files):
    """MMRazor's PTQ configs: `_base_.val_dataloader.batch_size = 32`, `dict({0: 'batch'})`."""
    (files / "deploy_cfg.py").write_text(DEPLOY)
    found = read(files, PTQ)
    assert found.val_dataloader["batch_size"] == 32
    assert found.test_cfg["calibrate_dataloader"] == found.val_dataloader
    assert found.deploy_cfg["onnx_config"]["dynamic_axes"]["input"] == {0: "batch", 2: "height", 3: "width"}
    with pytest.warns(DeployConfigWarning, match="any number of images of 8x8"):
        runner = runner_of(found)
    assert runner.test()["agreement"] > 0.9
    assert all(quantizer.calibrated for quantizer in quantizers_of(runner.model.prepared))
    for text in ("_base_.nothing.here = 1", "x = dict([1])", "x = {**3}", "_base_.val_dataloader[open('a')] = 1"):
        with pytest.raises(RecipeError, match="line 2 of"):
            read(files, FIRST + text)
    assert read(files, FIRST + "x = {{_base_.val_dataloader}}").x["batch_size"] == 16


def test_000_48_deploy_cfg(files):
    """deploy_cfg of MMArchitectureQuant: the backend and the size of the input."""
    deploy_cfg = read(files, DEPLOY).deploy_cfg
    with pytest.warns(DeployConfigWarning):
        assert model_of(deploy_cfg=deploy_cfg, input_shapes=None).input_shapes == (1, 3, 8, 8)
    with pytest.warns(DeployConfigWarning):
        assert model_of(deploy_cfg=str(files / "config.py"), input_shapes=None).input_shapes == (1, 3, 8, 8)
    other = {"backend_config": {"type": "tensorrt"}}
    with pytest.raises(RecipeError, match="deploy_cfg for 'tensorrt'\nfound: the quantizer is for 'openvino'"):
        model_of(deploy_cfg=other, input_shapes=None)
    sized = {"onnx_config": {"input_shape": [16, 12]}}  # width first
    assert model_of(deploy_cfg=sized, input_shapes=None).input_shapes == (1, 3, 12, 16)


def test_000_49_data_sets_of_the_config(cfg, tmp_path, monkeypatch):
    """Data sets and pipelines of the config: CIFAR10 from its files; a class that is registered; else objects."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"put cifar-10-binary\.tar\.gz"):
        Runner.from_cfg(cfg).train()
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3073), dtype=np.uint8)
    pixels[:, 0] = [0, 1, 2, 0]
    for name in (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(pixels.tobytes())
    cfg["train_cfg"]["max_epochs"] = 1
    runner = Runner.from_cfg(cfg)
    assert set(runner.train()) >= {"quantized.top1"}
    batches = runner.run_on(runner.train_dataloader).train
    assert tuple(next(iter(batches))[0].shape) == (16, 3, 32, 32)
    first, batches.epoch = next(iter(batches))[0], 1
    assert not torch.equal(first, next(iter(batches))[0])  # drawn anew: cropped, mirrored
    plain = Runner.from_cfg(cfg).run_on(cfg.val_dataloader).train
    image = torch.from_numpy(pixels[0, 1:].reshape(3, 32, 32).copy()).float()
    torch.testing.assert_close(next(iter(plain))[0][0], runner.model.data_preprocessor(image))
    cfg["train_dataloader"]["dataset"]["type"] = "ImageNet"
    with pytest.raises(DataError, match="the data set 'ImageNet' of a config"):
        Runner.from_cfg(cfg).train()

    @DATASETS.register_module()
    class ImageNet(Pictures):
        def __init__(self, data_root, split, pipeline):
            super().__init__(16, size=32)

    assert set(Runner.from_cfg(cfg).train()) >= {"quantized.top1"}
