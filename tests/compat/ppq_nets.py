"""A small ONNX network with what PPQ's rules speak of: a batch norm, a residual sum, pooling, a linear layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper


def initializers(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (4, 4, 3, 3), "w3": (5, 4), "b3": (5,)}
    found = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return found | {
        "gamma": np.full(4, 1.5, np.float32),
        "beta": np.full(4, 0.1, np.float32),
        "mean": np.full(4, 0.2, np.float32),
        "var": np.full(4, 0.9, np.float32),
    }


def save_net(path: Path) -> Path:
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c2", "gamma", "beta", "mean", "var"], ["n2"], "bn2"),
        helper.make_node("Add", ["r1", "n2"], ["a"], "add"),
        helper.make_node("GlobalAveragePool", ["a"], ["g"], "gap"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(value, name) for name, value in initializers().items()],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def save_chain(path: Path) -> Path:
    """Three convolutions one after another, of which the second has some inputs that it weighs far more than others."""
    rng = np.random.default_rng(3)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (4, 8, 3, 3)}
    weights = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    weights["w2"][:, 5] *= 6
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("Conv", ["r2", "w3"], ["y"], "conv3", pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, 8, 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def batches(count: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, 8, 8, generator=generator) for _ in range(count)]
