"""The code of MQBench's two documents, section by section: only imports differ, and what they leave out is added."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import nn
from torch.nn import Parameter

from detent import twin
from detent.compat.mqbench import (
    BackendType,
    LinearQuantizer_process,
    ModelQuantizer,
    ObserverBase,
    QuantizeBase,
    convert_deploy,
    enable_calibration,
    enable_quantization,
    get_foldbn_config,
    get_qconfig,
    prepare_by_platform,
    quantize_fx,
    register_backend,
    register_deploy_function,
    register_method,
    register_model_quantizer,
    solver,
)
from detent.errors import RecipeError, SchemeError, UnknownNameError
from detent.recipes import Recipe
from tests.compat.registering import Registered
from tests.models import resnet18

# ---- Add a backend: the quantization function ----


def f_1(x, s, z, n, p):
    return torch.clamp(torch.round(x / s) + z, n, p)


def f_2_to_6(x, q, s, z, n, p, grad_outputs):
    v = torch.round(x / s) + z
    inside = (v >= n) & (v <= p)
    grad_s = (grad_outputs * torch.where(inside, q - z - x / s, q - z)).sum().reshape(s.shape)
    return grad_outputs * inside, grad_s, torch.zeros_like(z), None, None


class ExampleQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s, z, n, p):
        q = f_1(x, s, z, n, p)
        ctx.save_for_backward(x, q, s, z)  # of tensors only: n and p are numbers
        ctx.n, ctx.p = n, p
        qx = (q - z) * s
        return qx  # noqa: RET504

    @staticmethod
    def backward(ctx, grad_outputs):
        x, q, s, z = ctx.saved_tensors
        grad_x, grad_s, grad_z, grad_n, grad_p = f_2_to_6(x, q, s, z, ctx.n, ctx.p, grad_outputs)
        return grad_x, grad_s, grad_z, grad_n, grad_p

    @staticmethod
    def symbolic(g, x, scale, zero_point, quant_min, quant_max):
        return g.op("::ExampleQuant", x, scale, zero_point, quant_min_i=quant_min, quant_max_i=quant_max)


class ExampleFakeQuantize(QuantizeBase):
    def __init__(self, observer, scale=1.0, zero_point=0.0, use_grad_scaling=True, **observer_kwargs):
        super(ExampleFakeQuantize, self).__init__(observer, **observer_kwargs)  # noqa: UP008
        self.scale = Parameter(torch.tensor([scale]))
        self.zero_point = Parameter(torch.tensor([zero_point]))

    def forward(self, X):  # noqa: N803
        # Learnable fake quantize have to zero_point.float() to make it learnable.
        if self.observer_enabled[0] == 1:
            self.activation_post_process(X.detach())
            _scale, _zero_point = self.activation_post_process.calculate_qparams()
            self.scale.data.copy_(_scale)
            self.zero_point.data.copy_(_zero_point.float())
        if self.fake_quant_enabled[0] == 1:
            X = ExampleQuant.apply(X, self.scale, self.zero_point, self.quant_min, self.quant_max)  # noqa: N806
        return X


# ---- Observer ----


class ExampleObserver(ObserverBase):
    def __init__(self, dtype=torch.quint8, qscheme=torch.per_tensor_affine,
                reduce_range=False, quant_min=None, quant_max=None, ch_axis=-1, pot_scale=False,
                factory_kwargs=None):  # fmt: skip
        super(ExampleObserver, self).__init__(dtype, qscheme, reduce_range, quant_min, quant_max,  # noqa: UP008
                                            ch_axis, pot_scale, factory_kwargs)  # fmt: skip

    def forward(self, x_orig):
        r"""Records the running minimum and maximum of ``x``."""
        x = x_orig.to(self.min_val.dtype)
        self.collected = self.g(x)
        return x

    def g(self, x):
        """Nine tenths of the greatest value, so that the test can tell it from every observer of our own."""
        return 0.9 * x.abs().max() / self.quant_max, torch.tensor(0), self.quant_min, self.quant_max

    def calculate_qparams(self):
        s, z, n, q = self.collected
        return s, z, n, q


# ---- Add quantization nodes ----


class ExampleMod(nn.Sigmoid):
    """A module of the user's own."""


example_func = torch.tanh


REGISTERED = Registered()

EXAMPLE = register_backend(
    "example",
    w_fakequantize=ExampleFakeQuantize,
    w_observer=ExampleObserver,
    w_qscheme={"bit": 8, "symmetry": True, "per_channel": False},
    a_fakequantize=ExampleFakeQuantize,
    a_observer=ExampleObserver,
    a_qscheme={"bit": 8, "symmetry": True, "per_channel": False},
)


@register_model_quantizer(EXAMPLE)
class ExampleQuantizer(ModelQuantizer):
    @property
    def module_type_to_quant_input(self) -> tuple:
        return (  # noqa: RUF005
            nn.Conv2d,
            # Example Module
            ExampleMod,
        ) + self.additional_module_type

    @property
    def function_type_to_quant_input(self) -> list:
        return [  # noqa: RUF005
            torch.add,
            example_func,
        ] + self.additional_function_type


# ---- Deploy ----


logger = logging.getLogger("example")


def do_translate(model, context):
    return [node.op_type for node in model.graph.node], context


class ExampleProcess(LinearQuantizer_process):
    def remove_fakequantize_and_collect_params(self, onnx_path, model_name, backend):
        model, context = super().remove_fakequantize_and_collect_params(onnx_path, model_name, backend)
        if backend == 'example':  # fmt: skip
            # model is the onnx, context
            # context is the quantization info'd dict
            example_model = do_translate(model, context)
            logger.info("Finish example model converting process.")
        return example_model


DEPLOYED: list[Any] = []


@register_deploy_function(EXAMPLE)
def deploy_qparams_example(model, onnx_model_path, model_name, **kwargs):  # noqa: ARG001
    process = ExampleProcess()
    DEPLOYED.append(process.remove_fakequantize_and_collect_params(onnx_model_path, model_name, backend="example"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.mod, self.fc = nn.Conv2d(3, 4, 3), nn.ReLU(), ExampleMod(), nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(example_func(self.mod(self.relu(self.conv(x)))).flatten(1))


def test_the_example_backend_from_the_function_to_the_vendors_json(tmp_path):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 4, 4)
    model = prepare_by_platform(Net(), EXAMPLE).eval()
    enable_calibration(model)
    model(images)
    enable_quantization(model)

    plan = {entry.tensor: entry for entry in model.prepared.plan.quantized}
    assert plan["relu"].why == "input of sigmoid", "what ExampleMod takes in"
    assert plan["mod"].why == "input of tanh", "what example_func takes in"
    scales = {q.name: q.qparams().scale.item() for q in model.modules() if hasattr(q, "made_of")}
    assert scales["x"] == pytest.approx(0.9 * images.abs().max().item() / 127)

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model.train()
    model(images).square().mean().backward()
    optimizer.step()
    trained = {q.name: q.qparams().scale.item() for q in model.modules() if hasattr(q, "made_of")}
    assert trained["x"] != scales["x"], "the gradient of the scale is that of ExampleQuant.backward"
    model.eval()

    DEPLOYED.clear()
    convert_deploy(model, EXAMPLE, {"x": [1, 3, 4, 4]}, output_path=tmp_path, model_name="net")
    graph = onnx.load(tmp_path / "net.onnx").graph
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    own = {node.input[0]: node for node in graph.node if node.op_type == "ExampleQuant"}
    assert set(own) == {"x", "conv.weight", "relu", "mod", "tanh", "fc.weight"}, "written by ExampleQuant.symbolic"
    assert [(a.name, a.i) for a in own["relu"].attribute] == [("quant_max", 127), ("quant_min", -128)]
    assert list(own["x"].input) == ["x", "x/scale", "x/zero_point"]
    assert arrays["x/scale"].tolist() == [pytest.approx(trained["x"])]
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in graph.node}

    written = json.loads((tmp_path / "net_clip_ranges.json").read_text())["example"]
    assert set(written) == set(own)
    assert set(written["x"]) == {"scale", "zero_point", "quant_min", "quant_max", "round_mode"}
    assert written["x"]["scale"] == pytest.approx(trained["x"])
    assert written["x"]["quant_max"] == 127
    operations, context = DEPLOYED[0]
    assert operations == ["Conv", "Relu", "Sigmoid", "Tanh", "Reshape", "Gemm", "Identity"]
    assert context["example"] == written

    session = onnxruntime.InferenceSession(tmp_path / "net" / "model.onnx")
    (given,) = session.run(None, {"x": images.numpy()})
    # Sigmoid and tanh of another library may differ in their last bits; no value here lies on the edge of a code.
    np.testing.assert_allclose(given, model(images).detach().numpy(), atol=1e-3)
    onnx.checker.check_model(onnx.load(tmp_path / "net_deploy_model.onnx"))


class ExampleQuantKernel(OpRun):
    """What the node means, for the reference evaluator of onnx."""

    op_domain = ""

    def _run(self, x, scale, zero_point, quant_min=None, quant_max=None):
        codes = np.clip(np.rint(x / scale) + zero_point, quant_min, quant_max)
        return (((codes - zero_point) * scale).astype(np.float32),)


ExampleQuantKernel.__name__ = "ExampleQuant"  # by which it is found


def test_the_network_with_nodes_of_ones_own_computes_what_the_one_with_q_and_dq_does(tmp_path):
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    narrow = {"a_qscheme": {"bit": 8, "symmetry": True, "per_channel": False, "symmetric_range": True}}  # with Clips
    net = resnet18(width=0.125, classes=4, depths=(1, 1, 1, 1)).eval()
    model = prepare_by_platform(net, EXAMPLE, {"extra_qconfig_dict": narrow}).eval()
    enable_calibration(model)
    model(images)
    convert_deploy(model, EXAMPLE, output_path=tmp_path, model_name="net")
    own = onnx.load(tmp_path / "net.onnx")
    assert not {"QuantizeLinear", "Clip"} & {node.op_type for node in own.graph.node}
    (given,) = ReferenceEvaluator(own, new_ops=[ExampleQuantKernel]).run(None, {"x": images.numpy()})
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "net" / "model.onnx", plain)
    (expected,) = session.run(None, {"x": images.numpy()})
    # Two libraries sum in another order; no value here lies on the edge of a code.
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)


def test_without_the_quantizer_class_the_module_takes_in_floats():
    model = prepare_by_platform(Net(), BackendType.Tensorrt, is_qat=False).eval()
    enable_calibration(model)
    model(torch.randn(4, 3, 4, 4))
    assert "relu" in {entry.tensor for entry in model.prepared.plan.kept_float}


def test_a_module_that_no_backend_speaks_of_is_refused():
    class Unheard(nn.Module):
        pass

    with pytest.raises(RecipeError, match="no operation that backends speak of"):
        prepare_by_platform(Net(), EXAMPLE, {"extra_quantizer_dict": {"additional_module_type": (Unheard,)}})


def test_an_observer_with_one_scale_for_many_channels_is_refused():
    own = {"w_fakequantize": ExampleFakeQuantize, "w_observer": ExampleObserver, "w_qscheme": {"per_channel": True}}
    model = prepare_by_platform(Net(), BackendType.Tensorrt, {"extra_qconfig_dict": own})
    enable_calibration(model)
    model(torch.randn(4, 3, 4, 4))
    with pytest.raises(SchemeError, match="gives 1 scales where there are 4"):
        enable_quantization(model)


# ---- Benchmark: running experiments ----


def test_the_official_api():
    backend_params = {"ada_sign": False, "symmetry": False, "per_channel": False, "pot_scale": False}
    qparams = {"w_method": "lsq", "a_method": "lsq", "bit": 4}
    foldbn_strategy = 4

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    model_qconfig = get_qconfig(**qparams, **backend_params)
    foldbn_config = get_foldbn_config(foldbn_strategy)
    model = quantize_fx.prepare_qat_fx(model, {"": model_qconfig}, foldbn_config)

    images = torch.randn(2, 3, 6, 6)
    enable_calibration(model)
    model(images)
    enable_quantization(model)
    model.train()
    model(images).sum().backward()
    widths = {entry.tensor: str(entry.scheme) for entry in model.prepared.plan.quantized}
    assert widths["3.weight"] == "int4 affine per-tensor"
    assert widths["0.weight"] == "int8 affine per-tensor", "first and last layers have 8 bits"
    assert model.prepared.recipe.batch_norm.strategy == 4


@pytest.mark.parametrize("method", ["lsq", "dorefa", "dsq", "qil", "apot"])
def test_methods_of_the_benchmark(method):
    qconfig = get_qconfig(method, "pact" if method == "dorefa" else method, 4, ada_sign=True)
    assert qconfig["weight"].quantizer == method
    assert qconfig["activation"].signed == "auto"


def test_an_unknown_method_is_refused_with_those_there_are():
    with pytest.raises(UnknownNameError, match=r"w_method 'lsk'(.|\n)*lsq, lsq_plus, dorefa"):
        get_qconfig("lsk", "lsq", 4)
    with pytest.raises(RecipeError, match="-1, 0, 1, 2, 3, 4"):
        get_foldbn_config(7)


# ---- Self-implementing an algorithm: LSQ ----


def pot_quantization(tensor: torch.Tensor):
    log2t = torch.log2(tensor)
    log2t = (torch.round(log2t) - log2t).detach() + log2t
    return 2**log2t


class MyLsq(QuantizeBase):
    def __init__(self, observer, scale=1.0, zero_point=0.0, use_grad_scaling=True, **observer_kwargs):
        super().__init__(observer, **observer_kwargs)
        self.use_grad_scaling = use_grad_scaling
        self.scale = Parameter(torch.tensor([scale]))
        self.zero_point = Parameter(torch.tensor([zero_point]))

    def forward(self, X):  # noqa: N803
        if self.ada_sign and X.min() >= 0:
            self.quant_max = self.activation_post_process.quant_max = 2**self.bitwidth - 1
            self.quant_min = self.activation_post_process.quant_min = 0
            self.activation_post_process.adjust_sign = True
        if self.qscheme in (torch.per_channel_symmetric, torch.per_tensor_symmetric):
            self.zero_point.data.zero_()
        scale = pot_quantization(self.scale) if self.pot_scale else self.scale
        if self.is_per_channel:
            scale = scale.reshape([-1 if axis == self.ch_axis else 1 for axis in range(X.ndim)])
        grad_factor = (X.numel() * self.quant_max) ** -0.5 if self.use_grad_scaling else 1.0
        scale = (scale - scale * grad_factor).detach() + scale * grad_factor
        v = torch.clamp(X / scale, self.quant_min, self.quant_max)
        return ((v.round() - v).detach() + v) * scale


class MyLsqObserver(ObserverBase):
    def forward(self, x):
        axes = [axis for axis in range(x.ndim) if axis != self.ch_axis]
        self.min_val, self.max_val = x.amin(axes), x.amax(axes)
        return x


register_method("my_lsq", MyLsq, MyLsqObserver)
REGISTERED.withdraw()


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    REGISTERED.restore()


@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize("pot_scale", [False, True], ids=["float", "power-of-two"])
def test_an_algorithm_of_ones_own(per_channel, pot_scale, tmp_path):
    torch.manual_seed(0)
    qconfig = get_qconfig("my_lsq", "my_lsq", 4, ada_sign=True, per_channel=per_channel, pot_scale=pot_scale)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model = quantize_fx.prepare_qat_fx(net, {"": qconfig}, get_foldbn_config(-1))
    images = torch.randn(2, 3, 6, 6)
    enable_calibration(model)
    model(images)
    enable_quantization(model)
    model.train()
    model(images).square().mean().backward()
    step = model.prepared.get_parameter("2.parametrizations.weight.0.inner.scale")
    assert step.grad.abs().max() > 0
    assert step.numel() == (4 if per_channel else 1)
    model.eval()
    convert_deploy(model, "academic", output_path=tmp_path, model_name="net")
    (given,) = twin.run(tmp_path / "net", {"input_1": images.numpy()}, arithmetic="onnx_spec").values()
    # The same codes; sums of float32 in another order differ in their last bits.
    np.testing.assert_allclose(given, model(images).detach().numpy(), atol=1e-6)


# ---- config.yaml ----

CONFIG = """
qparams:
    w_method: lsq
    a_method: lsq
    bit: 4

backend: academic
bnfold: 4
"""


def test_the_solver_trains_and_deploys(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG + REST)
    command = [sys.executable, "-u", "-m", "detent.compat.mqbench.solver", "--config", "config.yaml"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "quantized.top1" in answer.stdout
    manifest = json.loads((tmp_path / "mqbench_run" / "artifact" / "manifest.json").read_text())
    assert manifest["recipe"]["weight"]["quantizer"] == "lsq"
    assert manifest["recipe"]["weight"]["bits"] == 4
    assert manifest["recipe"]["batch_norm"] == {"strategy": 4}


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
def test_backends_of_the_solver(backend, symmetric, granularity, scale):
    said = solver.recipe_of({"qparams": {"w_method": "lsq", "a_method": "lsq", "bit": 4}, "backend": backend})
    recipe = Recipe.from_dict(said)
    assert (recipe.weight.symmetric, recipe.weight.granularity, recipe.weight.scale) == (symmetric, granularity, scale)
    assert (recipe.activation.symmetric, recipe.activation.granularity) == (symmetric, "per_tensor")
    assert (recipe.activation.signed == "auto") == (backend == "academic")


# ---- Self-implementing a hardware configuration ----


def test_a_hardware_configuration():
    backend, qparams = "tflitemicro", {"w_method": "lsq", "a_method": "lsq", "bit": 8}
    foldbn_config = get_foldbn_config(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 2, 1))
    if backend == "snpe":
        backend_params = dict(ada_sign=False, symmetry=False, per_channel=False, pot_scale=False)  # noqa: C408
    elif backend == "tflitemicro":
        backend_params = dict(ada_sign=False, symmetry=True, per_channel=False, pot_scale=True)  # noqa: C408

    model_qconfig = get_qconfig(**qparams, **backend_params)
    model = quantize_fx.prepare_qat_fx(model, {"": model_qconfig}, foldbn_config)

    enable_calibration(model)
    model(torch.randn(2, 3, 6, 6))
    assert {str(entry.scheme) for entry in model.prepared.plan.quantized} == {"int8 symmetric per-tensor power-of-two"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("backend: academic", "backend: tpu", "allowed are academic, tensorrt"),
        ("backend: academic", "backend: {symetry: true}", "allowed are ada_sign, symmetry"),
        ("bit: 4", "bits: 4", "allowed are w_method, a_method, bit"),
        ("w_method: lsq", "w_method: lsk", "known are lsq"),
    ],
)
def test_the_solver_says_what_is_wrong(old, new, said, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text((CONFIG + REST).replace(old, new))
    assert solver.main(["--config", str(tmp_path / "config.yaml"), "--output", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err


REST = """
model: {name: resnet20, options: {depth: 1, width: 0.25}}
data: {name: made_up, batch_size: 8, train_batches: 2, val_batches: 1, calibration_batches: 1}
train: {loop: lsq, epochs: 1}
deploy: {verify_batches: 1}
"""
