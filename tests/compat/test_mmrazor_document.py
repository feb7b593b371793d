"""MMRazor's "Customize Quantization algorithms", step by step: its code with only the imports changed."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from pathlib import Path
from types import ModuleType
from typing import Dict, List, Optional, Tuple, Union  # noqa: UP035, as in the document

import pytest
import torch
from torch.utils.data import DataLoader

import detent
from detent.compat.mmrazor import (
    LOOPS,
    MODELS,
    TASK_UTILS,
    BaseModule,
    Config,
    CustomTracer,
    FakeQuantizeBase,
    MinMaxObserver,
    QATEpochBasedLoop,
    Runner,
    sync_tensor,
)
from detent.errors import RecipeError
from detent.targets.engines import ENGINES
from tests.compat.mmrazor_nets import BASE, ClsHead, ImageClassifier, Pictures, ResNetClassifier

# ## Overall
OVERALL = """
global_qconfig = dict(
    w_observer=dict(),
    a_observer=dict(),
    w_fake_quant=dict(),
    a_fake_quant=dict(),
    w_qscheme=dict(),
    a_qscheme=dict(),
)
model = dict(
    type='mmrazor.MMArchitectureQuant',
    architecture=resnet,
    quantizer=dict(
        type='mmrazor.OpenvinoQuantizer',
        global_qconfig=global_qconfig,
        tracer=dict()))
train_cfg = dict(type='mmrazor.LSQEpochBasedLoop')
"""

# ## 7. Use the algorithm in your config file, as it stands there, but for the three names it leaves open.
GAPS = """
resnet = _base_.model
float_ckpt = {checkpoint!r}
"""
DOCUMENT = """
global_qconfig = dict(
    w_observer=dict(type='mmrazor.LSQPerChannelObserver'),
    a_observer=dict(type='mmrazor.LSQObserver'),
    w_fake_quant=dict(type='mmrazor.LearnableFakeQuantize'),
    a_fake_quant=dict(type='mmrazor.LearnableFakeQuantize'),
    w_qscheme=dict(
        qdtype='qint8', bit=8, is_symmetry=True, is_symmetric_range=True),
    a_qscheme=dict(qdtype='quint8', bit=8, is_symmetry=True),
)

model = dict(
    _delete_=True,
    _scope_='mmrazor',
    type='MMArchitectureQuant',
    data_preprocessor=dict(
        type='mmcls.ClsDataPreprocessor',
        num_classes=1000,
        # RGB format normalization parameters
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        # convert image from BGR to RGB
        to_rgb=True),
    architecture=resnet,
    float_checkpoint=float_ckpt,
    quantizer=dict(
        type='mmrazor.OpenVINOQuantizer',
        is_qat=True,
        global_qconfig=global_qconfig,
        tracer=dict(
            type='mmrazor.CustomTracer',
            skipped_methods=[
                'mmcls.models.heads.ClsHead._get_loss',
                'mmcls.models.heads.ClsHead._get_predictions'
            ])))

# learning policy
optim_wrapper = dict()
param_scheduler = dict()
model_wrapper_cfg = dict()

# train, val, test setting
train_cfg = dict(type='mmrazor.LSQEpochBasedLoop')
val_cfg = dict()
test_cfg = val_cfg
"""


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """What a test registers is gone after it; the architecture and its head stand for mmcls's."""
    heads = ModuleType("mmcls.models.heads")
    heads.ClsHead = ClsHead
    for name in ("mmcls", "mmcls.models"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, heads.__name__, heads)
    for registry in (MODELS, LOOPS, TASK_UTILS):
        monkeypatch.setattr(registry, "_own", {})
    MODELS.register_module()(ImageClassifier)
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def cfg(tmp_path: Path, request: pytest.FixtureRequest) -> Config:
    """The document's config, on a base of ours."""
    checkpoint = tmp_path / "float.pth"
    kind = getattr(request, "param", ImageClassifier)
    MODELS.register_module("ImageClassifier", force=True)(kind)
    torch.save({"state_dict": kind().state_dict()}, checkpoint)
    base = tmp_path / "mmcls" / "resnet" / "resnet18_8xb16_cifar10.py"
    base.parent.mkdir(parents=True)
    base.write_text(BASE)
    text = "_base_ = ['mmcls::resnet/resnet18_8xb16_cifar10.py']\n" + GAPS.format(checkpoint=str(checkpoint)) + DOCUMENT
    path = tmp_path / "lsq_openvino.py"
    path.write_text(text)
    found = Config.fromfile(path, scopes={"mmcls": tmp_path / "mmcls"})
    found["model"]["input_shapes"] = (2, 3, 8, 8)
    found["train_cfg"]["max_epochs"] = 10
    return found


def runner_of(cfg: Config, **options: object) -> Runner:
    data = {"dataset": Pictures(), "batch_size": 8, "sampler": {"shuffle": True}}
    val = {"dataset": Pictures(30, seed=1), "batch_size": 10}
    return Runner.from_cfg(cfg, train_dataloader=data, val_dataloader=val, **options)


def test_the_config_is_read_with_its_base(cfg):
    assert cfg["model"]["type"] == "MMArchitectureQuant"
    assert cfg["model"]["architecture"]["type"] == "ImageClassifier"  # `resnet` is the base's model
    assert "_delete_" not in cfg["model"]
    assert "width" not in cfg["model"]  # deleted with the base's model
    assert cfg["train_cfg"] == {
        "by_epoch": True, "max_epochs": 10, "val_interval": 1, "type": "mmrazor.LSQEpochBasedLoop",
    }  # fmt: skip
    assert cfg.optim_wrapper["optimizer"]["type"] == "SGD"  # an empty dict changes nothing


def test_the_overall_skeleton_is_read_and_says_what_it_lacks(tmp_path):
    path = tmp_path / "overall.py"
    path.write_text("resnet = dict(type='ImageClassifier')\n" + OVERALL)
    found = Config.fromfile(path)
    assert found.model["architecture"] == {"type": "ImageClassifier"}
    assert found.train_cfg == {"type": "mmrazor.LSQEpochBasedLoop"}
    with pytest.raises(RecipeError, match="it has no type"):
        MODELS.build(found.model["quantizer"])


def test_the_plan_is_what_the_qconfig_says(cfg):
    model = runner_of(cfg).model
    plan = model.prepared.plan
    weight = plan["backbone.0.weight"]
    assert (weight.quantizer, weight.observer) == ("lsq", "lsq")
    assert str(weight.scheme) == "int8 narrow symmetric per-channel(0)"
    assert str(plan["inputs"].scheme) == "int8 symmetric per-tensor"
    assert str(plan["backbone_2"].scheme) == "uint8 symmetric per-tensor"
    assert sorted(model.prepared.runners) == ["loss", "predict", "tensor"]


@pytest.mark.parametrize("cfg", [ImageClassifier, ResNetClassifier], indirect=True, ids=["small", "resnet18"])
def test_lsq_on_openvino_trains_deploys_and_is_as_accurate_as_simulated(cfg, tmp_path):
    pytest.importorskip("openvino", reason="the deployed model is run by it")
    cfg["train_cfg"]["val_interval"] = 10
    cfg["optim_wrapper"]["optimizer"]["lr"] = 0.02
    runner = runner_of(cfg)
    runner.train()
    model = runner.model.eval()
    pictures = Pictures(300, seed=1)
    images = model.data_preprocessor(pictures.images)
    with torch.no_grad():
        simulated = model(images).argmax(1)
        losses = model(images, pictures.labels, mode="loss")
    accuracy = float((simulated == pictures.labels).float().mean())
    # A third and 1.1 by chance. How far so few steps get depends on the order of float sums, and so on the CPU.
    assert accuracy > 0.7
    assert losses["loss"] < 0.8
    artifact = model.deploy(tmp_path / "out")
    engine = ENGINES["openvino"].load(artifact)
    (logits,) = engine.run({"inputs": images.numpy()}).values()
    deployed = torch.from_numpy(logits).argmax(1)
    assert float((deployed == pictures.labels).float().mean()) == accuracy
    assert torch.equal(deployed, simulated)


def document_fake_quant():
    """## 4. Develop new fakequant method"""

    @MODELS.register_module()
    class LearnableFakeQuantize(FakeQuantizeBase):
        def __init__(self,
                    observer,
                    quant_min=0,
                    quant_max=255,
                    scale=1.,
                    zero_point=0.,
                    use_grad_scaling=True,
                    zero_point_trainable=False,
                    **observer_kwargs):  # fmt: skip
            super(LearnableFakeQuantize, self).__init__()  # noqa: UP008
            self.activation_post_process = observer(**observer_kwargs)
            self.quant_min, self.quant_max, self.use_grad_scaling = quant_min, quant_max, use_grad_scaling
            self.scale = torch.nn.Parameter(torch.tensor([scale]))
            self.register_buffer("zero_point", torch.tensor([zero_point]))

        def observe_quant_params(self):
            print(f"scale: {self.scale}, zero_point: {self.zero_point}")

        def calculate_qparams(self):
            return self.scale.abs(), self.zero_point

        def forward(self, X):  # noqa: N803
            scale = self.scale.abs()
            if self.use_grad_scaling:
                factor = 1.0 / math.sqrt(X.numel() * self.quant_max)
                scale = scale * factor + (scale - scale * factor).detach()
            scale = scale.view(-1, *[1] * (X.ndim - 1)) if scale.numel() > 1 else scale
            inner = (X / scale).clamp(self.quant_min, self.quant_max)
            return (inner + (inner.round() - inner).detach()) * scale

    return LearnableFakeQuantize


class LSQObserverMixIn:
    """## 5. Develop new observer"""

    def __init__(self):
        self.tensor_norm = None

    @torch.jit.export
    def _calculate_scale(self):
        scale = 2 * self.tensor_norm / math.sqrt(self.quant_max)
        sync_tensor(scale)
        return scale


def document_observer():
    @MODELS.register_module()
    class LSQObserver(MinMaxObserver, LSQObserverMixIn):
        """LSQ observer.
        Paper: Learned Step Size Quantization. <https://arxiv.org/abs/1902.08153>
        """

        def __init__(self, *args, **kwargs):
            MinMaxObserver.__init__(self, *args, **kwargs)
            LSQObserverMixIn.__init__(self)

        def forward(self, x_orig):
            """Records the running minimum, maximum and tensor_norm of ``x``."""
            if x_orig.numel() == 0:
                return x_orig
            x = x_orig.detach()  # avoid keeping autograd tape
            x = x.to(self.min_val.dtype)
            self.tensor_norm = x.abs().mean()
            min_val_cur, max_val_cur = torch.aminmax(x)
            min_val = torch.min(min_val_cur, self.min_val)
            max_val = torch.max(max_val_cur, self.max_val)
            self.min_val.copy_(min_val)
            self.max_val.copy_(max_val)
            return x_orig

        @torch.jit.export
        def calculate_qparams(self):
            """Calculates the quantization parameters."""
            _, zero_point = MinMaxObserver.calculate_qparams(self)
            scale = LSQObserverMixIn._calculate_scale(self)
            return scale, zero_point

    return LSQObserver


def document_loop():
    """## 6. Select loop or develop new loop"""

    @LOOPS.register_module()
    class LSQEpochBasedLoop(QATEpochBasedLoop):
        def __init__(
                self,
                runner,
                dataloader: Union[DataLoader, Dict],  # noqa: UP006, UP007
                max_epochs: int,
                val_begin: int = 1,
                val_interval: int = 1,
                freeze_bn_begin: int = -1,
                dynamic_intervals: Optional[List[Tuple[int, int]]] = None) -> None:  # noqa: UP006, UP045  # fmt: skip
            super().__init__(
                runner,
                dataloader,
                max_epochs,
                val_begin,
                val_interval,
                freeze_bn_begin=freeze_bn_begin,
                dynamic_intervals=dynamic_intervals)  # fmt: skip

            self.is_first_batch = True

        def prepare_for_run_epoch(self):
            if self.is_first_batch:
                inputs, *_ = next(iter(self.work.train))
                detent.calibrate(self.work.prepared, [inputs])
                self.is_first_batch = False
            self.train_mode()

        def prepare_for_val(self):
            super().prepare_for_val()

        def run_epoch(self) -> None:
            super().run_epoch()

    return LSQEpochBasedLoop


def test_the_document_s_observer_starts_where_lsq_does(cfg):
    theirs = document_observer()
    model = runner_of(cfg).model
    entry = model.prepared.plan["inputs"]
    assert entry.observer.startswith("mmrazor.LSQObserver")
    images = model.data_preprocessor(Pictures().images)
    detent.calibrate(model.prepared, [images])
    quantizer = model.prepared.activation_quantizers["inputs"]
    assert float(quantizer.scale.detach()) == pytest.approx(2 * float(images.abs().mean()) / math.sqrt(127), rel=1e-5)
    assert theirs.__name__ == "LSQObserver"


def test_the_document_s_fake_quantizer_observer_and_loop_train_together(cfg, tmp_path):
    document_fake_quant()
    document_observer()
    loop = document_loop()
    runner = runner_of(cfg)
    assert runner.model.prepared.plan["backbone.0.weight"].quantizer.startswith("mmrazor.LearnableFakeQuantize")
    assert LOOPS.get("mmrazor.LSQEpochBasedLoop") is loop
    scale = runner.model.prepared.activation_quantizers["inputs"].scale
    metrics = runner.train()
    assert metrics["quantized.top1"] > 0.9
    learned = scale.detach().clone()
    detent.calibrate(runner.model.prepared, [runner.model.data_preprocessor(Pictures().images)])
    assert not torch.equal(learned, scale)  # it was moved away from where the observer puts it
    assert (runner.model.deploy(tmp_path / "out").folder / "model.onnx").is_file()


def test_the_document_s_base_quantizer():
    class BaseQuantizer(BaseModule):
        def __init__(self, tracer):
            super().__init__()
            self.tracer = TASK_UTILS.build(tracer)

        @abstractmethod
        def prepare(self, model, graph_module):
            """tmp."""
            pass  # noqa: PIE790

        def swap_ff_with_fxff(self, model):
            pass

    made = BaseQuantizer({"type": "mmrazor.CustomTracer", "skipped_methods": ["a.B.c"]})
    assert isinstance(made.tracer, CustomTracer)
    assert made.tracer.skip_methods == ("a.B.c",)
