"""ONNX operations as torch functions: what ONNX Runtime computes, at ties and from behind too."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from detent.errors import DeployError
from detent.ir import read_qdq
from detent.ir.torch_module import FloatGrids, TorchGraph

X = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype(np.float32)
NOTHING, LEAST = np.zeros(0, np.float32), -(2**63)


def net(kind: str, constants: tuple[Any, ...] = (), shape: tuple[int, ...] = X.shape, **attributes: Any) -> Any:
    names = [f"k{index}" for index in range(len(constants))]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", *names], ["y"], name="op", **attributes)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names, constants, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def sliced(*rows: list[int]) -> Any:
    return net("Slice", tuple(np.array(row) for row in rows))


def resized(mode: str, *sizes: int) -> Any:
    """To sizes at which some neighbors are as near as others."""
    return net("Resize", (NOTHING, NOTHING, np.array([2, 3, *sizes])), mode="nearest", nearest_mode=mode)


CASES = {
    "backward": sliced([-1], [LEAST], [3], [-1]),
    "backward-by-two": sliced([5, 2], [0, LEAST], [3, 2], [-2, -1]),
    "backward-from-beyond": sliced([100], [1], [-1], [-3]),
    "backward-nothing": sliced([1], [3], [3], [-1]),
    "gather-elements": net("GatherElements", (np.array([[[[0, -1, 2, 1, 0, -2]]]]).repeat(2, 0),), axis=1),
    "cumsum": net("CumSum", (np.array(1),)),
    "cumsum-exclusive": net("CumSum", (np.array(3),), exclusive=1),
    "cumsum-reverse": net("CumSum", (np.array(-1),), exclusive=1, reverse=1),
    "celu": net("Celu", alpha=1.5),
    "einsum": net("Einsum", (X[0, 0],), equation="bchw,hw->bc"),
    "logsumexp": net("ReduceLogSumExp", (np.array([1, 2]),), keepdims=0),
    "col2im": net(
        "Col2Im", (np.array([5, 4]), np.array([2, 2])), (2, 12, 12), strides=[1, 2], pads=[0, 1, 0, 1], dilations=[1, 1]
    ),
    "nearest-prefers-the-first": resized("round_prefer_floor", 2, 9),
    "nearest-prefers-the-last": resized("round_prefer_ceil", 2, 9),
    # Where torch has no function of its own, the reference kernel computes it.
    "nearest-of-channels": net("Resize", (NOTHING, NOTHING, np.array([2, 6, 4, 6])), nearest_mode="floor"),
    "linear-asymmetric": net(
        "Resize",
        (NOTHING, np.array([1, 1, 2, 1.5], np.float32)),
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    ),
    "average-padded-at-the-end": net("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1),
    "average-dilated": net("AveragePool", kernel_shape=[2, 2], dilations=[2, 1]),
    "average-in-ceil-mode": net("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    "maximum-padded-at-the-end": net("MaxPool", kernel_shape=[3, 3], pads=[0, 1, 1, 0], strides=[2, 2], ceil_mode=1),
    "transposed-cut-differently": net("ConvTranspose", (X[0, :, :2, :2].reshape(3, 1, 2, 2),), pads=[1, 0, 0, 0]),
    "gemm-with-factors": net("Gemm", (np.eye(4, 3, dtype=np.float32), X[0, 0, 0, :3]), (2, 4), alpha=0.5, beta=2.0),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_onnxruntime_computes(case: str) -> None:
    model = CASES[case]
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = TorchGraph(read_qdq(model), FloatGrids())(torch.from_numpy(x))
    # Sums in another order.
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_folding_with_other_padding_at_the_end_is_refused() -> None:
    model = net("Col2Im", (np.array([5, 4]), np.array([2, 2])), (2, 12, 16), pads=[0, 1, 0, 2])
    with pytest.raises(DeployError, match="pads both sides alike"):
        TorchGraph(read_qdq(model), FloatGrids())(torch.zeros(2, 12, 16))
