"""MQBench's page "Add a Backend to MQBench", item by item. A docstring begins with the item."""

from __future__ import annotations

import json
import logging

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import fx, nn
from torch.nn import Parameter

from detent.compat.mqbench import (
    BackendType,
    LinearQuantizer_process,
    ModelQuantizer,
    QuantizeBase,
    convert_deploy,
    convert_xir,
    enable_calibration,
    enable_quantization,
    prepare_by_platform,
    register_backend,
    register_deploy_function,
    register_model_quantizer,
    remove_fakequantize_and_collect_params,
    remove_fakequantize_and_collect_params_nnie,
)
from detent.errors import DeployError, RecipeError, RunError, SchemeError
from detent.graph import CustomTracer, quantizers_of
from detent.numerics import PerChannel
from tests.compat.mqbench_code import (
    ExampleFakeQuantize,
    ExampleMod,
    ExampleNet,
    ExampleObserver,
    ExampleProcess,
    ExampleQuant,
    ExampleQuantizer,
    MyLsqObserver,
    example_func,
    small_net,
)
from tests.models import resnet18

SCHEME = {"bit": 8, "symmetry": True, "per_channel": False}
OWN = {
    **{f"{side}_fakequantize": ExampleFakeQuantize for side in "wa"},
    **{f"{side}_observer": ExampleObserver for side in "wa"},
    **{f"{side}_qscheme": SCHEME for side in "wa"},
}
DEPLOYED: list = []
BATCH = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(4))
IMAGES = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", autouse=True)
def example() -> str:
    """The document's backend, as its steps register it."""
    name = register_backend("example", **OWN)
    register_model_quantizer(name)(ExampleQuantizer)

    @register_deploy_function(name)
    def deploy_qparams_example(model, onnx_model_path, model_name, **kwargs):  # noqa: ARG001
        process = ExampleProcess()
        DEPLOYED.append(process.remove_fakequantize_and_collect_params(onnx_model_path, model_name, backend="example"))
        logging.getLogger("example").info("Finish example model converting process.")

    return name


def calibrated(net: nn.Module, backend, images: torch.Tensor = IMAGES, custom=None, **options):
    model = prepare_by_platform(net, backend, custom, **options).eval()
    enable_calibration(model)
    model(images)
    enable_quantization(model)
    return model


def scales(model) -> dict[str, float]:
    return {
        q.name: q.qparams().scale.item() for q in model.modules() if isinstance(getattr(q, "inner", None), nn.Module)
    }


def quantized(model) -> set[str]:
    return {entry.tensor for entry in model.prepared.plan.quantized if entry.role == "activation"}


@pytest.fixture(scope="module")
def deployed(example, tmp_path_factory):
    """The document's network on the document's backend: the model, and the folder it was deployed into."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("example")
    model = calibrated(ExampleNet(), example)
    DEPLOYED.clear()
    convert_deploy(model, example, {"x": [1, 3, 4, 4]}, output_path=folder, model_name="net")
    return model, folder


# ---- 1-2: the quantization function, QuantizeBase ----


def test_004_01_example_quant():
    """ExampleQuant: forward and backward of a fake quantize affine."""
    x = torch.tensor([0.3, 1.26, 9.0], requires_grad=True)
    s, z = torch.tensor([0.5], requires_grad=True), torch.zeros(1)
    out = ExampleQuant.apply(x, s, z, -8, 7)
    out.sum().backward()
    assert out.tolist() == [0.5, 1.5, 3.5]
    assert x.grad.tolist() == [1.0, 1.0, 0.0]
    assert s.grad.item() == pytest.approx((1 - 0.6) + (3 - 2.52) + 7)  # codes less positions, and the end of the range


class SavesNumbers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s, z, n, p):
        q = torch.clamp(torch.round(x / s) + z, n, p)
        ctx.save_for_backward(x, q, s, z, n, p)
        return (q - z) * s


class GivesUndefined(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s, z, n, p):  # noqa: ARG004
        q = torch.clamp(torch.round(x / s) + z, n, p)  # noqa: F841
        return qx  # noqa: F821


@pytest.mark.parametrize(
    ("function", "line", "remedy"),
    [
        (SavesNumbers, "ctx.save_for_backward(x, q, s, z, n, p)", "keep numbers on ctx"),
        (GivesUndefined, "return qx", "define qx, or did you mean"),
    ],
    ids=["save_for_backward", "qx"],
)
def test_004_01_mistakes_of_the_document(function, line, remedy):
    """ExampleQuant: save_for_backward of numbers, and the name qx, are answered with the line and the remedy."""

    class Wrong(ExampleFakeQuantize):
        def forward(self, X):  # noqa: N803
            return function.apply(X, self.scale, self.zero_point, self.quant_min, self.quant_max)

    model = calibrated(nn.Sequential(nn.Linear(4, 2)), "academic", torch.randn(2, 4), _own(Wrong))
    with pytest.raises(RunError) as error:
        model(torch.randn(2, 4))
    assert line in error.value.found
    assert remedy in error.value.to_do


def _own(fake_quantize: type, observer: type = ExampleObserver) -> dict:
    parts = {"fakequantize": fake_quantize, "observer": observer, "qscheme": SCHEME}
    return {"extra_qconfig_dict": {f"{side}_{part}": value for side in "wa" for part, value in parts.items()}}


def test_004_02_symbolic(deployed):
    """symbolic with g.op('::ExampleQuant', ..., quant_min_i): a node for each tensor, 3 inputs, two attributes."""
    model, folder = deployed
    graph = onnx.load(folder / "net.onnx").graph
    own = {node.input[0]: node for node in graph.node if node.op_type == "ExampleQuant"}
    assert set(own) == {"x", "conv.weight", "relu", "mod/mul_2", "example_func/sub_2", "fc.weight"}
    assert list(own["x"].input) == ["x", "x/scale", "x/zero_point"]
    assert [(a.name, a.i) for a in own["relu"].attribute] == [("quant_max", 127), ("quant_min", -128)]
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    assert arrays["x/scale"].tolist() == [pytest.approx(scales(model)["x"])]


def test_004_03_example_fake_quantize():
    """ExampleFakeQuantize derives from QuantizeBase; super(TqtFakeQuantize, self) is answered with line and remedy."""

    class Wrong(QuantizeBase):
        def __init__(self, observer, scale=1.0, zero_point=0.0, use_grad_scaling=True, **observer_kwargs):
            super(TqtFakeQuantize, self).__init__(observer, **observer_kwargs)  # noqa: F821
            self.scale = Parameter(torch.tensor([scale]))

    made = ExampleFakeQuantize(ExampleObserver, quant_min=-8, quant_max=7)
    assert (made.quant_min, made.quant_max, made.bitwidth) == (-8, 7, 4)
    with pytest.raises(RunError) as error:
        prepare_by_platform(nn.Sequential(nn.Linear(4, 2)), "academic", _own(Wrong))
    assert "super(TqtFakeQuantize, self).__init__" in error.value.found
    assert error.value.to_do == "write super().__init__(...), which names no class"


def test_004_04_flags():
    """observer_enabled and fake_quant_enabled say what forward does."""
    made = ExampleFakeQuantize(MyLsqObserver, qscheme=torch.per_tensor_symmetric, quant_min=-8, quant_max=7)
    x = torch.tensor([0.3, 7.0])
    made.fake_quant_enabled[0] = 0
    assert torch.equal(made(x), x)
    assert made.scale.item() == 1.0, "of the observer: 7 / 7"
    made.observer_enabled[0], made.fake_quant_enabled[0] = 0, 1
    assert made(torch.tensor([0.3, 9.0])).tolist() == [0.0, 7.0]


def test_004_05_the_scale_is_learned(example):
    """The scale is a Parameter that training moves by ExampleQuant.backward."""
    model = prepare_by_platform(ExampleNet(), example)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # before calibration
    enable_calibration(model)
    model(IMAGES)
    enable_quantization(model)
    before = scales(model)
    model.train()
    model(IMAGES).square().mean().backward()
    gradients = {q.name: q.inner.scale.grad.item() for q in model.modules() if q is not model and hasattr(q, "inner")}
    optimizer.step()
    after = scales(model)
    assert after["x"] == pytest.approx(before["x"] - 1e-4 * gradients["x"])
    assert all(after[name] != before[name] for name in before)


# ---- 6-7: the observer ----


def test_004_06_example_observer():
    """ExampleObserver: its constructor verbatim; `g`, which the document leaves open, is asked for with its line."""
    made = ExampleObserver(torch.qint8, torch.per_tensor_symmetric, False, -8, 7, -1, True)
    assert (made.quant_min, made.quant_max, made.ch_axis, made.pot_scale) == (-8, 7, -1, True)
    usual = ExampleObserver()
    assert (usual.quant_min, usual.quant_max) == (0, 255)

    class AsPrinted(ExampleObserver):
        def forward(self, x_orig):
            x = x_orig.to(self.min_val.dtype)
            self.collected = g(x)  # noqa: F821
            return x

    with pytest.raises(RunError) as error:
        calibrated(nn.Sequential(nn.Linear(4, 2)), "academic", torch.randn(2, 4), _own(ExampleFakeQuantize, AsPrinted))
    assert "self.collected = g(x)" in error.value.found
    assert error.value.to_do == "define g"


def test_004_07_four_values(example):
    """calculate_qparams that gives s, z, n, q: the first two are the scale and the zero point."""
    model = calibrated(ExampleNet(), example)
    assert scales(model)["x"] == pytest.approx(0.9 * IMAGES.abs().max().item() / 127)
    per_channel = {
        "w_fakequantize": ExampleFakeQuantize,
        "w_observer": ExampleObserver,
        "w_qscheme": {"per_channel": True},
    }
    wrong = prepare_by_platform(ExampleNet(), BackendType.Tensorrt, {"extra_qconfig_dict": per_channel})
    enable_calibration(wrong)
    wrong(IMAGES)
    with pytest.raises(SchemeError, match="gives 1 scales where there are 4"):
        enable_quantization(wrong)


# ---- 8-9: registering ----


def test_004_08_backend_type_and_params_table(example):
    """A backend in the enumeration BackendType and a scheme in its table: one call, register_backend."""
    assert BackendType(example).value == "example"
    model = calibrated(ExampleNet(), BackendType(example))
    assert model.prepared.backend.name == "example"
    assert {entry.observer for entry in model.prepared.plan.quantized} == {"mqbench.ExampleObserver"}


@pytest.mark.parametrize(
    ("symmetry", "per_channel", "expected"),
    [
        (True, False, "int8 symmetric per-tensor"),
        (True, True, "int8 symmetric per-channel(0)"),
        (False, False, "int8 affine per-tensor"),
        (False, True, "int8 affine per-channel(0)"),
    ],
    ids=["symmetric", "symmetric-channels", "affine", "affine-channels"],
)
def test_004_09_quantization_scheme(symmetry, per_channel, expected):
    """The quantization scheme: per channel or per tensor, symmetric or asymmetric."""
    scheme = {"bit": 8, "symmetry": symmetry, "per_channel": per_channel, "pot_scale": False}
    model = prepare_by_platform(
        ExampleNet(), BackendType.Academic, {"extra_qconfig_dict": {"w_qscheme": scheme}}, example_inputs=(IMAGES,)
    )
    assert str(model.prepared.plan["conv.weight"].scheme) == expected


# ---- 10-14: quantization nodes ----


class Sigmoids(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.sigmoid, self.fc = nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(torch.tanh(self.sigmoid(self.conv(x))).flatten(1))


def prepared_by(quantizer: type[ModelQuantizer], net: nn.Module, name: str, custom=None):
    backend = register_backend(name)
    register_model_quantizer(backend)(quantizer)
    return calibrated(net, backend, custom=custom)


def test_004_10_function_type_to_quant_input():
    """function_type_to_quant_input with torch.tanh: what it takes in is quantized."""

    class Quantizer(ModelQuantizer):
        @property
        def function_type_to_quant_input(self) -> list:
            return [torch.tanh, *self.additional_function_type]

    usual = calibrated(Sigmoids(), BackendType.Tensorrt)
    assert "sigmoid" not in quantized(usual)
    model = prepared_by(Quantizer, Sigmoids(), "tanh_chip")
    assert model.prepared.plan["sigmoid"].why == "input of tanh"


def test_004_11_module_type_to_quant_input():
    """module_type_to_quant_input with nn.Sigmoid behind a convolution: the two are not fused, and it is quantized."""

    class Quantizer(ModelQuantizer):
        @property
        def module_type_to_quant_input(self) -> tuple:
            return (nn.Sigmoid, *self.additional_module_type)

    assert "conv" not in quantized(calibrated(Sigmoids(), BackendType.Tensorrt))
    model = prepared_by(Quantizer, Sigmoids(), "sigmoid_chip")
    assert model.prepared.plan["conv"].why == "input of sigmoid"
    extra = {"extra_quantizer_dict": {"additional_module_type": (nn.Sigmoid,)}}
    assert "conv" in quantized(calibrated(Sigmoids(), BackendType.Tensorrt, custom=extra))


def test_004_12_example_mod(deployed):
    """module_type_to_quant_input with ExampleMod, of which Detent knows nothing: what it takes in is quantized."""
    model, _ = deployed
    assert model.prepared.plan["relu"].why == "input of ExampleMod"
    without = prepare_by_platform(ExampleNet(), BackendType.Tensorrt, is_qat=False, example_inputs=(IMAGES,))
    assert "mod" not in {entry.tensor for entry in without.prepared.plan}, "its code was traced into"


def test_004_13_example_func(deployed):
    """function_type_to_quant_input with example_func, a function of one's own: what it takes in is quantized."""
    model, folder = deployed
    entry = model.prepared.plan["mod"]
    assert (entry.why, str(entry.scheme)) == ("input of function example_func", "int8 symmetric per-tensor")
    session = onnxruntime.InferenceSession(folder / "net" / "model.onnx")
    (given,) = session.run(None, {"x": IMAGES.numpy()})
    # Sigmoid and tanh of another library may differ in their last bits; no value here lies on the edge of a code.
    np.testing.assert_allclose(given, model(IMAGES).detach().numpy(), atol=1e-3)


def test_004_14_find_act_quants_is_overridden():
    """A ModelQuantizer subclass: an overridden _find_act_quants says which tensors are quantized."""

    class Quantizer(ModelQuantizer):
        def _find_act_quants(self, model: fx.GraphModule) -> list:
            found = super()._find_act_quants(model)
            assert [node.name for node in found] == ["x", "tanh"]
            behind = [node for node in model.graph.nodes if node.name == "conv"]
            return [node for node in found if node.name != "x"] + behind

    model = prepared_by(Quantizer, Sigmoids(), "finding_chip")
    assert quantized(model) == {"conv", "tanh", "flatten"}, "flatten has the numbers of tanh"
    assert model.prepared.plan["x"].reason == "the backend's own rule leaves it out"


def test_004_14_prepare_is_overridden():
    """A ModelQuantizer subclass: an overridden prepare changes what goes in and what comes out."""

    class Quantizer(ModelQuantizer):
        def prepare(self, model, qconfig):
            made = super().prepare(model, qconfig.replace(exclude=("fc",)))
            made.marked = True
            return made

    class Nothing(ModelQuantizer):
        def prepare(self, model, qconfig):
            return model

    model = prepared_by(Quantizer, Sigmoids(), "preparing_chip")
    assert model.prepared.marked
    assert quantized(model) == {"x"}
    with pytest.raises(RecipeError, match=r"return what super\(\).prepare gives"):
        prepared_by(Nothing, Sigmoids(), "nothing_chip")


def test_004_14_additional_node_name():
    """extra_quantizer_dict: additional_node_name quantizes what a node gives."""
    custom = {"extra_quantizer_dict": {"additional_node_name": ["sigmoid"]}}
    assert "sigmoid" in quantized(calibrated(Sigmoids(), BackendType.Tensorrt, custom=custom))
    with pytest.raises(RecipeError, match="the nodes are x, conv"):
        calibrated(Sigmoids(), BackendType.Tensorrt, custom={"extra_quantizer_dict": {"additional_node_name": ["no"]}})


def test_004_14_custom_tracer():
    """custom_tracer: is_leaf_module and trace of one's own are called."""

    class Whole(fx.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, ExampleMod) or super().is_leaf_module(m, module_qualified_name)

    class Without(CustomTracer):
        def trace(self, root, concrete_args=None):
            graph = super().trace(root, concrete_args)
            (mod,) = [node for node in graph.nodes if node.target == "relu"]
            mod.replace_all_uses_with(mod.args[0])
            graph.erase_node(mod)
            return graph

    model = calibrated(ExampleNet(), BackendType.Tensorrt, custom_tracer=Whole())
    assert model.prepared.plan["mod"].kind == "ExampleMod"
    model = calibrated(ExampleNet(), BackendType.Tensorrt, custom_tracer=Without())
    assert "relu" not in {entry.tensor for entry in model.prepared.plan}


# ---- 15-21: deploying ----


def test_004_15_merge_bn(tmp_path):
    """The deploy stage fuses batch norms into the modules before."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    net[1].running_mean.fill_(0.7)
    convert_deploy(calibrated(net, BackendType.Tensorrt), BackendType.Tensorrt, output_path=tmp_path, model_name="net")
    assert "BatchNormalization" not in {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    (given,) = onnxruntime.InferenceSession(tmp_path / "net_deploy_model.onnx").run(None, {"input_1": IMAGES.numpy()})
    np.testing.assert_allclose(given, net.eval()(IMAGES).detach().numpy(), atol=0.05)  # steps of 8 bits of about 1


class ExampleQuantKernel(OpRun):
    """What the node means, for the reference evaluator of onnx."""

    op_domain = ""

    def _run(self, x, scale, zero_point, quant_min=None, quant_max=None):
        codes = np.clip(np.rint(x / scale) + zero_point, quant_min, quant_max)
        return (((codes - zero_point) * scale).astype(np.float32),)


ExampleQuantKernel.__name__ = "ExampleQuant"  # by which it is found


def test_004_16_onnx_with_quantization_nodes(example, tmp_path):
    """The ONNX graph with quantization nodes computes what the one with Q and DQ does."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 32, 32)
    narrow = {"a_qscheme": {"bit": 8, "symmetry": True, "per_channel": False, "symmetric_range": True}}  # with Clips
    net = resnet18(width=0.125, classes=4, depths=(1, 1, 1, 1)).eval()
    model = calibrated(net, example, images, {"extra_qconfig_dict": narrow})
    convert_deploy(model, example, output_path=tmp_path, model_name="net")
    own = onnx.load(tmp_path / "net.onnx")
    assert not {"QuantizeLinear", "Clip"} & {node.op_type for node in own.graph.node}
    (given,) = ReferenceEvaluator(own, new_ops=[ExampleQuantKernel]).run(None, {"x": images.numpy()})
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(tmp_path / "net" / "model.onnx", plain)
    (expected,) = session.run(None, {"x": images.numpy()})
    # Two libraries sum in another order; no value here lies on the edge of a code.
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-5)


def test_004_17_onnx_after_removal(deployed):
    """The ONNX graph after removing FakeQuantizeAffine, and the collected parameters."""
    model, folder = deployed
    network = onnx.load(folder / "net_deploy_model.onnx")
    onnx.checker.check_model(network)
    assert not {"ExampleQuant", "QuantizeLinear"} & {node.op_type for node in network.graph.node}
    written = json.loads((folder / "net_clip_ranges.json").read_text())["example"]
    assert {"x", "conv.weight", "relu", "fc.weight"} <= set(written)
    assert len(written) == len({entry.shares or entry.tensor for entry in model.prepared.plan.quantized})


def test_004_18_what_the_json_says(deployed):
    """The platform needs (scale, zero_point, quant_min, quant_max, round_mode): the JSON has them."""
    model, folder = deployed
    written = json.loads((folder / "net_clip_ranges.json").read_text())["example"]
    assert written["x"] == {
        "scale": pytest.approx(scales(model)["x"]), "zero_point": 0, "quant_min": -128, "quant_max": 127,
        "round_mode": "half_even",
    }  # fmt: skip


def test_004_19_linear_quantizer_process(deployed):
    """LinearQuantizer_process derived, backend == 'example', do_translate."""
    operations, context = DEPLOYED[0]
    assert operations[:2] == ["Conv", "Relu"]
    assert "Gemm" in operations
    assert context["example"]["x"]["quant_max"] == 127
    _, folder = deployed
    _, again = LinearQuantizer_process().remove_fakequantize_and_collect_params(folder / "net.onnx", "again", "other")
    assert again["other"] == context["example"]


def test_004_20_remove_fakequantize_and_collect_params(tmp_path):
    """remove_fakequantize_and_collect_params for linear and for logarithmic quantization."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    for backend in (BackendType.NNIE, BackendType.Tensorrt):
        (tmp_path / backend.name).mkdir()
        model = calibrated(net, backend, is_qat=False)
        convert_deploy(model, backend, output_path=tmp_path / backend.name, model_name="net")
    network, collected = remove_fakequantize_and_collect_params_nnie(tmp_path / "NNIE" / "net.onnx", "again")
    assert list(collected["nnie"]["gfpq_param_dict"]) == ["_0", "_2"]
    assert [node.op_type for node in network.graph.node][:3] == ["Conv", "Relu", "Conv"]
    network, collected = remove_fakequantize_and_collect_params(tmp_path / "Tensorrt" / "net.onnx", "again", "tensorrt")
    assert collected["tensorrt"]["input_1"]["scale"] == pytest.approx(IMAGES.abs().max().item() / 127, rel=1e-5)
    assert "QuantizeLinear" not in {node.op_type for node in network.graph.node}


def test_004_21_convert_deploy(deployed):
    """convert_deploy and register_deploy_function: the function runs, and the files have MQBench's names."""
    _, folder = deployed
    assert len(DEPLOYED) >= 1
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert {"net.onnx", "net_deploy_model.onnx", "net_clip_ranges.json"} <= names


# ---- 22-25: MQBench's own backends ----


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("is_qat", [False, True], ids=["ptq", "qat"])
@pytest.mark.parametrize("name", list(BackendType.__members__))
def test_004_22_every_backend_deploys(name, is_qat, tmp_path):
    """The 14 members of BackendType prepare, calibrate, train and deploy; an engine computes what was simulated."""
    assert len(BackendType.__members__) == 14
    backend = BackendType[name]
    model = calibrated(small_net(), backend, BATCH, is_qat=is_qat)
    if is_qat:
        model.train()
        model(BATCH).square().mean().backward()
        model.eval()
    artifact = convert_deploy(model, backend, {"x": [1, 3, 8, 8]}, output_path=tmp_path, model_name="net")
    assert (tmp_path / "net.onnx").is_file()
    assert artifact.manifest["backend"] == backend.value
    with torch.no_grad():
        simulated = model(BATCH)
        # Numbers of about 1 after four quantized layers of 8 bits; the logarithmic grid of NNIE is coarser.
        assert (simulated - small_net()(BATCH)).abs().max() < (0.1 if backend is BackendType.NNIE else 0.05)
    if backend is not BackendType.NNIE:  # whose grid ONNX cannot say
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.x64quantprecision", "1")  # no saturation on any CPU
        session = onnxruntime.InferenceSession(tmp_path / "net.onnx", options)
        (given,) = session.run(None, {"x": BATCH.numpy()})
        # A code that lies on a tie may be one off, in float as on the DPU, which rounds ties up: a step of the output.
        assert np.abs(given - simulated.numpy()).max() < 0.02


@pytest.mark.parametrize(
    ("backend", "scale", "path", "said"),
    [
        (BackendType.Tensorrt, 3.456 / 128, ("tensorrt", "blob_range", "x"), lambda scale, _: 127 * scale),
        (BackendType.SNPE, 6.557 / 255, ("activation_encodings", "x", 0, "min"), lambda scale, zero: -zero * scale),
        (
            BackendType.SNPE,
            6.557 / 255,
            ("activation_encodings", "x", 0, "max"),
            lambda scale, zero: (255 - zero) * scale,
        ),
        (BackendType.Vitis, 2**-5, ("vitis", "x", "scale"), lambda scale, _: scale),
        (BackendType.PPLW8A16, 6.557 / 65535, ("ppl", "x", "step"), lambda scale, _: scale),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_004_23_clip_ranges(backend, scale, path, said, tmp_path):
    """clip_ranges.json of Tensorrt (blob_range), SNPE (activation_encodings), Vitis (scale), PPL (step)."""
    model = calibrated(small_net(), backend, BATCH)  # from -3.456 to 3.101
    convert_deploy(model, backend, output_path=tmp_path, model_name="net")
    qparams = model.prepared.activation_quantizers["x"].qparams()
    assert qparams.scale.item() == pytest.approx(scale, rel=1e-3)
    held = json.loads((tmp_path / "net_clip_ranges.json").read_text())
    for key in path:
        held = held[key]
    assert held == pytest.approx(said(qparams.scale.item(), qparams.zero_point.item()))
    assert (tmp_path / "net_deploy_model.onnx").is_file()


def test_004_23_presets():
    """clip_ranges.json of MQBench's backends; PPLCUDA: symmetric, because OpenPPL's CUDA kernels have no zero point."""
    model = calibrated(nn.Sequential(nn.Conv2d(3, 4, 3)), BackendType.PPLCUDA)
    assert {entry.scheme.symmetric for entry in model.prepared.plan.quantized} == {True}
    affine = {"extra_qconfig_dict": {"a_qscheme": {"bit": 8, "symmetry": False, "per_channel": False}}}
    with pytest.raises(SchemeError, match="symmetric"):
        calibrated(nn.Sequential(nn.Conv2d(3, 4, 3)), BackendType.PPLCUDA, custom=affine)


PRESETS = [BackendType.Tensorrt, BackendType.SNPE, BackendType.OPENVINO, BackendType.QDQ]


@pytest.mark.parametrize("is_qat", [False, True], ids=["ptq", "qat"])
@pytest.mark.parametrize("backend", PRESETS, ids=lambda one: one.name)
def test_004_24_observers_of_presets(backend, is_qat):
    """prepare_by_platform presets: weights have the range of MinMax, activations that of EMAMinMax, trained or not."""
    model = prepare_by_platform(nn.Sequential(nn.Conv2d(3, 4, 3)), backend, is_qat=is_qat).eval()
    first, second = IMAGES, 3 * IMAGES
    enable_calibration(model)
    model(first)
    model(second)
    enable_quantization(model)
    found = {one.name: one for one in quantizers_of(model.prepared)}
    weight = model.prepared.get_parameter("0.parametrizations.weight.original").detach()
    axes = (1, 2, 3) if isinstance(found["0.weight"].scheme.granularity, PerChannel) else (0, 1, 2, 3)
    for name, low, high in (
        ("input_1", 0.9 * first.min() + 0.1 * second.min(), 0.9 * first.max() + 0.1 * second.max()),
        ("0.weight", weight.amin(axes), weight.amax(axes)),
    ):
        entry, scheme = model.prepared.plan[name], found[name].scheme
        assert entry.quantizer in ({"lsq", "lsq_plus"} if is_qat else {"fixed"})
        steps = scheme.grid.qmax if scheme.symmetric else scheme.grid.qmax - scheme.grid.qmin
        span = torch.maximum(-low, high) if scheme.symmetric else high - low
        wider = 1.0 if entry.pairs is None else found[name].widening  # so that no CPU saturates
        assert found[name].qparams().scale.mean().item() == pytest.approx(
            wider * (span / steps).mean().item(), rel=0.01
        )


def test_004_25_convert_xir():
    """convert_xir: AMD's compiler is not to be had here; one sentence says so."""
    with pytest.raises(DeployError, match="needs AMD's compiler"):
        convert_xir(None)


def test_004_unused_names_are_the_documents():
    """What the document leaves open is filled in by functions of the user's own."""
    assert example_func(torch.tensor(2.0)).item() == pytest.approx(np.tanh(2.0) - 1.0)
