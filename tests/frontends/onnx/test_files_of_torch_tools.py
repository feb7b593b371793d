"""Files that tools for torch models wrote, and shapes of Q and DQ that others do: the same numbers, before and after.

The files in `torch_tools` are what the tools named there, with their versions, made of three small networks of random
weights (convolutions with batch norms, a residual add and pools; "mobile": hardswish, SiLU, squeeze-excite, a concat;
"transformer": one block behind a patch convolution) by their defaults, and of two convolutions in 4 bits. Remarks about
where nodes come from are taken out. `nncf-3.4.0-mobile` has an operator of OpenVINO's, which ONNX Runtime does not run:
beside it is what NNCF computed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import detent
from detent import load
from detent.errors import OnnxError
from detent.frontends.onnx import source_of
from detent.graph import quantizers_of

FOLDER = Path(__file__).parent / "torch_tools"
FILES = sorted(path.stem for path in FOLDER.glob("*.onnx"))
RUNNABLE = [name for name in FILES if name != "nncf-3.4.0-mobile"]
F32 = np.float32


def run(model: Any, x: torch.Tensor, *, optimized: bool = False) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    held = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(held, options).run(None, {"x": x.numpy()})[0]


def images(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


def prepared_for(backend: str, given: Any, x: torch.Tensor) -> Any:
    prepared = detent.prepare(load(given), (x,), backend=backend).eval()
    assert all(quantizer.calibrated for quantizer in quantizers_of(prepared))
    return prepared


def simulated(prepared: Any, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return prepared(x).numpy()


def off(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.few(5)
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_file_of_a_tool_computes_what_it_did(name, tmp_path):
    """OpenVINO adds float biases, as these files do, so that nothing is rounded that was not before."""
    prepared = prepared_for("openvino", FOLDER / f"{name}.onnx", images())
    again = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    for seed in range(3):
        x = images(seed)
        wanted = run(FOLDER / f"{name}.onnx", x)
        # Sums of float32 in another order; one of them turned a code of neural-compressor's file, 1/420 of the output.
        assert off(simulated(prepared, x), wanted) < (3e-3 if name.startswith("neural") else 1e-6)
        assert off(run(again, x), wanted) < 1e-6


BIASES = {"torchao-0.18.0-transformer", "neural_compressor_pt-3.10", "modelopt-0.47.0-mobile", "brevitas-0.13.4-4bits"}
"""Files with float biases in which rounding those to int32, as this target does, turned a code for these inputs."""


@pytest.mark.few(5)
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_file_of_a_tool_is_deployed_again_for_onnxruntime(name, tmp_path):
    prepared = prepared_for("onnxruntime", FOLDER / f"{name}.onnx", images())
    again = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    code = 1 / 13 if name.endswith("4bits") else 5e-3  # of the largest output, which is 14 or 15 codes of 4 bits
    for seed in range(3):
        x = images(seed)
        assert off(run(again, x), run(FOLDER / f"{name}.onnx", x)) < (code if name in BIASES else 1e-5)


FOLDED = {
    "modelopt-0.47.0": {"c1.weight", "c2.weight"},
    "modelopt-0.47.0-mobile": {"c1.weight"},
    "nncf-3.4.0": {"c1.weight", "c2.weight"},
    "nncf-3.4.0-mobile": {"c1.weight"},
    # Of layer norms, which have no quantizer: they start from the numbers on the grid.
    "aimet_torch-2.42.0-transformer": {"n1.weight", "n2.weight"},
}
"""Weights whose scale was multiplied by that of the batch norm behind them."""


@pytest.mark.parametrize("name", FILES)
def test_every_scale_of_a_file_is_taken_over(name):
    prepared = prepared_for("onnxruntime", FOLDER / f"{name}.onnx", images())
    own = [quantizer.qparams().scale.flatten() for quantizer in quantizers_of(prepared)]
    lost = {
        tensor
        for tensor, encoding in source_of(prepared).encodings.items()
        if encoding.dtype != "int32"  # a bias, whose scale follows from others
        and not any(torch.equal(torch.from_numpy(encoding.scale.copy()).flatten(), scale) for scale in own)
    }
    assert lost == FOLDED.get(name, set())


@pytest.mark.parametrize("name", ["aimet_torch-2.42.0", "brevitas-0.13.4", "modelopt-0.47.0", "torchao-0.18.0"])
def test_a_file_of_a_tool_is_fine_tuned_and_deployed_again(name, tmp_path):
    x = images()
    wanted = torch.from_numpy(run(FOLDER / f"{name}.onnx", x)) + 0.1
    prepared = detent.prepare(load(FOLDER / f"{name}.onnx"), (x,), backend="onnxruntime", recipe="lsq").train()
    optimizer = torch.optim.SGD(prepared.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (prepared(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    again = detent.deploy(prepared.eval(), tmp_path / "out").path("model.onnx")
    assert off(run(again, x), simulated(prepared, x)) < 1e-6


def test_the_fake_quantization_of_openvino_is_a_grid_like_others(tmp_path):
    held = np.load(FOLDER / "nncf-3.4.0-mobile.npz")
    x = torch.from_numpy(held["x"])
    prepared = prepared_for("openvino", FOLDER / "nncf-3.4.0-mobile.onnx", x)
    assert off(simulated(prepared, x), held["y"]) < 1e-6
    again = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    assert off(run(again, x), held["y"]) < 1e-6


def test_a_batch_norm_is_folded_without_changing_a_code(tmp_path):
    """Its factors, some of them negative, go into the scales: |code| stays what the file's Q makes of the weight."""
    path = FOLDER / "modelopt-0.47.0.onnx"
    found = onnx.load_model(
        detent.deploy(prepared_for("onnxruntime", path, images()), tmp_path / "out").path("model.onnx")
    )
    assert not any(node.op_type == "BatchNormalization" for node in found.graph.node)
    source = load(path)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_model(path).graph.initializer}
    codes = {tensor.name: numpy_helper.to_array(tensor) for tensor in found.graph.initializer}
    for name in ("c1.weight", "c2.weight"):
        scale = source_of(source).encodings[name].scale.reshape(-1, 1, 1, 1)
        own = next(array for key, array in codes.items() if key.startswith(name) and array.dtype == np.int8)
        signs = np.sign(np.where(own == 0, 1, own)) * np.sign(np.where(held[name] == 0, 1, held[name]))
        assert np.array_equal(np.abs(own), np.abs(np.round(held[name] / scale)))
        assert set(np.unique(signs)) == {-1, 1}


# --- shapes of Q and DQ, written by hand


WEIGHT = (np.random.default_rng(0).standard_normal((4, 3, 3, 3)) * 0.3).astype(F32)
SCALES = (np.abs(WEIGHT).max((1, 2, 3)) / 127).astype(F32)


def network(
    *,
    opset: int = 17,
    activation: str = "uint8",
    zero: int = 128,
    weight: str = "int8",
    scales: np.ndarray = SCALES,
    zeros: np.ndarray | None = None,
    axis: dict[str, int] | None = None,
    last: tuple[onnx.NodeProto, ...] = (),
    **more: Any,
) -> onnx.ModelProto:
    """x -> Q, DQ -> conv with stored codes -> relu -> Q, DQ, or the nodes `last` that read r and give y."""
    axis = axis or {}
    points = np.zeros(scales.shape, weight) if zeros is None else zeros
    along = (-1, 1, 1, 1) if scales.ndim else ()
    limits = np.iinfo(weight)
    codes = np.round(WEIGHT / scales.reshape(along)) + points.reshape(along)
    held = {
        "xs": np.array(0.03, F32),
        "xz": np.array(zero, activation),
        "ys": np.array(0.05, F32),
        "yz": np.array(0 if activation.startswith("u") else zero, activation),
        "ws": scales,
        "wz": points,
        "wq": np.clip(codes, limits.min, limits.max).astype(weight),
        **more,
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], **axis),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], **axis),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], **({"axis": 0} if scales.ndim else {})),
        helper.make_node("Conv", ["xd", "wd"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        *(last or pair("r", "y", **axis)),
    ]
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "xy"]
    ports[0] = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]
    tensors = [v if isinstance(v, TensorProto) else numpy_helper.from_array(v, k) for k, v in held.items()]
    graph = helper.make_graph(nodes, "net", *ports, tensors)
    version = 8 if opset < 19 else 10
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)


def pair(
    taken: str, given: str, *, between: onnx.NodeProto | None = None, scale: str = "y", **axis: int
) -> tuple[Any, ...]:
    codes, parts = f"{taken}_{given}_q", [f"{scale}s", f"{scale}z"]
    read = codes if between is None else between.output[0]
    quantize = helper.make_node("QuantizeLinear", [taken, *parts], [codes], **axis)
    if between is not None:
        between.input[0] = codes
    dequantize = helper.make_node("DequantizeLinear", [read, *parts], [given], **axis)
    return (quantize, *([between] if between is not None else []), dequantize)


def int4_weights() -> dict[str, Any]:
    scales = (SCALES * 18).astype(F32)
    codes = np.clip(np.round(WEIGHT / scales.reshape(-1, 1, 1, 1)), -8, 7).astype(np.int8)
    return {
        "scales": scales,
        "wq": helper.make_tensor("wq", TensorProto.INT4, WEIGHT.shape, codes.flatten()),
        "wz": helper.make_tensor("wz", TensorProto.INT4, [4], [0] * 4),
    }


def clip(low: int, high: int) -> dict[str, Any]:
    node = helper.make_node("Clip", ["", "low", "high"], ["clipped"], name="clip")
    return {"last": pair("r", "y", between=node), "low": np.array(low, np.uint8), "high": np.array(high, np.uint8)}


def join(*others: str) -> onnx.NodeProto:
    return helper.make_node("Add", list(others), ["y"], name="add")


SIGMOID = helper.make_node("Sigmoid", ["rd"], ["s"], name="sigmoid")
SECOND = {"zs": np.array(0.11, F32), "zz": np.array(10, np.uint8)}
SHAPES: dict[str, dict[str, Any]] = {
    "opset 10, which has no axis": {"opset": 10, "scales": np.array(0.01, F32)},
    "an axis on one scale": {"opset": 13, "axis": {"axis": 1}},
    "signed codes with a zero point": {"activation": "int8", "zero": 3},
    "unsigned weights, a zero point for each channel": {
        "weight": "uint8",
        "scales": (SCALES * 1.2).astype(F32),
        "zeros": np.array([120, 130, 128, 125], np.uint8),
    },
    "activations of 16 bits": {"opset": 21, "activation": "uint16", "zero": 32768},
    "weights of 4 bits": {"opset": 21, **int4_weights()},
    "codes clipped to 4 bits": clip(0, 15),
    "codes clipped to 7 bits": clip(0, 127),
    "one reader on the grid, one not": {"last": (*pair("r", "rd"), SIGMOID, join("s", "r"))},
    "two grids for two readers": {
        "last": (*pair("r", "rd"), SIGMOID, *pair("r", "r2", scale="z"), join("s", "r2")),
        **SECOND,
    },
    "a second grid behind the first": {"last": (*pair("r", "rd"), *pair("rd", "y", scale="z")), **SECOND},
    "codes pooled before they are dequantized": {
        "last": pair("r", "y", between=helper.make_node("MaxPool", [""], ["p"], kernel_shape=[2, 2], strides=[2, 2]))
    },
    "codes transposed before they are dequantized": {
        "last": pair("r", "y", between=helper.make_node("Transpose", [""], ["t"], perm=[0, 2, 3, 1]))
    },
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_every_shape_of_a_pair_is_read_and_deployed_as_it_is(shape, tmp_path):
    model = network(**shape)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    prepared = prepared_for("onnxruntime", model, x)
    wanted = run(model, x)
    assert off(simulated(prepared, x), wanted) < 1e-6
    assert off(run(detent.deploy(prepared, tmp_path / "out").path("model.onnx"), x), wanted) < 1e-6


def norm(*between: onnx.NodeProto) -> dict[str, Any]:
    """A batch norm behind the convolution, and what stands between the two, from c to n."""
    rng = np.random.default_rng(5)
    parts = {name: rng.uniform(0.5, 1.5, 4).astype(F32) for name in ("gamma", "beta", "mean", "variance")}
    parts["gamma"] *= np.array([1, -1, 1, -1], F32)
    taken = "n" if between else "c"
    node = helper.make_node("BatchNormalization", [taken, *parts], ["b"], name="norm")
    return {"last": (*between, node, helper.make_node("Relu", ["b"], ["p"], name="last"), *pair("p", "y")), **parts}


NORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "a scale for each channel": (norm(), True),
    "one scale, which becomes one for each channel": ({"scales": np.array(0.01, F32), **norm()}, True),
    "a grid between the two": (norm(*pair("c", "n", scale="x")), False),
}


@pytest.mark.parametrize(("shape", "folded"), NORMS.values(), ids=NORMS)
def test_a_batch_norm_is_folded_where_the_numbers_stay(shape, folded, tmp_path):
    model = network(**shape)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    prepared = prepared_for("openvino", model, x)
    wanted = run(model, x)
    assert off(simulated(prepared, x), wanted) < 1e-6
    again = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    assert off(run(again, x), wanted) < 1e-6
    assert any(node.op_type == "BatchNormalization" for node in onnx.load_model(again).graph.node) is not folded


def test_a_batch_norm_behind_weights_with_zero_points_stays(tmp_path):
    """Channels multiplied by a negative number would need a zero point of their own."""
    zeros = {"weight": "uint8", "scales": (np.array(0.01, F32)), "zeros": np.array(120, np.uint8)}
    model = network(**zeros, **norm())
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    again = detent.deploy(prepared_for("onnxruntime", model, x), tmp_path / "out").path("model.onnx")
    assert off(run(again, x), run(model, x)) < 1e-6
    assert any(node.op_type == "BatchNormalization" for node in onnx.load_model(again).graph.node)


@pytest.mark.parametrize("name", ["modelopt-0.47.0", "modelopt-0.47.0-mobile"])
def test_a_file_made_for_tensorrt_is_deployed_again_for_it(name, tmp_path):
    prepared = prepared_for("tensorrt", FOLDER / f"{name}.onnx", images())
    again = detent.deploy(prepared, tmp_path / "out").path("model.onnx")
    for seed in range(3):
        assert off(run(again, images(seed)), run(FOLDER / f"{name}.onnx", images(seed))) < 1e-6


def test_a_weight_that_uses_the_least_code_keeps_it(tmp_path):
    codes = np.full((4, 3, 3, 3), -128, np.int8)
    codes[:, 0] = 127
    model = network(wq=codes)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    again = detent.deploy(prepared_for("onnxruntime", model, x), tmp_path / "out").path("model.onnx")
    found = [numpy_helper.to_array(tensor) for tensor in onnx.load_model(again).graph.initializer]
    assert any(np.array_equal(array, codes) for array in found if array.dtype == np.int8)


def mqbench(style: str, bits: int) -> tuple[onnx.ModelProto, np.ndarray]:
    """What MQBench's exporters for torch 1.10 wrote, and the scales of the weight."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scales = (SCALES * 127 / high).astype(F32)
    numbers = {"low": low, "high": high, "least": 0, "most": 255, "axis": 0}
    held = {name: np.array(number, np.int64) for name, number in numbers.items()}
    zero = np.array([128], np.int32 if style == "fixed" else F32)
    held |= {"w": WEIGHT, "xs": np.array([0.03], F32), "xz": zero, "ws": scales, "wz": np.zeros(4, np.int32)}
    if style == "fixed":
        of_x = helper.make_node("FixedPerTensorAffine", ["x", "xs", "xz", "least", "most"], ["xd"], name="fx")
        of_w = helper.make_node(
            "FixedPerChannelAffine", ["w", "ws", "wz", "axis", "low", "high"], ["wd"], name="fw", domain="mmrazor"
        )
    else:
        of_x = helper.make_node("LearnablePerTensorAffine", ["x", "xs", "xz", "least", "most"], ["xd"], name="fx")
        of_w = helper.make_node(
            "FakeQuantizeLearnablePerchannelAffine", ["w", "ws", "wz"], ["wd"], name="fw", quant_min=low, quant_max=high
        )
    nodes = [of_x, of_w, helper.make_node("Conv", ["xd", "wd"], ["y"], name="conv", pads=[1, 1, 1, 1])]
    ports = [[helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])]]
    ports += [[helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])]]
    graph = helper.make_graph(nodes, "net", *ports, [numpy_helper.from_array(v, k) for k, v in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6), scales


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("style", ["fixed", "learnable"])
def test_operators_for_fake_quantization_are_grids(style, bits, tmp_path):
    model, scales = mqbench(style, bits)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    weight = torch.fake_quantize_per_channel_affine(
        torch.from_numpy(WEIGHT),
        torch.from_numpy(scales),
        torch.zeros(4, dtype=torch.int32),
        0,
        -(2 ** (bits - 1)),
        2 ** (bits - 1) - 1,
    )
    wanted = torch.conv2d(torch.fake_quantize_per_tensor_affine(x, 0.03, 128, 0, 255), weight, padding=1).numpy()
    prepared = prepared_for("onnxruntime", model, x)
    assert off(simulated(prepared, x), wanted) < 1e-6
    assert off(run(detent.deploy(prepared, tmp_path / "out").path("model.onnx"), x), wanted) < 1e-6


# --- what no quantizer has


def fake_quantize(low: float, high: float) -> onnx.ModelProto:
    node = helper.make_node(
        "FakeQuantize", ["r", "low", "high", "low", "high"], ["y"], name="f", domain="org.openvinotoolkit", levels=256
    )
    return network(last=(node,), low=np.array(low, F32), high=np.array(high, F32))


REFUSED = {
    "codes clipped to 0 to 200": (lambda: network(**clip(0, 200)), "clipped to 0 to 200"),
    "zero between two levels": (lambda: fake_quantize(-0.9, 254.6), "zero lies between"),
    "floats of 8 bits": (
        lambda: network(opset=19, xz=helper.make_tensor("xz", TensorProto.FLOAT8E4M3FN, [], [0.0])),
        "FLOAT8E4M3FN",
    ),
}


@pytest.mark.parametrize(("make", "found"), REFUSED.values(), ids=REFUSED)
def test_what_no_quantizer_has_is_refused_by_name(make, found):
    with pytest.raises(OnnxError, match=found):
        load(make())


def test_codes_that_go_elsewhere_are_computed_but_not_prepared():
    last = (
        *pair("r", "rd"),
        helper.make_node("Cast", ["r_rd_q"], ["numbers"], to=TensorProto.FLOAT),
        join("rd", "numbers"),
    )
    model = network(last=last)
    x = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    graph = load(model)
    with torch.no_grad():
        assert off(graph(x).numpy(), run(model, x)) < 0.02  # x is not on its grid before it is prepared
    with pytest.raises(OnnxError, match="not only dequantized"):
        detent.prepare(graph, (x,), backend="onnxruntime")
