"""ESP-DL: the file says the network, proven by computing with nothing but what is in it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

import detent
from detent.deployment import deployment_of
from detent.errors import ArtifactError, DeployError
from detent.targets.esp_dl.container import EspModel, EspNode, EspTensor, EspValue
from detent.targets.esp_dl.file import FORMAT, read_espdl
from detent.targets.esp_dl.layout import packed
from tests.models import MODELS
from tests.targets.parameter_files.sample import BIAS, deployment, power_of_two_deployment

ORT_OPTIONS = onnxruntime.SessionOptions()
ORT_OPTIONS.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
ORT_OPTIONS.intra_op_num_threads = 1


class Interpreter:
    """Runs a model from its file alone. Scales are powers of two, so that float64 computes the integers exactly."""

    def __init__(self, model: EspModel):
        self.model = model
        self.constants = {tensor.name: tensor for tensor in model.tensors}
        self.values = {value.name: value for value in model.values}

    def run(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Codes in, codes of all tensors out, as they are stored."""
        codes = dict(given)
        for node in self.model.nodes:
            codes[node.outputs[0]] = self.compute(node, codes)
        return codes

    def compute(self, node: EspNode, codes: dict[str, np.ndarray]) -> np.ndarray:
        first = codes[node.inputs[0]]
        at = node.attributes
        if "lut" in at:
            return self.constants[at["lut"]].array[first.astype(np.int64) + 128]
        match node.type:
            case "Transpose":
                return first.transpose(at["perm"])
            case "Flatten" | "Reshape":
                return first.reshape(self.values[node.outputs[0]].shape)
            case "MaxPool":
                pads = at["pads"]
                image = torch.from_numpy(np.moveaxis(first, -1, 1).astype(np.float64))
                image = F.pad(image, (pads[1], pads[3], pads[0], pads[2]), value=-np.inf)
                return np.moveaxis(F.max_pool2d(image, at["kernel_shape"], at["strides"]).numpy(), 1, -1)
        reals = [self.real(name, codes) for name in node.inputs]
        return self.quantized(self.formula(node, reals), node.outputs[0])

    def formula(self, node: EspNode, reals: list[np.ndarray]) -> np.ndarray:
        at = node.attributes
        match node.type:
            case "Add":
                result = reals[0] + reals[1]
            case "Mul":
                result = reals[0] * reals[1]
            case "Concat":
                result = np.concatenate(reals, at["axis"])
            case "GlobalAveragePool":
                result = reals[0].mean((1, 2), keepdims=True)
            case "AveragePool":
                assert not any(at["pads"])
                image = torch.from_numpy(np.moveaxis(reals[0], -1, 1))
                result = np.moveaxis(F.avg_pool2d(image, at["kernel_shape"], at["strides"]).numpy(), 1, -1)
            case "RequantizeLinear":
                result = reals[0]
            case "Gemm":
                result = reals[0] @ self.weight(node, 1)[:, :, 0, 0].T + reals[2]
            case "Conv":
                pads = at["pads"]
                image = F.pad(torch.from_numpy(np.moveaxis(reals[0], -1, 1)), (pads[1], pads[3], pads[0], pads[2]))
                weight = torch.from_numpy(self.weight(node, at["group"]))
                bias = torch.from_numpy(reals[2])
                made = F.conv2d(image, weight, bias, at["strides"], 0, at["dilations"], at["group"])
                result = np.moveaxis(made.numpy(), 1, -1)
            case other:
                raise AssertionError(other)
        return np.maximum(result, 0) if at.get("activation") == "Relu" else result

    def weight(self, node: EspNode, groups: int) -> np.ndarray:
        """The packed weight as `[N, C, H, W]`, found by packing the positions of its elements."""
        tensor = self.constants[node.inputs[1]]
        outputs, inputs = tensor.array.shape[-1], tensor.array.shape[-2]
        if groups > 1:
            outputs, inputs = inputs, outputs
        shape = (outputs, inputs, *tensor.array.shape[:-2])
        places, layout = packed(np.arange(tensor.array.size).reshape(shape), lanes=16, depthwise=groups > 1)
        assert tensor.note == f"layout ==> {layout}"
        found = np.empty(tensor.array.size)
        found[places.ravel()] = tensor.array.ravel()
        scale = 2.0 ** np.array(tensor.exponents)
        return found.reshape(shape) * scale.reshape(-1, 1, 1, 1)

    def real(self, name: str, codes: dict[str, np.ndarray]) -> np.ndarray:
        held = self.constants.get(name)
        if held is None:
            return codes[name].astype(np.float64) * 2.0 ** self.values[name].exponents[0]
        return held.array.astype(np.float64) * (2.0 ** np.array(held.exponents) if held.array.ndim == 1 else 1.0)

    def quantized(self, real: np.ndarray, name: str) -> np.ndarray:
        return np.clip(np.rint(real / 2.0 ** self.values[name].exponents[0]), -128, 127)


def outputs_of(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), ORT_OPTIONS, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def check_same(model: EspModel, onnx_model: onnx.ModelProto, image: np.ndarray) -> None:
    given, result = model.inputs[0], model.outputs[0]
    codes = np.clip(np.rint(np.moveaxis(image, 1, -1) / 2.0 ** given.exponents[0]), -128, 127)
    assert codes.shape == given.shape
    found = Interpreter(model).run({given.name: codes})[result.name]
    expected = outputs_of(onnx_model, {given.name: image})
    # Exact: all products and sums are multiples of a power of two far inside of float64 and, here, of float32.
    np.testing.assert_array_equal(found * 2.0 ** result.exponents[0], expected)


def test_the_sample_computes_what_the_qdq_model_does():
    made = power_of_two_deployment("esp_dl", bias=BIAS)
    image = np.random.default_rng(0).normal(0, 3, (1, 2, 4, 4)).astype(np.float32)
    check_same(read_espdl(FORMAT.write(made).files["model.espdl"]), made.model, image)


@pytest.mark.parametrize("name", ["residual_cnn", "mobile_cnn"])
def test_a_trained_network_computes_what_the_qdq_model_does(name):
    torch.manual_seed(0)
    entry = MODELS[name]
    inputs = entry.inputs()
    prepared = detent.prepare(entry.build().eval(), inputs, backend="esp_dl")
    detent.calibrate(prepared, [inputs])
    made = deployment_of(prepared)
    check_same(read_espdl(FORMAT.write(made).files["model.espdl"]), made.model, inputs[0][:1].numpy())


def test_weights_are_packed_by_sixteen_output_channels():
    codes = np.arange(18 * 2).reshape(18, 2, 1, 1)
    array, layout = packed(codes, lanes=16)
    assert layout == "(N/16)HWC16_UNALIGNED"
    assert array.shape == (1, 1, 2, 18)
    # Input channel 0 of 16 outputs, input channel 1 of them, then the two outputs that are left.
    assert array.ravel().tolist() == [*range(0, 32, 2), *range(1, 32, 2), 32, 33, 34, 35]


def test_a_file_reads_back_as_it_was():
    node = EspNode("Conv", "c", ("x", "w"), ("y",), {"pads": (1, 1, 0, 0), "alpha": 0.5, "mode": "a", "s": (0.5, 2.0)})
    value = EspValue("x", "int8", (1, 4, 4, 2), (-4,))
    tensor = EspTensor("w", np.arange(-5, 5, dtype=np.int8).reshape(2, 5), (-7, -6), "layout ==> NHWC")
    back = EspModel.from_bytes(EspModel("net", [node], [value], [value], [tensor], [value]).to_bytes())
    assert (back.name, back.nodes, back.inputs, back.values) == ("net", (node,), (value,), (value,))
    assert back.tensors[0].array.tolist() == tensor.array.tolist()
    assert (back.tensors[0].exponents, back.tensors[0].note) == ((-7, -6), "layout ==> NHWC")


def test_constants_lie_on_16_bytes_in_the_file():
    """The chip loads them with aligned vector instructions."""
    tensor = EspTensor("w", np.full(32, 77, np.int8))
    content = EspModel("net", [], [], [], [tensor], []).to_bytes()
    assert content[:4] == b"EDL2"
    assert content.index(bytes([77] * 32)) % 16 == 0


def test_a_relu_is_part_of_the_convolution_and_images_lie_channels_last():
    model = read_espdl(FORMAT.write(power_of_two_deployment("esp_dl", bias=BIAS)).files["model.espdl"])
    assert [(node.type, node.attributes.get("activation")) for node in model.nodes] == [
        ("Conv", "Relu"),
        ("Conv", "Linear"),
        ("Add", None),
        ("GlobalAveragePool", None),
        ("Transpose", None),
        ("Flatten", None),
        ("Gemm", "Linear"),
    ]
    assert model.inputs == (EspValue("x", "int8", (1, 4, 4, 2), (-4,)),)
    assert all(node.attributes["quant_type"] == "S8" for node in model.nodes)


def test_the_table_of_scales_is_beside_it():
    files = FORMAT.write(power_of_two_deployment("esp_dl", bias=BIAS)).files
    assert set(files) == {"model.espdl", "ppq_config.json", "float.onnx"}
    assert set(json.loads(files["ppq_config.json"])["dispatchings"].values()) == {"ESPDL_INT8"}


def test_scales_that_are_no_powers_of_two_are_refused():
    with pytest.raises(DeployError, match=r"espdl.*\n.*not a power of two"):
        FORMAT.write(deployment("esp_dl"))


def test_an_operation_without_a_rule_is_refused_by_name():
    torch.manual_seed(0)
    entry = MODELS["transformer_block"]
    prepared = detent.prepare(entry.build().eval(), entry.inputs(), backend="esp_dl")
    detent.calibrate(prepared, [entry.inputs()])
    with pytest.raises(DeployError, match="LayerNormalization 'norm1'"):
        FORMAT.write(deployment_of(prepared))


@pytest.mark.parametrize("content", [b"EDL1" + bytes(20), b"EDL2" + bytes([1]) + bytes(20), b"EDL2" + bytes(8)])
def test_what_is_no_model_is_refused(content):
    with pytest.raises(ArtifactError):
        read_espdl(content)
