"""Pools with rounded up sizes, written for MNN."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from detent.errors import DeployError
from detent.ir import Op, Operand
from detent.targets.mnn.windows import with_whole_windows


def pool(kind: str = "MaxPool", **attributes: object) -> Op:
    return Op(kind, "pool", (Operand("x"),), ("y",), attributes)


def size_in_onnxruntime(op: Op, size: int) -> tuple[int, ...]:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    graph = helper.make_graph([helper.make_node(op.type, ["x"], ["y"], **op.attributes)], "pool", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given: tuple[int, ...] = session.run(None, {"x": np.zeros((1, 1, size, size), np.float32)})[0].shape[2:]
    return given


@pytest.mark.parametrize("size", range(3, 14))
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(1, 2, 0), (1, 3, 0), (2, 3, 0), (3, 3, 1), (2, 2, 1), (3, 2, 1)]
)
def test_mnn_computes_as_many_windows_as_onnx_has(size: int, kernel: int, stride: int, pad: int) -> None:
    op = pool(kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, ceil_mode=1)
    written = with_whole_windows(op, (size, size))
    room = size + 2 * pad - kernel
    computed = (-(-room // stride) if written.attribute("ceil_mode") else room // stride) + 1
    assert size_in_onnxruntime(op, size) == (computed, computed)


def test_a_pool_without_such_a_window_is_left_as_it_is() -> None:
    down = pool(kernel_shape=[1, 1], strides=[2, 2])
    assert with_whole_windows(down, (4, 4)) is down
    overlapping = pool(kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    assert with_whole_windows(overlapping, None) is overlapping


@pytest.mark.parametrize("sizes", [(12, 3), None, ("height", "width")], ids=["one_axis", "none", "free"])
def test_what_cannot_be_told_apart_is_refused(sizes: tuple[int | str, ...] | None) -> None:
    """Of 12 the fifth window of stride 3 begins outside; of 3 the second window of 2 and stride 2 does not."""
    op = pool(kernel_shape=[1, 2], strides=[3, 2], ceil_mode=1)
    with pytest.raises(DeployError, match=r"MaxPool 'pool' for MNN"):
        with_whole_windows(op, sizes)
