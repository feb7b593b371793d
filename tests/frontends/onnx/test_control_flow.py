"""`If`, `Loop` and `Scan` that depend on data stay one float operation, between layers that are quantized."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import detent
from detent.errors import DeployError, RunError

X = [torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
ROWS = ["n", 8]


def port(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "inside", inputs, outputs)


def loop() -> list[onnx.NodeProto]:
    """Four times or five, as the mean decides; it reads a constant and a tensor from outside."""
    body = graph(
        [
            helper.make_node("Add", ["before", "k"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["tanh"]),
            helper.make_node("Add", ["tanh", "s"], ["next"]),
            helper.make_node("Identity", ["goes_on"], ["goes_on_2"]),
        ],
        [port("i", [], TensorProto.INT64), port("goes_on", [], TensorProto.BOOL), port("before", ROWS)],
        [port("goes_on_2", [], TensorProto.BOOL), port("next", ROWS)],
    )
    return [
        helper.make_node("Cast", ["positive"], ["one"], to=TensorProto.INT64),
        helper.make_node("Add", ["four", "one"], ["count"]),
        helper.make_node("Loop", ["count", "yes", "s"], ["z"], name="inner", body=body),
    ]


def branch() -> list[onnx.NodeProto]:
    then = graph([helper.make_node("Mul", ["s", "k"], ["product"])], [], [port("product", ROWS)])
    other = graph([helper.make_node("Neg", ["s"], ["negated"])], [], [port("negated", ROWS)])
    return [helper.make_node("If", ["positive"], ["z"], name="inner", then_branch=then, else_branch=other)]


def scan() -> list[onnx.NodeProto]:
    body = graph(
        [
            helper.make_node("Mul", ["state", "half"], ["decayed"]),
            helper.make_node("Add", ["decayed", "column"], ["new"]),
            helper.make_node("Identity", ["new"], ["out"]),
        ],
        [port("state", ["n"]), port("column", ["n"])],
        [port("new", ["n"]), port("out", ["n"])],
    )
    axes = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    return [
        helper.make_node("ReduceMean", ["s"], ["start"], axes=[1], keepdims=0),
        helper.make_node("Scan", ["start", "s"], ["last", "z"], name="inner", body=body, **axes),
    ]


KINDS: dict[str, Any] = {"Loop": loop, "If": branch, "Scan": scan}


def model(kind: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    held = {
        "w": rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32),
        "k": rng.normal(size=8).astype(np.float32),
        "v": rng.normal(size=(8, 5)).astype(np.float32),
        "axes": np.array([2, 3]),
        "zero": np.float32(0),
        "half": np.float32(0.5),
        "four": np.int64(4),
        "yes": np.array(True),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Squeeze", ["g", "axes"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "zero"], ["positive"]),
        *KINDS[kind](),
        helper.make_node("MatMul", ["z", "v"], ["y"], name="head"),
    ]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()]
    ends = [port("x", ["n", 3, 8, 8])], [port("y", ["n", 5])]
    made = helper.make_graph(nodes, "one", *ends, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", KINDS)
def test_it_computes_what_the_file_does_and_copies(kind: str) -> None:
    session = onnxruntime.InferenceSession(model(kind).SerializeToString(), providers=["CPUExecutionProvider"])
    network = detent.load(model(kind))
    for made in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        for x in X[:2]:
            (expected,) = session.run(None, {"x": x.numpy()})
            np.testing.assert_allclose(made(x).detach().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_what_is_around_it_is_quantized_and_the_engine_agrees(kind: str, backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend, reason=f"pip install 'detent[{backend}]'")
    prepared = detent.prepare(detent.load(model(kind)), (X[0],), backend=backend)
    runs = {one.op: one.runs for one in prepared.plan.ops}
    assert runs["conv"] == "quantized"
    assert runs["inner"] == "float"
    detent.calibrate(prepared, X)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(X[:2], latency=False)
    assert verdict.holds, verdict
    assert {one.what: one for one in verdict.outputs}["simulation vs engine"].differing == 0


def test_a_target_without_it_says_so(tmp_path: Path, refuses: Any) -> None:
    prepared = detent.prepare(detent.load(model("Loop")), (X[0],), backend="litert")
    detent.calibrate(prepared, X)
    with refuses(DeployError, asked="Loop 'inner'", found="no such operation"):
        detent.deploy(prepared, tmp_path / "out")


def test_what_is_behind_it_is_trained_and_what_is_before_it_cannot_be() -> None:
    prepared = detent.prepare(detent.load(model("If")), (X[0],), backend="onnxruntime", recipe="lsq")
    detent.calibrate(prepared, X)
    prepared.train()
    with pytest.raises(RunError, match="gradient of If 'inner'"):
        prepared(X[0]).square().sum().backward()
    for name, parameter in prepared.named_parameters():
        parameter.requires_grad_("head" in name)
    prepared(X[0]).square().sum().backward()
    found = {name: parameter.grad for name, parameter in prepared.named_parameters() if "head" in name}
    assert found
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in found.values())
