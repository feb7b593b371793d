"""MMRazor's parts one by one: how configs are read, what a qconfig becomes, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader

from detent.compat.mmrazor import (
    LOOPS,
    MODELS,
    Config,
    FakeQuantizeBase,
    HistogramObserver,
    LearnableFakeQuantize,
    LSQEpochBasedLoop,
    MinMaxObserver,
    MMArchitectureQuant,
    MovingAveragePerChannelMinMaxObserver,
    NativeQuantizer,
    PerChannelMinMaxObserver,
    PTQLoop,
    QATEpochBasedLoop,
    Runner,
    disable_observer,
    enable_observer,
)
from detent.compat.mmrazor.adapters import quantizer_name
from detent.compat.mmrazor.checkpoint import load_float_checkpoint
from detent.compat.mmrazor.own_loss import total_loss
from detent.compat.mmrazor.qconfig import recipe_of
from detent.compat.mmrazor.schedule import schedule_of
from detent.errors import (
    DataError,
    DetentError,
    RangeError,
    RecipeError,
    RegistrationError,
    SchemeError,
    TensorError,
    UnknownNameError,
)
from detent.graph import quantizers_of
from detent.numerics import IntGrid, QParams, Scheme
from detent.quantizers import QUANTIZERS
from detent.targets.engines import ENGINES
from tests.compat.mmrazor_job import trained as trained_alone
from tests.compat.mmrazor_nets import ImageClassifier, LevellingHead, Pictures, ResNetClassifier
from tests.training.jobs import STEADY_KERNELS

ROOT = Path(__file__).resolve().parents[2]
HEAD = "tests.compat.mmrazor_nets.ClsHead"


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    for registry in (MODELS, LOOPS):
        monkeypatch.setattr(registry, "_own", {})
    torch.set_num_threads(1)
    torch.manual_seed(0)


def qconfig(**changes):
    """A calibrated qconfig, of OpenVINO unless it is changed."""
    base = {
        "w_observer": {"type": "mmrazor.PerChannelMinMaxObserver"},
        "a_observer": {"type": "mmrazor.MovingAverageMinMaxObserver"},
        "w_fake_quant": {"type": "mmrazor.FakeQuantize"},
        "a_fake_quant": {"type": "mmrazor.FakeQuantize"},
        "w_qscheme": {"qdtype": "qint8", "bit": 8, "is_symmetry": True, "is_symmetric_range": True},
        "a_qscheme": {"qdtype": "quint8", "bit": 8, "is_symmetry": True, "averaging_constant": 0.1},
    }
    return {**base, **changes}


def architecture(quantizer="OpenVINOQuantizer", net=None, **changes) -> MMArchitectureQuant:
    tracer = {"type": "CustomTracer", "skipped_methods": [f"{HEAD}._get_loss", f"{HEAD}._get_predictions"]}
    described = {"type": f"mmrazor.{quantizer}", "global_qconfig": qconfig(**changes), "tracer": tracer}
    return MMArchitectureQuant(net or ImageClassifier(), described, input_shapes=(2, 3, 8, 8))


def loader(shuffle: bool = False) -> DataLoader:
    return DataLoader(Pictures(), batch_size=8, shuffle=shuffle)


def write(path, text):
    path.write_text(text)
    return path


def test_configs_are_parsed_and_never_run(tmp_path):
    trap = tmp_path / "ran"
    path = write(tmp_path / "c.py", f"x = open({str(trap)!r}, 'w')\n")
    with pytest.raises(RecipeError, match="configs are parsed and not executed"):
        Config.fromfile(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "for i in []: pass",
        "x = [open(i) for i in ('a', 'b')]",
        "x = unknown",
        "x =",
        "x = 'a' - 1",
        "x = {[]: 1}",
        "x = -'a'",
    ],
)
def test_what_is_no_literal_is_refused(tmp_path, text):
    with pytest.raises(RecipeError):
        Config.fromfile(write(tmp_path / "c.py", text))


def test_values_names_and_arithmetic(tmp_path):
    text = "lr = 0.5 * 2\nsteps = [1, -2] + [3]\nd = {'a': (1, None)}\nb = dict(rate=lr, first=steps[0], x=d)\n"
    found = Config.fromfile(write(tmp_path / "c.py", text))
    assert found.b == {"rate": 1.0, "first": 1, "x": {"a": (1, None)}}
    assert found.steps == [1, -2, 3]


def test_bases_are_merged_and_deleted(tmp_path):
    write(tmp_path / "base.py", "model = dict(type='A', depth=18, neck=dict(type='G'))\nval = dict(a=1)\n")
    path = write(
        tmp_path / "c.py",
        "_base_ = './base.py'\nold = _base_.model\nmodel = dict(neck=dict(_delete_=True, type='H'))\nval = dict(b=2)\n",
    )
    found = Config.fromfile(path)
    assert found.model == {"type": "A", "depth": 18, "neck": {"type": "H"}}
    assert found.val == {"a": 1, "b": 2}
    assert found.old["neck"] == {"type": "G"}


def test_a_base_in_a_package_needs_its_folder(tmp_path):
    path = write(tmp_path / "c.py", "_base_ = ['mmcls::resnet/x.py']\n")
    with pytest.raises(RecipeError, match="configs of 'mmcls'"):
        Config.fromfile(path)


def test_bases_in_a_circle(tmp_path):
    write(tmp_path / "a.py", "_base_ = 'b.py'\n")
    with pytest.raises(RecipeError, match="its own _base_"):
        Config.fromfile(write(tmp_path / "b.py", "_base_ = 'a.py'\n"))


def test_every_field_of_a_qscheme_reaches_the_recipe():
    scheme = {"qdtype": "qint8", "bit": 4, "is_symmetry": True, "is_per_channel": True, "is_pot_scale": True}
    recipe = recipe_of(qconfig(w_qscheme=scheme, w_observer={"type": "MinMaxObserver"}), "openvino")
    weight = recipe.weight
    assert (weight.bits, weight.granularity, weight.scale, weight.narrow) == (4, "per_channel", "power_of_two", False)
    assert recipe.activation.observer_options == {"momentum": 0.9}
    assert recipe.activation.signed == "auto"


def test_an_affine_activation_is_unsigned():
    scheme = {"qdtype": "quint8", "bit": 8, "is_symmetry": False}
    assert recipe_of(qconfig(a_qscheme=scheme), "openvino").activation.signed is False


@pytest.mark.parametrize(("quantizer", "dtype"), [("OpenVINOQuantizer", "qint8"), ("TensorRTQuantizer", "quint8")])
def test_a_qdtype_that_is_not_the_backend_s_is_an_error(quantizer, dtype):
    with pytest.raises(SchemeError, match="a_qscheme with qdtype"):
        architecture(quantizer, a_qscheme={"qdtype": dtype})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"w_observer": {}}, "no type"),
        ({"w_observer": {"type": "MinMaxObserver", "eps": 1}}, "it takes type"),
        ({"w_qscheme": {"qdtype": "qint8", "bits": 8}}, "it takes qdtype"),
        ({"a_qscheme": {"qdtype": "quint8", "is_symmetric_range": True}}, "no such range"),
        ({"a_observer": {"type": "EMAObserver"}}, "not one of"),
        ({"more": {}}, "it takes w_observer"),
    ],
)
def test_qconfigs_that_say_what_they_cannot(changes, found):
    with pytest.raises(DetentError, match=found):
        recipe_of(qconfig(**changes), "openvino")


def test_without_an_entry():
    given = qconfig()
    del given["w_qscheme"]
    with pytest.raises(RecipeError, match="no w_qscheme"):
        recipe_of(given, "openvino")


def test_lsq_is_detent_s_own():
    assert LearnableFakeQuantize is QUANTIZERS["lsq"]


@pytest.mark.parametrize(
    ("quantizer", "backend", "dtype"),
    [
        ("OpenVINOQuantizer", "openvino", "quint8"),
        ("OpenvinoQuantizer", "openvino", "quint8"),
        ("TensorRTQuantizer", "tensorrt", "qint8"),
        ("AcademicQuantizer", "academic", "quint8"),
        ("NativeQuantizer", "native", "quint8"),
    ],
)
def test_each_quantizer_has_a_backend(quantizer, backend, dtype):
    symmetric = backend != "native"
    model = architecture(quantizer, a_qscheme={"qdtype": dtype, "is_symmetry": symmetric})
    assert model.prepared.backend.name == backend
    assert len(model.prepared.plan.quantized) >= 5


@pytest.mark.parametrize("dtype", ["quint8", "qint8"])
def test_a_quantizer_of_ones_own_for_another_backend(dtype):
    @MODELS.register_module()
    class NcnnQuantizer(NativeQuantizer):
        backend = "ncnn"

    scheme = {"qdtype": dtype, "is_symmetry": True, "is_symmetric_range": dtype == "qint8"}
    if dtype == "qint8":
        plan = architecture("NcnnQuantizer", a_qscheme=scheme).prepared.plan
        assert {str(entry.scheme) for entry in plan.quantized if entry.role == "activation"} == {
            "int8 narrow symmetric per-tensor half_away"
        }
    else:
        with pytest.raises(SchemeError, match="on 'ncnn'"):
            architecture("NcnnQuantizer", a_qscheme={**scheme, "is_symmetry": False})


def test_is_qat_false_is_for_calibration_only():
    learnable = {"type": "LearnableFakeQuantize"}
    quantizer = {"type": "OpenVINOQuantizer", "is_qat": False}
    with pytest.raises(RecipeError, match="is_qat=False"):
        MODELS.build({**quantizer, "global_qconfig": qconfig(w_fake_quant=learnable, a_fake_quant=learnable)})
    assert MODELS.build({**quantizer, "global_qconfig": qconfig()}).recipe.name == "mmrazor"


def test_ptq_calibrates_and_validates():
    model = architecture()
    metrics = PTQLoop(Runner(model, val_dataloader=loader()), loader(), calibrate_steps=2).run()
    assert all(quantizer.calibrated for quantizer in quantizers_of(model.prepared))
    assert metrics["agreement"] > 0.9  # an untrained network of 8 bits


def test_modes_share_their_quantizers():
    model = architecture()
    images = Pictures().images[:4] / 128
    model.calibrate_step({"inputs": images})
    model.eval()
    with torch.no_grad():
        scores, guesses = model(images), model(images, mode="predict")
        losses = model(images, Pictures().labels[:4], mode="loss")
    assert torch.equal(scores.softmax(1), guesses)
    assert torch.equal(losses["loss"], torch.nn.functional.cross_entropy(scores, Pictures().labels[:4]))


def test_qat_trains_weights_with_measured_ranges():
    model = architecture()
    runner = Runner(model, val_dataloader=loader(), optim_wrapper={"optimizer": {"type": "Adam", "lr": 0.01}})
    before = {name: value.clone() for name, value in model.prepared.named_parameters()}
    loop = QATEpochBasedLoop(runner, loader(shuffle=True), 1, disable_observer_begin=1, freeze_bn_begin=1)
    assert (loop.stop_observing_begin, loop.freeze_bn_begin) == (1, 1)
    loop.run()
    assert any(not torch.equal(value, before[name]) for name, value in model.prepared.named_parameters())
    never = QATEpochBasedLoop(runner, loader(), 1)
    assert (never.stop_observing_begin, never.freeze_bn_begin) == (None, None)


def trained(head, **options) -> tuple[MMArchitectureQuant, dict[str, float]]:
    net = ImageClassifier()
    net.head = head
    model = MMArchitectureQuant(
        net,
        {
            "type": "OpenVINOQuantizer",
            "global_qconfig": qconfig(),
            "tracer": {"skipped_methods": [f"tests.compat.mmrazor_nets.{type(head).__name__}._get_loss"]},
        },
        data_preprocessor={"type": "ClsDataPreprocessor", "mean": [110.0] * 3, "std": [40.0] * 3},
        input_shapes=(2, 3, 8, 8),
        **options,
    )
    runner = Runner(model, val_dataloader=loader(), optim_wrapper={"optimizer": {"type": "Adam", "lr": 0.05}})
    return model, QATEpochBasedLoop(runner, loader(shuffle=True), 12, val_interval=12).run()


def off_by(model: MMArchitectureQuant) -> torch.Tensor:
    return model.eval()(model.data_preprocessor(Pictures().images)).detach() - 3


def test_a_model_is_trained_on_what_its_loss_mode_says():
    model, metrics = trained(LevellingHead())
    assert off_by(model).abs().mean() < 0.5  # 3 before
    assert metrics["quantized.loss"] == pytest.approx(float(off_by(model).square().mean()), rel=1e-4)
    assert set(metrics) == {"quantized.top1", "quantized.loss", "float.top1", "float.loss", "agreement"}


def test_without_a_loss_mode_it_is_trained_on_cross_entropy():
    model, metrics = trained(LevellingHead(), forward_modes=("tensor",))
    assert off_by(model).abs().mean() > 1
    assert metrics["quantized.loss"] < 0.5  # 1.1 by chance


def test_a_resnet_is_trained_and_deployed_as_simulated(tmp_path):
    """The document's network, narrow."""
    pytest.importorskip("openvino", reason="the deployed model is run by it")
    learned = {"type": "LearnableFakeQuantize"}
    methods = {"w_fake_quant": learned, "a_fake_quant": learned, "a_qscheme": {"qdtype": "quint8"}}
    model = architecture(net=ResNetClassifier(), a_observer={"type": "LSQObserver"}, **methods)
    runner = Runner(model, val_dataloader=loader(), optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.001}})
    LSQEpochBasedLoop(runner, loader(shuffle=True), 1).run()
    images = Pictures(30).images
    (answers,) = ENGINES["openvino"].load(model.deploy(tmp_path / "out")).run({"inputs": images.numpy()}).values()
    with torch.no_grad():
        simulated = model.eval()(images)
    assert float((torch.from_numpy(answers).argmax(1) == simulated.argmax(1)).float().mean()) > 0.95


@pytest.mark.full
def test_two_processes_train_as_one_with_twice_the_batch(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1", **STEADY_KERNELS}
    job = [str(ROOT / "tests" / "compat" / "mmrazor_job.py"), str(tmp_path / "together")]
    done = subprocess.run([*command, *job], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    together, alone = load_file(tmp_path / "together"), trained_alone(8)
    assert together.keys() == alone.keys()
    torch.manual_seed(0)
    assert (alone["head.fc.bias"] - ImageClassifier().head.fc.bias.detach()).abs().max() > 1e-3, "it learned"
    for name, value in alone.items():
        if name.startswith("float_ranges.") and name.endswith(".weights"):
            continue  # a sum of the bits of all parameters, which are compared one by one
        # Sums in another order, over six steps of a rate that keeps what they differ in small.
        torch.testing.assert_close(together[name], value, rtol=1e-5, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def test_losses_without_a_loss_are_refused():
    with pytest.raises(TensorError, match="accuracy"):
        total_loss({"accuracy": torch.tensor(1.0)})
    assert total_loss(torch.tensor([1.0, 2.0])) == 1.5


def test_what_only_another_mode_quantizes_is_calibrated_too():
    """Where `_get_predictions` is not skipped, a softmax is traced in the mode `predict` alone."""
    quantizer = NativeQuantizer(qconfig(), {"skipped_methods": [f"{HEAD}._get_loss"]})
    model = MMArchitectureQuant(ImageClassifier(), quantizer, input_shapes=(2, 3, 8, 8))
    model.calibrate_step(Pictures().images)
    assert model.prepared.activation_quantizers["softmax"].qparams().scale == pytest.approx(1 / 256)


def test_observers_take_torch_s_arguments():
    x = torch.tensor([[-1.0, 2.0], [-4.0, 1.0]])
    affine = MinMaxObserver()
    affine(x)
    scale, zero_point = affine.calculate_qparams()
    assert (affine.quant_min, affine.quant_max) == (0, 255)
    assert (scale.tolist(), zero_point.tolist()) == ([pytest.approx(6 / 255)], [170])
    affine.reset_min_max_vals()
    assert float(affine.max_val) == -float("inf")
    narrow = PerChannelMinMaxObserver(
        dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-7, quant_max=7, is_pot_scale=True
    )
    narrow(x)
    assert narrow.calculate_qparams()[0].tolist() == [0.5, 1.0]  # the next powers of two above 2 / 7 and 4 / 7
    moving = MovingAveragePerChannelMinMaxObserver(averaging_constant=0.5, dtype=torch.qint8)
    for factor in (1, 3):
        moving(factor * x)
    assert moving.max_val.tolist() == [4.0, 2.0]
    clipping = HistogramObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric, reduce_range=True)
    clipping(torch.cat([torch.randn(5000), torch.tensor([30.0])]))
    assert (clipping.quant_max, bool(clipping.calculate_qparams()[0] <= 30 / 63)) == (63, True)
    with pytest.raises(SchemeError, match="quant_min -5 with quant_max 9"):
        MinMaxObserver(quant_min=-5, quant_max=9)


def test_switches_of_ranges_that_move():
    moving = {"type": "FusedMovingAvgObsFakeQuantize"}
    model = architecture(a_fake_quant=moving, w_fake_quant=moving)
    model.calibrate_step(Pictures().images)
    quantizer = model.train().prepared.activation_quantizers["inputs"]
    before = quantizer.qparams().scale.clone()
    model.apply(disable_observer)
    model(3 * Pictures().images)
    assert torch.equal(quantizer.qparams().scale, before)
    model.apply(enable_observer)
    model(3 * Pictures().images)
    assert float(quantizer.qparams().scale) > float(before)


def test_a_run_is_resumed_and_its_checkpoint_loaded(tmp_path):
    def runner(**options) -> Runner:
        return Runner(architecture(), train_dataloader=loader(), val_dataloader=loader(), work_dir=tmp_path, **options)

    class Counting:
        def __init__(self):
            self.epochs, self.metrics = 0, None

        def after_train_epoch(self, _):
            self.epochs += 1

        def after_val_epoch(self, _, metrics):
            self.metrics = metrics

    first, hook = runner(train_cfg={"type": "QATEpochBasedLoop", "max_epochs": 2}), Counting()
    first.register_hook(hook)
    assert (first.train(), hook.epochs) == (hook.metrics, 2)
    further, again = runner(train_cfg={"type": "QATEpochBasedLoop", "max_epochs": 3}, resume=True), Counting()
    further.register_hook(again)
    further.train()
    assert again.epochs == 1
    loaded = runner(load_from=tmp_path / "last.safetensors").model.prepared.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in further.model.prepared.state_dict().items())


def test_a_tracer_that_is_none_of_ours_is_refused():
    with pytest.raises(RegistrationError, match="it is not a CustomTracer"):
        MMArchitectureQuant(ImageClassifier(), NativeQuantizer(qconfig(), tracer=torch.fx.Tracer()))


def test_what_is_no_data_or_no_optimizer():
    model = architecture()
    with pytest.raises(DataError, match="DataLoader or a dict"):
        PTQLoop(Runner(model), [1, 2])
    with pytest.raises(UnknownNameError, match="Lookahead"):
        PTQLoop(Runner(model, optim_wrapper={"optimizer": {"type": "Lookahead", "lr": 1.0}}), loader())


def test_schedules_are_counted_in_epochs():
    steps = schedule_of({"type": "MultiStepLR", "milestones": [1, 2], "gamma": 0.5}, lr=0.1, steps_per_epoch=10)
    assert [steps.factor(step) for step in (9, 10, 20)] == [1.0, 0.5, 0.25]
    cosine = schedule_of([{"type": "CosineAnnealingLR", "T_max": 2, "by_epoch": True}], lr=0.1, steps_per_epoch=10)
    assert [round(cosine.factor(step), 3) for step in (0, 10, 20)] == [1.0, 0.5, 0.0]
    assert schedule_of({}, lr=0.1, steps_per_epoch=10).factor(99) == 1.0
    for wrong in ({"type": "PolyLR"}, {"type": "ConstantLR", "gamma": 0.3}):
        with pytest.raises(RecipeError, match="param_scheduler"):
            schedule_of(wrong, lr=0.1, steps_per_epoch=10)


def test_schedulers_follow_each_other():
    warm = {"type": "LinearLR", "start_factor": 0.2, "by_epoch": True, "begin": 0, "end": 5}
    then = {"type": "CosineAnnealingLR", "T_max": 4, "eta_min": 0.01, "by_epoch": True, "begin": 5, "end": 9}
    both = schedule_of([warm, then], lr=0.1, steps_per_epoch=10)
    assert [round(both.factor(step), 3) for step in (0, 9, 10, 40, 50, 70, 80, 99)] == [
        0.2, 0.2, 0.4, 1.0, 1.0, 0.55, 0.232, 0.232,
    ]  # fmt: skip
    by_step = schedule_of({**warm, "convert_to_iter_based": True}, lr=0.1, steps_per_epoch=10)
    assert [round(by_step.factor(step), 3) for step in (0, 7, 49, 60)] == [0.2, 0.314, 1.0, 1.0]


def test_an_unknown_model_wrapper_is_refused():
    cfg = {"model": architecture(), "model_wrapper_cfg": {"type": "mmengine.MMFullyShardedDataParallel"}}
    with pytest.raises(RecipeError, match="model_wrapper_cfg"):
        Runner.from_cfg(cfg)


def test_registries_refuse_a_name_twice_and_name_the_nearest():
    MODELS.register_module("Mine")(ImageClassifier)
    with pytest.raises(RegistrationError):
        MODELS.register_module("Mine")(Pictures)
    MODELS.register_module("Mine", force=True)(Pictures)
    with pytest.raises(UnknownNameError, match="OpenVINOQuantizer"):
        MODELS.get("mmrazor.OpenVINOQuantiser")


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00(X\x05\x00\x00\x00\xff\xfe", b"\x80\x02K\x05."])
def test_a_damaged_float_checkpoint_is_an_error(content, tmp_path):
    """Empty, a pickle that is cut off in a text that is none, and one that is a number."""
    (tmp_path / "w.pth").write_bytes(content)
    with pytest.raises(DataError, match=r"it contains no plain tensors|it is not a mapping"):
        load_float_checkpoint(torch.nn.Linear(2, 2), tmp_path / "w.pth")
    torch.save({"state_dict": {"other": torch.zeros(2)}}, tmp_path / "w.pth")
    with pytest.raises(DataError, match=r"Error\(s\) in loading"):
        load_float_checkpoint(torch.nn.Linear(2, 2), tmp_path / "w.pth")


def test_a_scale_that_training_made_negative_is_refused_by_name():
    class Signed(FakeQuantizeBase):
        def __init__(self, observer, **options):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("zero_point", torch.zeros(1))

        def calculate_qparams(self):
            return self.scale.detach(), self.zero_point

    quantizer = QUANTIZERS[quantizer_name(Signed, MinMaxObserver, {})](Scheme(IntGrid(8)), (4,), name="x")
    quantizer.initialize(QParams.symmetric(torch.tensor(0.5)))
    with torch.no_grad():
        quantizer.scale.neg_()
    with pytest.raises(RangeError, match=r"Signed.calculate_qparams for 'x' gives the scale -0\.5"):
        quantizer.qparams()
