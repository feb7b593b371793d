"""ONNX in, ONNX out: the file's own nodes and names, with Q and DQ between them."""

from __future__ import annotations

import io
import logging
from contextlib import redirect_stderr, redirect_stdout
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.deployment import deployment_of
from tests.deployment.float_path import attribute, float_path, initializer, node
from tests.models import MODELS

RANDOM = np.random.default_rng(0)


def constant(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((RANDOM.standard_normal(shape) * 0.5).astype(np.float32), name)


def model_of(nodes, inputs, outputs, initializers, opset: int = 17) -> onnx.ModelProto:
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in which.items()]
        for which in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "net", *ends, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def annotated(model: onnx.ModelProto, *arrays: np.ndarray, backend: str = "onnxruntime"):
    inputs = tuple(torch.from_numpy(array) for array in arrays)
    prepared = detent.prepare(detent.load(model), inputs, backend=backend)
    detent.calibrate(prepared, [inputs])
    deployment = deployment_of(prepared.eval())
    onnx.checker.check_model(deployment.model, full_check=True)
    with torch.no_grad():
        wanted = prepared(*inputs)
    found = float_path(deployment.model, inputs)
    first = wanted if isinstance(wanted, torch.Tensor) else wanted[0]
    # Float32 sums in another order; nothing lies on a tie here.
    np.testing.assert_allclose(found[0], first.numpy(), rtol=1e-4, atol=1e-5)
    return prepared, deployment


def conv_bn() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["image", "stem.w"], ["stem"], name="/stem/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["stem", "g", "b", "m", "v"], ["normed"], name="/stem/Norm"),
        helper.make_node("Relu", ["normed"], ["active"], name="/stem/Relu"),
        helper.make_node("Conv", ["active", "head.w", "head.b"], ["scores"], name="/head/Conv"),
    ]
    constants = [constant("stem.w", 4, 3, 3, 3), *(constant(name, 4) for name in "gbm")]
    constants += [numpy_helper.from_array(np.full(4, 0.7, np.float32), "v")]
    constants += [constant("head.w", 2, 4, 1, 1), constant("head.b", 2)]
    return model_of(nodes, {"image": ["N", 3, 6, 6]}, {"scores": ["N", 2, 6, 6]}, constants)


IMAGES = RANDOM.standard_normal((2, 3, 6, 6)).astype(np.float32)


def test_names_of_nodes_and_tensors_survive():
    _, deployment = annotated(conv_bn(), IMAGES)
    model = deployment.model
    own = {n.name: n for n in model.graph.node if "Linear" not in n.op_type}
    assert list(own) == ["/stem/Conv", "/stem/Relu", "/head/Conv"]
    assert [value.name for value in model.graph.input] == ["image"]
    assert [value.name for value in model.graph.output] == ["scores"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert list(own["/stem/Conv"].input[:2]) == ["image_dequantized", "stem.w"]
    assert node(model, "image_quantized").input[0] == "image"
    assert initializer(model, "stem.w_quantized").dtype == np.int8
    tensors = {tensor.tensor: tensor for tensor in deployment.tensors}
    assert {"image", "stem.w", "head.w", "head.b"} <= set(tensors)
    assert tensors["stem.w"].op == "/stem/Conv"


def test_a_batch_norm_is_folded_and_gone():
    prepared, deployment = annotated(conv_bn(), IMAGES)
    model = deployment.model
    assert "BatchNormalization" not in {n.op_type for n in model.graph.node}
    held = {one.name for one in model.graph.initializer}
    assert not held & {"g", "b", "m", "v", "stem.w"}
    conv = next(n for n in model.graph.node if n.name == "/stem/Conv")
    assert len(conv.input) == 3  # it had no bias; folding made one
    assert conv.output[0] == "normed"  # the tensor that the batch norm gave
    assert deployment.graph.producer("normed").name == "/stem/Conv"
    assert prepared.plan.backend == "onnxruntime"


def test_an_initializer_that_two_nodes_share_is_stored_once():
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w"], ["c"], name="second", pads=[1, 1, 1, 1]),
    ]
    model = model_of(nodes, {"image": ["N", 3, 6, 6]}, {"c": ["N", 3, 6, 6]}, [constant("w", 3, 3, 3, 3)])
    _, deployment = annotated(model, IMAGES)
    codes = [one for one in deployment.model.graph.initializer if one.name.startswith("w_quantized")]
    assert len(codes) == 1
    convs = [n for n in deployment.model.graph.node if n.op_type == "Conv"]
    assert convs[0].input[1] == convs[1].input[1] == "w"


def product(transposed: bool) -> onnx.ModelProto:
    if transposed:
        nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc", transB=1)]
        held = [constant("w", 5, 8), constant("b", 5)]
    else:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["xw"], name="product"),
            helper.make_node("Add", ["xw", "b"], ["y"], name="bias"),
        ]
        held = [constant("w", 8, 5), constant("b", 5)]
    return model_of(nodes, {"x": ["N", 8]}, {"y": ["N", 5]}, held)


def test_a_matmul_keeps_its_weight_the_way_it_is_stored():
    """torch has outputs first, the file inputs first: codes are turned back, and the axis with them."""
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    prepared, deployment = annotated(product(transposed=False), x)
    assert initializer(deployment.model, "w_quantized").shape == (8, 5)
    assert attribute(node(deployment.model, "w"), "axis") == 1
    weight = next(tensor for tensor in deployment.tensors if tensor.role == "weight")
    assert weight.tensor == "w"
    assert weight.scheme.granularity.axis == 1
    assert weight.scale.shape == (5,)
    linear = next(m for m in prepared.modules() if hasattr(m, "parametrizations"))
    codes = linear.parametrizations.weight[0].codes(linear.parametrizations.weight.original).numpy()
    assert np.array_equal(initializer(deployment.model, "w_quantized"), codes.T)


def test_a_gemm_keeps_its_weight_too():
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    _, deployment = annotated(product(transposed=True), x)
    assert initializer(deployment.model, "w_quantized").shape == (5, 8)
    assert attribute(node(deployment.model, "w"), "axis") == 0


def test_an_output_that_others_read_keeps_its_name():
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], name="conv"),
        helper.make_node("Relu", ["features"], ["active"], name="relu"),
        helper.make_node("Conv", ["active", "w2"], ["scores"], name="head"),
    ]
    model = model_of(
        nodes,
        {"image": ["N", 3, 6, 6]},
        {"features": ["N", 4, 4, 4], "scores": ["N", 2, 4, 4]},
        [constant("w", 4, 3, 3, 3), constant("w2", 2, 4, 1, 1)],
    )
    prepared, deployment = annotated(model, IMAGES)
    assert [value.name for value in deployment.model.graph.output] == ["features", "scores"]
    with torch.no_grad():
        wanted = prepared(torch.from_numpy(IMAGES))
    for ours, theirs in zip(wanted, float_path(deployment.model, [torch.from_numpy(IMAGES)]), strict=True):
        np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-4, atol=1e-5)


def test_readers_behind_identities_read_each_on_its_own_grid_or_none():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="/relu"),
        helper.make_node("Identity", ["r"], ["copy"], name="/copy"),
        helper.make_node("Identity", ["copy"], ["again"], name="/again"),
        helper.make_node("Exp", ["again"], ["float"], name="/exp"),
        helper.make_node("Conv", ["again", "w"], ["c"], name="/conv"),
        helper.make_node("Identity", ["c"], ["d"], name="/d"),
        helper.make_node("Identity", ["d"], ["codes"], name="/codes"),
    ]
    shapes = {"float": ["N", 3, 6, 6], "codes": ["N", 4, 4, 4]}
    model = model_of(nodes, {"x": ["N", 3, 6, 6]}, shapes, [constant("w", 4, 3, 3, 3)])
    _, deployment = annotated(model, np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32))
    read = {node.name: node.input[0] for node in deployment.model.graph.node}
    assert (read["/exp"], read["/conv"]) == ("r", "r_dequantized")
    assert [node.op_type for node in deployment.model.graph.node if "c_quantized" in node.input] == ["DequantizeLinear"]


@pytest.mark.parametrize("outputs", [["output"], ["output", "state"], ["state", "output"]])
def test_an_output_that_is_called_output_is_on_its_grid(outputs):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["output"], name="/a/Conv"),
        helper.make_node("Conv", ["x", "v"], ["state"], name="/b/Conv"),
    ]
    nodes = [one for one in nodes if one.output[0] in outputs]
    shapes = {name: ["N", 4, 4, 4] for name in outputs}
    model = model_of(nodes, {"x": ["N", 3, 6, 6]}, shapes, [constant("w", 4, 3, 3, 3), constant("v", 4, 3, 3, 3)])
    _, deployment = annotated(model, np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype(np.float32))
    givers = {node.output[0]: node.op_type for node in deployment.model.graph.node}
    assert [givers[name] for name in outputs] == ["DequantizeLinear"] * len(outputs)


def test_an_older_opset_is_converted_to_one_with_scales_along_an_axis():
    model = conv_bn()
    model.opset_import[0].version = 11
    _, deployment = annotated(model, IMAGES, backend="tensorrt")
    assert deployment.model.opset_import[0].version >= 13


@pytest.mark.parametrize("keepdims", [1, 0])
@pytest.mark.parametrize("opset", [17, 18], ids=["axes as an attribute", "axes as an input"])
def test_the_mean_of_each_plane_is_a_pooling_of_the_same_name(keepdims, opset):
    mean = (["active", "axes"], {}) if opset == 18 else (["active"], {"axes": [2, 3]})
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], name="conv"),
        helper.make_node("Relu", ["features"], ["active"], name="relu"),
        helper.make_node("ReduceMean", mean[0], ["means"], name="the mean", keepdims=keepdims, **mean[1]),
        helper.make_node("Flatten", ["means"], ["flat"], name="flatten"),
        helper.make_node("Gemm", ["flat", "w2"], ["scores"], name="head"),
    ]
    constants = [constant("w", 4, 3, 3, 3), constant("w2", 4, 2)]
    constants.append(numpy_helper.from_array(np.array([-2, -1]), "axes"))
    model = model_of(nodes, {"image": ["N", 3, 6, 6]}, {"scores": ["N", 2]}, constants, opset)
    _, deployment = annotated(model, IMAGES)
    pool = next(n for n in deployment.model.graph.node if n.name == "the mean")
    assert (pool.op_type, len(pool.input), len(pool.attribute)) == ("GlobalAveragePool", 1, 0)
    after = [n.op_type for n in deployment.model.graph.node if pool.output[0] in n.input]
    assert after == ["QuantizeLinear"]  # what an engine needs next to it
    assert (pool.output[0] == "means") == bool(keepdims)


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_a_weight_that_is_turned_in_the_file_is_quantized_as_it_is_read(operator):
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], name="turn", perm=[1, 0]),
        helper.make_node(operator, ["x", "turned"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    _, deployment = annotated(model_of(nodes, {"x": ["N", 8]}, {"y": ["N", 5]}, [constant("w", 5, 8)]), x)
    assert initializer(deployment.model, "turned_quantized").shape == (8, 5)
    assert attribute(node(deployment.model, "turned"), "axis") == 1
    assert "Transpose" not in {n.op_type for n in deployment.model.graph.node}
    weight = next(tensor for tensor in deployment.tensors if tensor.role == "weight")
    assert (weight.tensor, weight.scheme.granularity.axis) == ("turned", 1)


def test_a_layer_norm_in_steps_is_deployed_in_its_steps():
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        helper.make_node("ReduceMean", ["h"], ["m"], name="norm/mean", axes=[-1]),
        helper.make_node("Sub", ["h", "m"], ["d"], name="norm/sub"),
        helper.make_node("Mul", ["d", "d"], ["p"], name="norm/square"),
        helper.make_node("ReduceMean", ["p"], ["v"], name="norm/variance", axes=[-1]),
        helper.make_node("Add", ["v", "eps"], ["e"], name="norm/eps"),
        helper.make_node("Sqrt", ["e"], ["s"], name="norm/sqrt"),
        helper.make_node("Div", ["d", "s"], ["n"], name="norm/div"),
        helper.make_node("Mul", ["n", "g"], ["scaled"], name="norm/scale"),
        helper.make_node("Add", ["scaled", "b"], ["shifted"], name="norm/shift"),
        helper.make_node("MatMul", ["shifted", "w1"], ["y"], name="last"),
    ]
    constants = [constant("w0", 8, 8), constant("w1", 8, 5), constant("g", 8), constant("b", 8)]
    constants.append(numpy_helper.from_array(np.array(1e-3, np.float32), "eps"))
    x = RANDOM.standard_normal((3, 8)).astype(np.float32)
    _, deployment = annotated(model_of(nodes, {"x": ["N", 8]}, {"y": ["N", 5]}, constants), x)
    own = {n.name for n in deployment.model.graph.node if "Linear" not in n.op_type and n.op_type != "Constant"}
    assert own == {n.name for n in nodes}
    quantized = {n.input[0] for n in deployment.model.graph.node if n.op_type == "QuantizeLinear"}
    assert quantized.isdisjoint({"m", "d", "p", "v", "e", "s", "n", "scaled"})


def test_a_bias_that_two_convolutions_share_has_the_scale_of_each():
    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["first"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["first"], ["between"], name="relu"),
        helper.make_node("Conv", ["between", "w", "b"], ["y"], name="second", pads=[1, 1, 1, 1]),
    ]
    ends = {"image": ["N", 3, 6, 6]}, {"y": ["N", 3, 6, 6]}
    _, deployment = annotated(model_of(nodes, *ends, [constant("w", 3, 3, 3, 3), constant("b", 3)]), IMAGES)
    first, second = (next(n for n in deployment.model.graph.node if n.name == name) for name in ("first", "second"))
    assert first.input[1] == second.input[1] == "w"
    weight = initializer(deployment.model, "w_scale")
    for conv, data in ((first, "image"), (second, "between")):
        held = node(deployment.model, conv.input[2])
        expected = initializer(deployment.model, f"{data}_scale") * weight
        np.testing.assert_allclose(initializer(deployment.model, held.input[1]), expected, rtol=1e-6)
    biases = [tensor.tensor for tensor in deployment.tensors if tensor.role == "bias"]
    assert len(set(biases)) == 2


def test_a_constant_on_a_grid_is_stored_as_codes():
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], name="conv"),
        helper.make_node("Relu", ["features"], ["positive"], name="relu"),
        helper.make_node("Mul", ["gain", "positive"], ["scaled"], name="scale"),
        helper.make_node("Conv", ["scaled", "w2"], ["y"], name="head"),
    ]
    constants = [constant("w", 4, 3, 1, 1), constant("gain", 1, 4, 1, 1), constant("w2", 2, 4, 1, 1)]
    ends = {"image": ["N", 3, 6, 6]}, {"y": ["N", 2, 6, 6]}
    _, deployment = annotated(model_of(nodes, *ends, constants), IMAGES)
    held = node(deployment.model, next(n for n in deployment.model.graph.node if n.name == "scale").input[0])
    assert held.op_type == "DequantizeLinear"
    assert initializer(deployment.model, held.input[0]).dtype == np.uint8
    assert "gain" not in {one.name for one in deployment.model.graph.initializer}


def test_a_constant_that_nodes_compute_is_on_its_grid():
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], name="conv"),
        helper.make_node("Transpose", ["table"], ["bias"], name="turn", perm=[0, 3, 1, 2]),
        helper.make_node("Add", ["features", "bias"], ["y"], name="add"),
    ]
    constants = [constant("w", 4, 3, 1, 1), constant("table", 1, 6, 6, 4)]
    ends = {"image": ["N", 3, 6, 6]}, {"y": ["N", 4, 6, 6]}
    _, deployment = annotated(model_of(nodes, *ends, constants), IMAGES)
    add = next(n for n in deployment.model.graph.node if n.name == "add")
    assert [node(deployment.model, name).op_type for name in add.input] == ["DequantizeLinear"] * 2


def test_a_norm_whose_numbers_are_constant_nodes():
    """A group norm as exporters write it: an instance norm of ones and zeros between reshapes."""
    held = {"ones": np.ones(2, np.float32), "zeros": np.zeros(2, np.float32)}
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], name="conv"),
        *(
            helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(value))
            for name, value in held.items()
        ),
        helper.make_node("Reshape", ["features", "groups"], ["grouped"], name="apart"),
        helper.make_node("InstanceNormalization", ["grouped", "ones", "zeros"], ["normed"], name="norm"),
        helper.make_node("Reshape", ["normed", "planes"], ["y"], name="together"),
    ]
    constants = [constant("w", 4, 3, 1, 1)]
    for name, shape in (("groups", [0, 2, -1]), ("planes", [-1, 4, 6, 6])):
        constants.append(numpy_helper.from_array(np.array(shape), name))
    ends = {"image": ["N", 3, 6, 6]}, {"y": ["N", 4, 6, 6]}
    _, deployment = annotated(model_of(nodes, *ends, constants), IMAGES)
    assert {"conv", "apart", "norm", "together"} <= {n.name for n in deployment.model.graph.node}


@pytest.mark.parametrize("axis", [1, 2])
def test_a_softmax_before_opset_13_reads_what_is_quantized(axis):
    """Over all axes from its own on: the converter writes a Flatten before it, unless it is the last one."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], name="first"),
        helper.make_node("Softmax", ["scores"], ["shares"], name="softmax", axis=axis),
        helper.make_node("MatMul", ["shares", "v"], ["y"], name="last"),
    ]
    x = RANDOM.standard_normal((3, 4, 8)).astype(np.float32)
    ends = {"x": ["N", 4, 8]}, {"y": ["N", 4, 5]}
    _, deployment = annotated(model_of(nodes, *ends, [constant("w", 8, 6), constant("v", 6, 5)], opset=11), x)
    softmax = next(n for n in deployment.model.graph.node if n.name == "softmax")
    before = softmax if axis == 2 else node(deployment.model, softmax.input[0])
    assert before.op_type == ("Softmax" if axis == 2 else "Flatten")
    assert node(deployment.model, before.input[0]).op_type == "DequantizeLinear"


def test_shapes_that_are_known_are_constants():
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["features"], name="conv"),
        helper.make_node("Shape", ["w"], ["sizes"], name="shape of w"),
        helper.make_node("Gather", ["sizes", "zero"], ["count"], name="first of them"),
        helper.make_node("Concat", ["minus", "count"], ["wanted"], name="to", axis=0),
        helper.make_node("Reshape", ["features", "wanted"], ["flat"], name="reshape"),
        helper.make_node("Gemm", ["flat", "w2"], ["scores"], name="head"),
    ]
    constants = [constant("w", 4, 3, 6, 6), constant("w2", 4, 2)]
    constants += [numpy_helper.from_array(np.array([number]), name) for name, number in (("zero", 0), ("minus", -1))]
    _, deployment = annotated(model_of(nodes, {"image": ["N", 3, 6, 6]}, {"scores": ["N", 2]}, constants), IMAGES)
    assert {n.name for n in deployment.model.graph.node if "Linear" not in n.op_type} == {"conv", "reshape", "head"}
    assert initializer(deployment.model, "wanted").tolist() == [-1, 4]


def test_float_weights_that_were_trained_are_stored_under_their_name():
    """A weight that nothing quantizes has no values in what is kept of the file: the module holds them."""
    large = np.random.default_rng(0).standard_normal((64, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["image", "w"], ["features"], name="conv", pads=[1] * 4)]
    nodes.append(helper.make_node("Conv", ["features", "w2"], ["scores"], name="head"))
    constants = [numpy_helper.from_array(large, "w"), constant("w2", 2, 64, 1, 1)]
    source = model_of(nodes, {"image": ["N", 3, 6, 6]}, {"scores": ["N", 2, 6, 6]}, constants)
    recipe = detent.Recipe.from_dict({"name": "half", "exclude": ["conv"]})
    prepared = detent.prepare(detent.load(source), (torch.from_numpy(IMAGES),), backend="onnxruntime", recipe=recipe)
    detent.calibrate(prepared, [torch.from_numpy(IMAGES)])
    with torch.no_grad():
        prepared.get_submodule("conv").weight.mul_(2)
    assert np.array_equal(initializer(deployment_of(prepared.eval()).model, "w"), 2 * large)


def test_names_that_are_taken_are_not_given_again():
    nodes = [
        helper.make_node("Conv", ["x", "x_scale"], ["x_quantized"], name="x_dequantized"),
        helper.make_node("Relu", ["x_quantized"], ["y"], name="relu"),
    ]
    model = model_of(nodes, {"x": ["N", 3, 6, 6]}, {"y": ["N", 4, 4, 4]}, [constant("x_scale", 4, 3, 3, 3)])
    _, deployment = annotated(model, IMAGES)
    names = [one.name for one in deployment.model.graph.initializer]
    assert len(names) == len(set(names))


# ---- files that torch wrote ----

NETWORKS = ("residual_cnn", "mobile_cnn", "linear_bn", "transformer_block")


@cache
def exported(name: str) -> bytes:
    """torch's own ONNX of a network; it takes seconds, so once for all tests."""
    torch.manual_seed(0)
    entry = MODELS[name]
    net, inputs = entry.build().eval(), entry.inputs()
    batch = torch.export.Dim("batch")
    stream = io.BytesIO()
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            program = torch.onnx.export(
                net, inputs, dynamo=True, dynamic_shapes=tuple({0: batch} for _ in inputs), verbose=False
            )
            program.save(stream)
    finally:
        logging.disable(logging.NOTSET)
    return stream.getvalue()


@pytest.mark.by_default("transformer_block")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_torch_exported_deploys_and_verifies(name, tmp_path):
    source = onnx.load_model_from_string(exported(name))
    torch.manual_seed(1)
    inputs = MODELS[name].inputs()
    prepared = detent.prepare(detent.load(source), inputs, backend="onnxruntime")
    detent.calibrate(prepared, [inputs])
    artifact = detent.deploy(prepared, tmp_path / "out")
    onnx.checker.check_model(artifact.model, full_check=True)
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds, verdict
    before = {n.name for n in source.graph.node}
    added = {n.op_type for n in artifact.model.graph.node if "Linear" not in n.op_type and n.name not in before}
    # For this target linear layers on three dimensions are products of matrices, a strided stem is one on blocks.
    forms = {"transformer_block": {"Reshape"}, "mobile_cnn": {"Reshape", "Transpose"}}
    assert added == forms.get(name, set())
    assert [v.name for v in artifact.model.graph.output] == [v.name for v in source.graph.output]


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "litert", "ncnn", "vitis", "qnn", "stpu"])
def test_a_deployed_file_loads_again_with_its_scales(backend):
    """Grids of powers of two, narrow ones and other roundings included, which ONNX does not tell."""
    torch.manual_seed(0)
    entry = MODELS["residual_cnn"]
    inputs = entry.inputs()
    prepared = detent.prepare(entry.build().eval(), inputs, backend=backend)
    detent.calibrate(prepared, [inputs])
    again = detent.prepare(detent.load(deployment_of(prepared).model), inputs, backend=backend).eval()
    with torch.no_grad():  # no calibration: the file has every scale
        np.testing.assert_allclose(again(*inputs).numpy(), prepared.eval()(*inputs).numpy(), rtol=1e-5, atol=1e-6)
    assert deployment_of(again).tensors  # and it is deployed again
