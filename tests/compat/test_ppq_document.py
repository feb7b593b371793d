"""PPQ's "Customize Your Quantization Platform", section by section: its code with only the imports changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

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
    load_onnx_graph,
    register_network_quantizer,
)
from detent.graph import FloatTensor
from detent.targets.base.ppq_json import read_ppq
from tests.compat.ppq_nets import batches, save_net


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
    def init_quantize_config(self, operation: Operation) -> OperationQuantizationConfig:

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

        return config  # the gap the document leaves
    # fmt: on


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


def run_document(model_path, target_platform, dataloader, calib_steps=8):
    """The document's last listing."""
    EXECUTING_DEVICE = "cpu"  # noqa: N806
    setting = QuantizationSettingFactory.default_setting()
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


def test_platforms_of_the_document_are_quantized():
    for platform in TargetPlatform:
        if Listed.is_quantized_platform(platform):
            assert TargetPlatform.is_quantized_platform(platform)
    assert not TargetPlatform.is_quantized_platform(TargetPlatform.FP32)
    assert not TargetPlatform.is_quantized_platform(TargetPlatform.SOI)


def test_the_academic_quantizer_gives_the_plan_it_promises(model_path):
    register_network_quantizer(quantizer=ACADEMICQuantizer, platform=TargetPlatform.ACADEMIC_INT8)
    graph, _ = run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches())
    plan = graph.prepared.plan
    for layer in ("conv1", "conv2", "fc"):
        weight, bias = plan[f"{layer}.weight"], plan[f"{layer}.bias"]
        assert (str(weight.scheme), weight.observer) == ("int8 symmetric per-tensor", "minmax")
        assert (bias.scheme.grid.bits, bias.scheme.grid.qmin, bias.quantizer) == (30, -(2**29), "derived")
    for tensor in ("x", "r1", "f"):
        assert str(plan[tensor].scheme) == "uint8 affine per-tensor"
        assert plan[tensor].observer == "percentile"
    assert plan["r1"].users == ("c2",)  # the sum takes r1 in float
    for tensor in ("c1", "c2", "a", "g", "y"):
        assert isinstance(plan[tensor], FloatTensor)


def test_the_configs_say_what_became_of_them(model_path):
    register_network_quantizer(quantizer=ACADEMICQuantizer, platform=TargetPlatform.ACADEMIC_INT8)
    graph, _ = run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches())
    config = graph.operations["conv1"].config
    data, weight, bias = config.input_quantization_config
    assert [one.state.name for one in config] == ["ACTIVATED", "ACTIVATED", "PASSIVE", "FP32"]
    assert bias.scale == data.scale * weight.scale
    assert 0 < data.offset < 255
    assert (data.quant_min, data.quant_max) == (0, 255)
    assert graph.operations["add"].config is None


def test_the_academic_model_exports_and_computes_the_same(model_path, tmp_path):
    ort = pytest.importorskip("onnxruntime", reason="the exported file is run by it")
    register_network_quantizer(quantizer=ACADEMICQuantizer, platform=TargetPlatform.ACADEMIC_INT8)
    graph, executor = run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches())
    (path,) = export_ppq_graph(graph, TargetPlatform.ONNXRUNTIME, tmp_path / "out" / "quantized.onnx")
    assert sum(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node) == 3
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    data = batches()[0]
    got = session.run(None, {"x": data.numpy()})[0]
    # The same fake-quantized float arithmetic in another order of summation: a few float32 units of outputs near 1.
    np.testing.assert_allclose(got, executor.forward(data)[0].numpy(), rtol=0, atol=2e-6)


def test_the_academic_model_is_exported_as_ppq_s_own_table(model_path, tmp_path):
    register_network_quantizer(quantizer=ACADEMICQuantizer, platform=TargetPlatform.ACADEMIC_INT8)
    graph, _ = run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches())
    export_ppq_graph(graph, TargetPlatform.ONNX, tmp_path / "float.onnx", tmp_path / "config.json")
    held = read_ppq((tmp_path / "config.json").read_bytes())
    assert held.platforms["conv1"] == "ACADEMIC_INT8"
    data, weight, bias = (held.configs["conv1"][name] for name in ("x", "w1", "b1"))
    assert (data.bits, weight.bits, bias.bits) == (8, 8, 30)
    assert bias.scale == pytest.approx(data.scale * weight.scale)
    assert "ASYMMETRICAL" in data.properties


def test_my_quantizer_takes_the_place_of_ppl_cuda(model_path):
    # register this quantizer to PPL_CUDA_INT8
    register_network_quantizer(quantizer=MyQuantizer, platform=TargetPlatform.PPL_CUDA_INT8)
    graph, executor = run_document(model_path, TargetPlatform.PPL_CUDA_INT8, batches())
    quantized = {entry.tensor: str(entry.scheme) for entry in graph.prepared.plan.quantized}
    assert quantized == dict.fromkeys(
        ["x", "r1", "f", "conv1.weight", "conv2.weight", "fc.weight"], "int8 symmetric per-tensor"
    )
    assert graph.operations["relu1"].platform is TargetPlatform.FP32
    assert torch.isfinite(executor.forward(batches()[0])[0]).all()


def test_without_my_quantizer_ppl_cuda_is_the_backend(model_path):
    graph, _ = run_document(model_path, TargetPlatform.PPL_CUDA_INT8, batches())
    assert graph.prepared.backend.name == "ppl_cuda"
    assert len(graph.prepared.plan.quantized) > 6


def test_the_symmetric_variant_of_the_document(model_path):
    class Symmetric(ACADEMICQuantizer):
        def __init__(self, graph: BaseGraph, verbose: bool = True) -> None:
            super().__init__(graph, verbose)
            self._num_of_bits = 8
            self._quant_min = -128  # or -127, it depends the clip boundary of your backend
            self._quant_max = 127

        @property
        def quantize_policy(self) -> QuantizationPolicy:
            return QuantizationPolicy(
                QuantizationProperty.SYMMETRICAL + QuantizationProperty.LINEAR + QuantizationProperty.PER_TENSOR
            )

    register_network_quantizer(quantizer=Symmetric, platform=TargetPlatform.ACADEMIC_INT8)
    graph, _ = run_document(model_path, TargetPlatform.ACADEMIC_INT8, batches())
    assert str(graph.prepared.plan["x"].scheme) == "int8 symmetric per-tensor"
