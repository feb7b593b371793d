"""Average pools that hang over the edge, with padding in place of `ceil_mode`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx.reference
import pytest
import torch
import torch.nn.functional as F
from onnx import helper

from detent.errors import DeployError
from detent.ir import Network, read_qdq, write_qdq
from detent.targets.rewrites import legalize

REWRITE = ("avgpool_ceil_mode_explicit_pad_htp",)


def pool(size: int, **attributes: object) -> Network:
    node = helper.make_node("AveragePool", ["x"], ["y"], name="pool", ceil_mode=1, **attributes)
    x, y = helper.make_tensor_value_info("x", 1, ["batch", 2, size, size]), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([node], "pools", [x], [y])
    return read_qdq(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def attributes_of(network: Network) -> Mapping[str, object]:
    return network.ops[0].attributes


@pytest.mark.parametrize(("size", "kernel", "stride"), [(10, 3, 2), (9, 2, 2), (9, 3, 2), (7, 2, 3), (11, 4, 3)])
def test_it_computes_the_same_average(size: int, kernel: int, stride: int) -> None:
    found = legalize(pool(size, kernel_shape=[kernel] * 2, strides=[stride] * 2), REWRITE)
    written = attributes_of(found)
    assert written["ceil_mode"] == 0
    x = torch.randn(1, 2, size, size, generator=torch.Generator().manual_seed(0))
    run = onnx.reference.ReferenceEvaluator(write_qdq(found)).run(None, {"x": x.numpy()})[0]
    expected = F.avg_pool2d(x, kernel, stride, ceil_mode=True)
    np.testing.assert_allclose(run, expected.numpy(), atol=1e-6)  # sums of at most 16 numbers near 1


def test_only_what_hangs_over_is_padded() -> None:
    over = attributes_of(legalize(pool(10, kernel_shape=[3, 3], strides=[2, 2]), REWRITE))
    assert (over["pads"], over["count_include_pad"]) == ([0, 0, 1, 1], 0)
    even = attributes_of(
        legalize(
            pool(9, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=1),
            REWRITE,
        )
    )
    assert (even["pads"], even["count_include_pad"]) == ([1, 1, 1, 1], 1)


def test_windows_that_hang_over_padding_are_refused() -> None:
    with pytest.raises(DeployError, match="reach beyond the padding"):
        legalize(pool(10, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), REWRITE)
