"""Document 002, PPQ's "Customize Your Quantization Platform", item by item.

Its code has only other imports. The first line of each docstring is the item.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

from detent.compat.ppq import (
    BaseGraph,
    BaseQuantizer,
    Operation,
    OperationQuantizationConfig,
    QuantizationPolicy,
    QuantizationProperty,
    QuantizationSettingFactory,
    QuantizationStates,
    Quantizer,
    RoundingPolicy,
    TargetPlatform,
    TorchExecutor,
    dispatch_graph,
    export_ppq_graph,
    load_caffe_graph,
    load_onnx_graph,
    register_network_quantizer,
)
from detent.errors import EngineError, RangeError, RecipeError, RegistrationError, RunError, SchemeError, TensorError
from detent.graph import FloatTensor
from detent.targets.base.ppq_json import read_ppq
from tests.compat.ppq_nets import batches, save_net
from tests.frontends.caffe.test_caffe import save as save_caffe

P, S, R = QuantizationProperty, QuantizationStates, RoundingPolicy
LAYERS = ("conv1", "conv2", "fc")


# ## Create Your Platform
class Listed:
    """The document's list, as it stands there."""

    @classmethod
    def is_quantized_platform(cls, platform) -> bool:
        cls = TargetPlatform
        return platform in {
            cls.PPL_DSP_INT8, cls.PPL_DSP_TI_INT8, cls.QNN_DSP_INT8, cls.TRT_INT8, cls.NCNN_INT8, cls.NXP_INT8,
            cls.SNPE_INT8, cls.PPL_CUDA_INT8, cls.PPL_CUDA_INT4, cls.EXTENSION, cls.PPL_CUDA_MIX, cls.ORT_OOS_INT8,
            cls.ACADEMIC_INT4, cls.ACADEMIC_INT8, cls.ACADEMIC_MIX, cls.METAX_INT8_C, cls.METAX_INT8_T
        }  # fmt: skip


# ## Inherit BaseQuantizer, ## Confirm Quantization Scheme, ## Correct Quantization Details
class ACADEMICQuantizer(BaseQuantizer):
    """ACADEMICQuantizer applies a loose quantization scheme where only input
    variables of computing ops are quantized(symmetrical per-tensor for weight
    and asymmetrical per-tensor for activation).

    This setting doesn't align with any kind of backend for now and it's
    designed only for purpose of paper reproducing and algorithm verification.
    """

    def __init__(self, graph: BaseGraph, verbose: bool = True) -> None:
        self._num_of_bits = 8
        self._quant_min = 0
        self._quant_max = 255
        super().__init__(graph, verbose)

    @property
    def target_platform(self) -> TargetPlatform:

        return TargetPlatform.ACADEMIC_INT8

    @property
    def quant_operation_types(self) -> set:
        return {
            'Conv', 'Gemm', 'ConvTranspose'
        }  # fmt: skip

    @property
    def quantize_policy(self) -> QuantizationPolicy:
        return QuantizationPolicy(
            QuantizationProperty.ASYMMETRICAL +
            QuantizationProperty.LINEAR +
            QuantizationProperty.PER_TENSOR
        )  # fmt: skip

    @property
    def rounding_policy(self) -> RoundingPolicy:

        return RoundingPolicy.ROUND_HALF_EVEN

    # fmt: off
    def as_printed(self, operation: Operation) -> OperationQuantizationConfig:

        # create a basic quantization configuration.
        config = self.create_default_quant_config(
                operation_meta=operation.meta_data, num_of_bits=self._num_of_bits,
                quant_max=self._quant_max, quant_min=self._quant_min,
                observer_algorithm='percentile', policy=self.quantize_policy,
                rounding=self.rounding_policy,
        )

        # actually usually only support quantization of inputs of computing
        # ops in academic settings
        if operation.type in {'Conv', 'Gemm', 'ConvTranspose'}:

            W_config = config.input_quantization_config[1]  # noqa: N806
            output_config = config.output_quantization_config[0]

            W_config.quant_max = int(pow(2, self._num_of_bits - 1) - 1)
            W_config.quant_min = - int(pow(2, self._num_of_bits - 1))
            W_config.policy = QuantizationPolicy(
                QuantizationProperty.SYMMETRICAL +
                QuantizationProperty.LINEAR +
                QuantizationProperty.PER_TENSOR
            )
            output_config.state = QuantizationStates.FP32


            if operation.num_of_input == 3:
                bias_config = config.input_quantization_config[-1]
                # bias should be quantized with 32 bits
                # in python3, int indicates long long in C++
                # so that it has enough precision to represent a number like 2^32
                # however, it may cause a scale underflow
                # here we give bias a 30 bits precision, which is pettery enough in all cases
                bias_config.num_of_bits = 30
                bias_config.quant_max = int(pow(2, 30 - 1) - 1)
                bias_config.quant_min = - int(pow(2, 30 - 1))
                bias_config.policy = QuantizationPolicy(
                    QuantizationProperty.SYMMETRICAL +
                    QuantizationProperty.LINEAR +
                    QuantizationProperty.PER_TENSOR)
                bias_config.state = QuantizationStates.PASSIVE_INIT

            for tensor_config in config.input_quantization_config[1: ]:
                tensor_config.observer_algorithm = 'minmax'

        self.printed = config  # where the document's function ends
    # fmt: on

    def init_quantize_config(self, operation: Operation) -> OperationQuantizationConfig:
        self.as_printed(operation)
        return self.printed


# ## Register Your Quantizer And Platform
class MyQuantizer(BaseQuantizer):
    def init_quantize_config(self, operation: Operation) -> OperationQuantizationConfig:
        # Implement this function first!
        return super().init_quantize_config(operation)

    def quant_operation_types(self) -> set:
        return {'Conv', 'Gemm'}  # fmt: skip


@pytest.fixture(autouse=True)
def _quantizers(monkeypatch):
    """What a test registers is gone after it."""
    from detent.compat.ppq import quantizer

    monkeypatch.setattr(quantizer, "_QUANTIZERS", {})


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return save_net(tmp_path / "net.onnx")


def run_document(model_path, target_platform, dataloader, calib_steps=8, setting=None):
    """The document's last listing."""
    EXECUTING_DEVICE = "cpu"  # noqa: N806
    setting = setting or QuantizationSettingFactory.default_setting()
    dummy_input = dataloader[0]

    ppq_graph_ir = load_onnx_graph(model_path)  # for onnx
    ppq_graph_ir = dispatch_graph(ppq_graph_ir, target_platform, setting)  # schedule your graph

    executor = TorchExecutor(ppq_graph_ir, device=EXECUTING_DEVICE)  # initialize executor

    quantizer = Quantizer(target_platform, ppq_graph_ir)  # your quantizer
    quantizer.quantize(
        inputs=dummy_input,  # some random input tensor, should be list or dict for multiple inputs
        calib_dataloader=dataloader,  # calibration dataloader
        executor=executor,  # executor in charge of everywhere graph execution is needed
        setting=setting,  # quantization setting
        calib_steps=calib_steps,  # number of batched data needed in calibration, 8~512
        collate_fn=lambda x: x.to(EXECUTING_DEVICE),  # final processing of batched data tensor
    )
    return ppq_graph_ir, executor


@pytest.fixture
def academic(model_path):
    """The graph that the document's quantizer, or one derived from it, gives, and its executor."""

    def run(cls=ACADEMICQuantizer, **settings):
        register_network_quantizer(quantizer=cls, platform=TargetPlatform.ACADEMIC_INT8)
        return run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches(), **settings)

    return run


def changed(change):
    """The document's quantizer, whose configs a function changes."""

    class Changed(ACADEMICQuantizer):
        def init_quantize_config(self, operation: Operation) -> OperationQuantizationConfig:
            config = super().init_quantize_config(operation)
            change(operation, config)
            return config

    return Changed


def noise(graph, executor):
    """Noise over signal of the outputs."""
    real, data = TorchExecutor(load_onnx_graph(graph.name), "cpu"), batches()[0]
    exact, found = real.forward(data)[0], executor.forward(data)[0]
    return float((exact - found).square().sum() / exact.square().sum())


# ## Create Your Platform


def test_002_01_a_platform_of_ones_own(model_path, tmp_path):
    """Name and create your platform in TargetPlatform: it is dispatched to, quantized on and exported for."""
    mine = TargetPlatform.create("DOCUMENT_002_INT8")

    class Mine(ACADEMICQuantizer):
        target_platform = mine

    assert TargetPlatform.DOCUMENT_002_INT8 is TargetPlatform(mine.value) is mine
    assert mine in list(TargetPlatform)
    register_network_quantizer(quantizer=Mine, platform=TargetPlatform.DOCUMENT_002_INT8)
    graph, _ = run_document(model_path, mine, batches())
    assert [graph.operations[name].platform for name in LAYERS] == [mine] * 3
    (path,) = export_ppq_graph(graph, mine, tmp_path / "mine")
    assert sum(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node) == 3
    with pytest.raises(RegistrationError, match="TRT_INT8 = 101 is taken"):
        TargetPlatform.create("DOCUMENT_002_OTHER", 101)


def test_002_02_the_quantized_platforms():
    """is_quantized_platform and the 17 members of its collection; a platform of one's own is one too."""
    listed = [one for one in TargetPlatform if Listed.is_quantized_platform(one)]
    assert len(listed) == 17
    assert all(TargetPlatform.is_quantized_platform(one) for one in listed)
    assert TargetPlatform.is_quantized_platform(TargetPlatform.create("DOCUMENT_002_INT8"))
    assert not any(TargetPlatform.is_quantized_platform(one) for one in (TargetPlatform.FP32, TargetPlatform.SOI))


# ## Inherit BaseQuantizer


def test_002_03_the_constructor(model_path):
    """class ACADEMICQuantizer(BaseQuantizer), its constructor as it is printed."""
    quantizer = ACADEMICQuantizer(load_onnx_graph(model_path))
    assert (quantizer._num_of_bits, quantizer._quant_min, quantizer._quant_max) == (8, 0, 255)


def test_002_04_an_asymmetric_platform(academic):
    """_quant_min = 0, _quant_max = 255: activations are uint8 with a zero point."""
    graph, _ = academic()
    plan = graph.prepared.plan
    assert {str(plan[name].scheme) for name in ("x", "r1", "f")} == {"uint8 affine per-tensor"}
    assert plan["r1"].users == ("c2",)  # the sum takes r1 in float
    data = graph.operations["conv1"].config.input_quantization_config[0]
    assert (data.quant_min, data.quant_max) == (0, 255)
    assert 0 < data.offset < 255


@pytest.mark.parametrize(
    ("least", "scheme"), [(-128, "int8 symmetric per-tensor"), (-127, "int8 narrow symmetric per-tensor")]
)
def test_002_05_a_symmetric_platform(academic, least, scheme):
    """_quant_min = -128 or -127, it depends on the clip boundary of your backend."""

    class Symmetric(ACADEMICQuantizer):
        def __init__(self, graph: BaseGraph, verbose: bool = True) -> None:
            super().__init__(graph, verbose)
            self._num_of_bits = 8
            self._quant_min = least  # or -127, it depends the clip boundary of your backend
            self._quant_max = 127

        @property
        def quantize_policy(self) -> QuantizationPolicy:
            return QuantizationPolicy(P.SYMMETRICAL + P.LINEAR + P.PER_TENSOR)

    graph, _ = academic(Symmetric)
    assert str(graph.prepared.plan["x"].scheme) == scheme


# ## Confirm Quantization Scheme


def test_002_06_the_target_platform(academic, model_path):
    """target_platform: operations of the quantizer's types are dispatched to it; another registration is refused."""
    graph, _ = academic()
    platforms = {name: one.platform.name for name, one in graph.operations.items()}
    assert platforms == {
        "conv1": "ACADEMIC_INT8", "relu1": "FP32", "conv2": "ACADEMIC_INT8", "add": "FP32", "gap": "FP32",
        "flatten": "FP32", "fc": "ACADEMIC_INT8",
    }  # fmt: skip
    register_network_quantizer(quantizer=ACADEMICQuantizer, platform=TargetPlatform.NXP_INT8)
    with pytest.raises(RegistrationError, match="its target_platform is ACADEMIC_INT8"):
        Quantizer(TargetPlatform.NXP_INT8, load_onnx_graph(model_path))


@pytest.mark.parametrize("form", ["property", "method"])
def test_002_07_quant_operation_types(academic, form):
    """quant_operation_types as a property, and as a method."""

    def types(self) -> set:  # noqa: ARG001
        return {"Conv"}

    members = {"quant_operation_types": property(types) if form == "property" else types}
    graph, _ = academic(type("Own", (ACADEMICQuantizer,), members))
    weights = [one.tensor for one in graph.prepared.plan.quantized if one.role == "weight"]
    assert weights == ["conv1.weight", "conv2.weight"]


def test_002_08_the_policy_of_activations(academic):
    """quantize_policy: the scheme of activations, here powers of two."""

    class PowersOfTwo(ACADEMICQuantizer):
        @property
        def quantize_policy(self) -> QuantizationPolicy:
            return QuantizationPolicy(P.ASYMMETRICAL + P.LINEAR + P.PER_TENSOR + P.POWER_OF_2)

    graph, _ = academic(PowersOfTwo)
    config = graph.operations["conv1"].config.input_quantization_config[0]
    assert torch.log2(config.scale) == torch.log2(config.scale).round()
    assert config.policy == QuantizationPolicy(P.ASYMMETRICAL + P.LINEAR + P.PER_TENSOR + P.POWER_OF_2)


def test_002_09_policies():
    """QuantizationProperty: eight linear static policies are valid; one that contradicts itself is refused."""
    found = [
        QuantizationPolicy(P.LINEAR + sign + shape + power)
        for sign in (P.SYMMETRICAL, P.ASYMMETRICAL)
        for shape in (P.PER_TENSOR, P.PER_CHANNEL)
        for power in (P(0), P.POWER_OF_2)
    ]
    assert len({one.request()["symmetric"] for one in found}) == 2
    assert len(set(found)) == 8
    with pytest.raises(SchemeError, match="it is none of the 18"):
        QuantizationPolicy(P.SYMMETRICAL + P.ASYMMETRICAL + P.LINEAR + P.PER_TENSOR)


@pytest.mark.parametrize(
    ("rounding", "codes"),
    [
        (R.ROUND_HALF_EVEN, [-2, -2, 0, 0, 2, 2]),
        (R.ROUND_HALF_UP, [-2, -1, 0, 1, 2, 3]),
        (R.ROUND_HALF_DOWN, [-3, -2, -1, 0, 1, 2]),
        (R.ROUND_HALF_TOWARDS_ZERO, [-2, -1, 0, 0, 1, 2]),
        (R.ROUND_HALF_FAR_FORM_ZERO, [-3, -2, -1, 1, 2, 3]),
        (R.ROUND_TO_NEAR_INT, [-3, -2, -1, 1, 2, 3]),
        (R.ROUND_UP, [-2, -1, 0, 1, 2, 3]),
        (R.ROUND_DOWN, [-3, -2, -1, 0, 1, 2]),
    ],
    ids=lambda one: one.name if isinstance(one, RoundingPolicy) else "",
)
def test_002_10_roundings(academic, rounding, codes):
    """rounding_policy: all eight, on ties."""

    def ask(_, config):
        data = config.input_quantization_config[0]
        data.policy = QuantizationPolicy(P.SYMMETRICAL + P.LINEAR + P.PER_TENSOR)
        data.quant_min, data.quant_max, data.state, data.scale, data.offset = -128, 127, S.ACTIVATED, 1.0, 0
        data.rounding = rounding

    graph, _ = academic(changed(ask))
    quantizer = graph.prepared.get_submodule("activation_quantizers.x")
    assert quantizer(torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])).tolist() == codes


# ## Correct Quantization Details


def test_002_11_the_default_config(model_path):
    """create_default_quant_config(operation_meta=...): one config for every variable of the operation."""
    graph = load_onnx_graph(model_path)
    quantizer = ACADEMICQuantizer(graph)
    config = quantizer.create_default_quant_config(
        operation_meta=graph.operations["conv1"].meta_data, num_of_bits=8, quant_max=255, quant_min=0,
        observer_algorithm="percentile", policy=quantizer.quantize_policy, rounding=quantizer.rounding_policy,
    )  # fmt: skip
    assert (len(config.input_quantization_config), len(config.output_quantization_config)) == (3, 1)
    assert {(one.num_of_bits, one.quant_max, one.observer_algorithm, one.state) for one in config} == {
        (8, 255, "percentile", S.INITIAL)
    }


def test_002_12_a_function_that_returns_nothing(academic):
    """init_quantize_config as it is printed, without a return: answered with the function, its line and the remedy."""

    class Printed(ACADEMICQuantizer):
        init_quantize_config = ACADEMICQuantizer.as_printed

    line = ACADEMICQuantizer.as_printed.__code__.co_firstlineno
    with pytest.raises(RecipeError, match=f"init_quantize_config of Printed .line {line} of .*returned None") as error:
        academic(Printed)
    assert error.value.to_do == "end it with `return config`"


def test_002_12_a_name_that_is_not_imported(academic):
    """init_quantize_config with a name that its file does not import: answered with the line and the import."""
    source = "def init_quantize_config(self, operation):\n    return QuantizationPolicy(0)\n"
    names: dict[str, object] = {}
    exec(source, names)  # where the names of this file are not there
    with pytest.raises(RunError, match="line 2: ") as error:
        academic(type("Bare", (ACADEMICQuantizer,), {"init_quantize_config": names["init_quantize_config"]}))
    assert error.value.asked == "the config of 'conv1'"
    assert error.value.to_do == "write from detent.compat.ppq import QuantizationPolicy at the top of that file"


def test_002_13_weights(academic):
    """W_config: quant_min, quant_max and policy of the weight: int8, symmetric, per tensor."""
    graph, _ = academic()
    plan = graph.prepared.plan
    assert {(str(plan[f"{one}.weight"].scheme), plan[f"{one}.weight"].observer) for one in LAYERS} == {
        ("int8 symmetric per-tensor", "minmax")
    }
    weight = graph.operations["conv1"].config.input_quantization_config[1]
    most = graph.module.get_submodule("conv1").weight.abs().max().item()
    assert weight.scale.item() == pytest.approx(most / 127.5, rel=0.01)


def test_002_14_float_outputs(academic):
    """output_config.state = FP32: what the operations give stays float."""
    graph, _ = academic()
    assert {graph.operations[name].config.output_quantization_config[0].state for name in LAYERS} == {S.FP32}
    assert all(isinstance(graph.prepared.plan[tensor], FloatTensor) for tensor in ("c1", "c2", "a", "g", "y"))


def test_002_15_biases_of_30_bits(academic):
    """Biases of 30 bits, PASSIVE_INIT: on the scale of input times weight."""
    graph, _ = academic()
    for name in LAYERS:
        bias = graph.prepared.plan[f"{name}.bias"]
        assert (bias.scheme.grid.bits, bias.scheme.grid.qmin, bias.quantizer) == (30, -(2**29), "derived")
        data, weight, held = graph.operations[name].config.input_quantization_config
        assert (held.state, held.num_of_bits) == (S.PASSIVE, 30)
        assert held.scale == data.scale * weight.scale


def test_002_16_observers(model_path):
    """observer_algorithm percentile, minmax, kl, mse: each gives a range of its own."""
    values = torch.randn(256, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    values[0, 0, 0, 0] = 12
    found = {}
    for name in ("percentile", "minmax", "kl", "mse"):

        def ask(_, config, name=name):
            config.input_quantization_config[0].observer_algorithm = name

        register_network_quantizer(quantizer=changed(ask), platform=TargetPlatform.ACADEMIC_INT8)
        graph, _ = run_document(model_path, TargetPlatform.ACADEMIC_INT8, [values])
        assert graph.prepared.plan["x"].observer == name
        found[name] = 255 * graph.operations["conv1"].config.input_quantization_config[0].scale.item()
    assert found["minmax"] == pytest.approx((values.max() - values.min()).item(), rel=1e-4)
    kept = torch.quantile(values.flatten(), torch.tensor([0.0001, 0.9999]))
    assert found["percentile"] == pytest.approx((kept[1] - kept[0]).item(), rel=0.05)
    assert len(set(found.values())) == 4
    assert found["mse"] < found["minmax"]


def test_002_17_the_observer_of_classes(academic):
    """observer_algorithm isotone: for scores of classes; a tensor with one of them is refused with its shape."""

    def ask(operation, config):
        if operation.name == "fc":
            config.input_quantization_config[0].observer_algorithm = "isotone"

    graph, executor = academic(changed(ask))
    assert graph.prepared.plan["f"].observer == "isotone"
    assert noise(graph, executor) < 1e-3

    class Flat(changed(ask)):
        quant_operation_types = frozenset({"Conv", "Gemm", "Flatten"})

    setting = QuantizationSettingFactory.default_setting()
    setting.dispatcher = "allin"  # also what Flatten takes in, which has the shape (2, 4, 1, 1)
    with pytest.raises(TensorError, match="fewer than two classes to tell apart"):
        academic(Flat, setting=setting)


def test_002_18_a_config_for_one_operation(academic):
    """A config for each operation: 4 bits for the weight of Gemm alone."""

    def ask(operation, config):
        if operation.type == "Gemm":
            weight = config.input_quantization_config[1]
            weight.num_of_bits, weight.quant_min, weight.quant_max = 4, -8, 7

    graph, _ = academic(changed(ask))
    assert {name: graph.prepared.plan[f"{name}.weight"].scheme.grid.bits for name in LAYERS} == {
        "conv1": 8, "conv2": 8, "fc": 4,
    }  # fmt: skip


def test_002_19_two_readers_of_one_tensor(academic):
    """Input configs that differ between two readers of one tensor are refused with both names."""

    class WithSums(ACADEMICQuantizer):
        quant_operation_types = frozenset({"Conv", "Gemm", "Add"})
        bits = 4

        def init_quantize_config(self, operation: Operation) -> OperationQuantizationConfig:
            config = super().init_quantize_config(operation)
            for one in config if operation.type == "Add" else ():
                one.num_of_bits, one.quant_max = self.bits, 2**self.bits - 1
            return config

    with pytest.raises(SchemeError, match="a tensor that several operations read is stored once") as error:
        academic(WithSums)
    assert error.value.asked.startswith("'r1' in 8 bits for 'conv2' and in 4 bits for 'add'")
    WithSums.bits = 8
    graph, _ = academic(WithSums)
    assert str(graph.prepared.plan["r1"].scheme) == "uint8 affine per-tensor"
    assert graph.prepared.plan["r1"].users == ()


# ## Register Your Quantizer And Platform


def test_002_20_my_quantizer(model_path):
    """MyQuantizer in the place of PPL_CUDA_INT8, as it is printed."""
    # register this quantizer to PPL_CUDA_INT8
    register_network_quantizer(quantizer=MyQuantizer, platform=TargetPlatform.PPL_CUDA_INT8)
    graph, executor = run_document(model_path, TargetPlatform.PPL_CUDA_INT8, batches())
    quantized = {one.tensor: str(one.scheme) for one in graph.prepared.plan.quantized}
    tensors = ["x", "r1", "f", "conv1.weight", "conv2.weight", "fc.weight"]
    assert quantized == dict.fromkeys(tensors, "int8 symmetric per-tensor")
    assert noise(graph, executor) < 1e-3


def test_002_21_register_network_quantizer(model_path):
    """register_network_quantizer: the class takes the place of the platform's own; another thing is refused."""
    graph = load_onnx_graph(model_path)
    assert type(Quantizer(TargetPlatform.PPL_CUDA_INT8, graph)) is not MyQuantizer
    register_network_quantizer(MyQuantizer, TargetPlatform.PPL_CUDA_INT8)
    assert type(Quantizer(TargetPlatform.PPL_CUDA_INT8, graph)) is MyQuantizer
    with pytest.raises(RegistrationError, match="it is not a BaseQuantizer"):
        register_network_quantizer(dict, TargetPlatform.PPL_CUDA_INT8)


def test_002_22_load_onnx_graph(model_path):
    """load_onnx_graph: the operations of the file, by their names and types."""
    graph = load_onnx_graph(model_path)
    assert [(one.name, one.type) for one in graph.topological_sort()] == [
        ("conv1", "Conv"), ("relu1", "Relu"), ("conv2", "Conv"), ("add", "Add"), ("gap", "GlobalAveragePool"),
        ("flatten", "Flatten"), ("fc", "Gemm"),
    ]  # fmt: skip
    assert (graph.inputs, graph.outputs) == (["x"], ["y"])


LENET = """
name: "LeNet"
layer { name: "data" type: "Input" top: "data" input_param { shape: { dim: 64 dim: 1 dim: 28 dim: 28 } } }
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param {
    num_output: 20 kernel_size: 5 stride: 1 weight_filler { type: "xavier" } bias_filler { type: "constant" }
  }
}
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2"
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param {
    num_output: 50 kernel_size: 5 stride: 1 weight_filler { type: "xavier" } bias_filler { type: "constant" }
  }
}
layer {
  name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2" pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1"
  param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 500 weight_filler { type: "xavier" } bias_filler { type: "constant" } }
}
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer {
  name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } bias_filler { type: "constant" } }
}
layer { name: "prob" type: "Softmax" bottom: "ip2" top: "prob" }
"""


def test_002_23_load_caffe_graph(tmp_path):
    """load_caffe_graph: Caffe's LeNet, its deploy file with weights in a .caffemodel, computes and is quantized."""
    draw = torch.Generator().manual_seed(4)
    shapes = {"conv1": (20, 1, 5, 5), "conv2": (50, 20, 5, 5), "ip1": (500, 800), "ip2": (10, 500)}
    held = {
        name: [torch.randn(shape, generator=draw) / shape[-1], torch.randn(shape[0], generator=draw) / 10]
        for name, shape in shapes.items()
    }
    graph = load_caffe_graph(*save_caffe(tmp_path, LENET, held))
    assert [one.name for one in graph.operations.values() if one.is_computing_op] == list(shapes)
    images = torch.randn(2, 1, 28, 28, generator=draw)
    executor = TorchExecutor(graph, "cpu")
    (found,) = executor.forward(images)
    features = F.max_pool2d(F.conv2d(F.max_pool2d(F.conv2d(images, *held["conv1"]), 2), *held["conv2"]), 2)
    expected = F.softmax(F.linear(F.relu(F.linear(features.flatten(1), *held["ip1"])), *held["ip2"]), 1)
    assert torch.allclose(found, expected, atol=1e-5)
    Quantizer(TargetPlatform.TRT_INT8, graph).quantize(images, [images], executor, None, 8)
    assert {f"{name}.weight" for name in shapes} <= {one.tensor for one in graph.prepared.plan.quantized}
    assert torch.allclose(executor.forward(images)[0], expected, atol=0.02)


def test_002_24_dispatch_graph(model_path):
    """dispatch_graph(graph, platform, setting), also with the name of a dispatcher, as in later versions."""
    setting = QuantizationSettingFactory.default_setting()
    for given in ({"setting": setting}, {"setting": "conservative"}, {"dispatcher": "conservative"}):
        graph = dispatch_graph(load_onnx_graph(model_path), TargetPlatform.TRT_INT8, **given)
        assert {one.platform for one in graph.operations.values()} == {TargetPlatform.TRT_INT8, TargetPlatform.FP32}
        assert graph.operations["conv1"].platform is TargetPlatform.TRT_INT8
    alone = dispatch_graph(load_onnx_graph(model_path), TargetPlatform.TRT_INT8, dispatcher="pointwise")
    assert [name for name, one in alone.operations.items() if one.platform is TargetPlatform.TRT_INT8] == list(LAYERS)


def test_002_25_the_dispatching_table(academic):
    """dispatching_table to FP32: the operation stays float."""
    setting = QuantizationSettingFactory.default_setting()
    setting.dispatching_table.append("conv2", TargetPlatform.FP32)
    graph, _ = academic(setting=setting)
    assert graph.operations["conv2"].config is None
    assert isinstance(graph.prepared.plan["conv2.weight"], FloatTensor)
    assert graph.prepared.plan["conv1.weight"].scheme.grid.bits == 8


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there")
def test_002_26_the_executing_device(model_path):
    """EXECUTING_DEVICE = 'cuda': where there is none, that is said."""
    with pytest.raises(EngineError, match="run on 'cuda'") as error:
        TorchExecutor(load_onnx_graph(model_path), device="cuda")
    assert error.value.to_do == "choose another device"


def test_002_27_the_executor(model_path):
    """TorchExecutor(graph, device): runs the graph, and gives any tensor by its name in the file."""
    executor = TorchExecutor(load_onnx_graph(model_path), device="cpu")
    relu, out = executor.forward(batches()[0], output_names=["r1", "y"])
    assert (relu.shape, out.shape) == ((2, 4, 8, 8), (2, 5))
    assert relu.min() == 0
    assert torch.equal(out, executor.forward([batches()[0]])[0])


def test_002_28_quantizers_by_platform(model_path):
    """Quantizer(platform, graph): the registered class, else the platform's own."""
    register_network_quantizer(quantizer=ACADEMICQuantizer, platform=TargetPlatform.ACADEMIC_INT8)
    made = Quantizer(TargetPlatform.ACADEMIC_INT8, load_onnx_graph(model_path))
    assert isinstance(made, ACADEMICQuantizer)
    graph, _ = run_document(model_path, TargetPlatform.PPL_CUDA_INT8, batches())
    assert (graph.prepared.backend.name, len(graph.prepared.plan.quantized)) == ("ppl_cuda", 13)


def test_002_29_quantize(academic):
    """quantize(inputs, calib_dataloader, executor, setting, calib_steps, collate_fn): little noise at the outputs."""
    graph, executor = academic()
    assert noise(graph, executor) < 1e-3
    config = graph.operations["conv1"].config
    assert [one.state.name for one in config] == ["ACTIVATED", "ACTIVATED", "PASSIVE", "FP32"]
    assert graph.operations["add"].config is None


@pytest.mark.parametrize("given", [lambda x: x, lambda x: [x], lambda x: {"x": x}], ids=["tensor", "list", "dict"])
def test_002_30_inputs(model_path, given):
    """inputs as one tensor, as a list and as a dict give the same scales."""
    graph = load_onnx_graph(model_path)
    executor = TorchExecutor(graph, "cpu")
    data = [given(one) for one in batches()]
    Quantizer(TargetPlatform.TRT_INT8, graph).quantize(given(batches()[0]), data, executor, None, 8)
    found = graph.operations["conv1"].config.input_quantization_config[0].scale.item()
    assert found == pytest.approx(torch.cat(batches()).abs().max().item() / 127, rel=0.01)


@pytest.mark.parametrize(("steps", "holds"), [(1, True), (512, True), (600, False)])
def test_002_31_calib_steps(model_path, steps, holds):
    """calib_steps: batches of the loader that are used, up to 512."""
    graph = load_onnx_graph(model_path)
    quantizer, executor = Quantizer(TargetPlatform.TRT_INT8, graph), TorchExecutor(graph, "cpu")
    seen = []
    given = {"inputs": batches()[0], "calib_dataloader": batches(), "executor": executor, "calib_steps": steps}
    if not holds:
        with pytest.raises(RangeError, match="1 to 512 batches calibrate"):
            quantizer.quantize(**given)
        return
    quantizer.quantize(**given, collate_fn=lambda x: seen.append(x) or x)
    assert len(seen) == min(steps, 8)


def test_002_32_the_built_in_academic_platform(model_path, academic):
    """The built-in ACADEMIC_INT8 plans what the document's quantizer plans, 30-bit biases included."""
    built_in, _ = run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches())
    own, _ = academic()
    found, expected = (
        {one.tensor: (str(one.scheme), one.quantizer, one.observer) for one in graph.prepared.plan.quantized}
        for graph in (built_in, own)
    )
    assert found == expected
    assert built_in.prepared.plan["conv1.bias"].scheme.grid.bits == 30


@pytest.mark.parametrize(
    ("platform", "weight", "activation", "bias"),
    [
        ("TRT_INT8", "int8 narrow symmetric per-channel(0)", "int8 symmetric per-tensor", None),
        (
            "NCNN_INT8",
            "int8 narrow symmetric per-channel(0) half_away",
            "int8 narrow symmetric per-tensor half_away",
            None,
        ),
        ("PPL_CUDA_INT8", "int8 symmetric per-channel(0)", "int8 symmetric per-tensor", 32),
        ("SNPE_INT8", "uint8 affine per-tensor", "uint8 affine per-tensor half_up", 32),
        (
            "NXP_INT8",
            "int8 symmetric per-channel(0) power-of-two half_away",
            "int8 symmetric per-tensor power-of-two",
            32,
        ),
    ],
)
def test_002_33_built_in_platforms(model_path, platform, weight, activation, bias):
    """The built-in TRT, NCNN, PPL_CUDA, SNPE and NXP quantize by the schemes of PPQ's table."""
    graph, executor = run_document(model_path, TargetPlatform[platform], batches())
    plan = graph.prepared.plan
    assert str(plan["conv1.weight"].scheme) == weight
    assert str(plan["r1"].scheme).startswith(activation)
    assert bias == (None if isinstance(plan["conv1.bias"], FloatTensor) else plan["conv1.bias"].scheme.grid.bits)
    assert noise(graph, executor) < 0.01


def test_002_34_export_for_onnxruntime(academic, tmp_path):
    """export_ppq_graph for ONNXRUNTIME: QDQ that computes what was simulated, and the config in config_save_to."""
    ort = pytest.importorskip("onnxruntime", reason="the exported file is run by it")
    graph, executor = academic()
    path, config = export_ppq_graph(
        graph, TargetPlatform.ONNXRUNTIME, graph_save_to=tmp_path / "q.onnx", config_save_to=tmp_path / "q.json"
    )
    assert sum(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node) == 3
    held = read_ppq(config.read_bytes())
    assert set(held.configs) >= set(LAYERS)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    data = batches()[0]
    # The same fake-quantized float arithmetic in another order of summation: a few float32 units of outputs near 1.
    np.testing.assert_allclose(
        session.run(None, {"x": data.numpy()})[0], executor.forward(data)[0].numpy(), rtol=0, atol=2e-6
    )


def test_002_35_export_for_onnx(academic, tmp_path):
    """export_ppq_graph for ONNX: the float network and PPQ's own table."""
    graph, _ = academic()
    export_ppq_graph(graph, TargetPlatform.ONNX, tmp_path / "float.onnx", tmp_path / "config.json")
    assert "QuantizeLinear" not in {node.op_type for node in onnx.load(tmp_path / "float.onnx").graph.node}
    held = read_ppq((tmp_path / "config.json").read_bytes())
    assert held.platforms["conv1"] == "ACADEMIC_INT8"
    data, weight, bias = (held.configs["conv1"][name] for name in ("x", "w1", "b1"))
    assert (data.bits, weight.bits, bias.bits) == (8, 8, 30)
    assert bias.scale == pytest.approx(data.scale * weight.scale)
    assert "ASYMMETRICAL" in data.properties
