"""How a proof against LiteRT goes: the same net in the engine and in the twin, and how many codes differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from detent.ir import Network, read_qdq
from detent.targets.litert.file import model_to_tflite
from detent.twin import Arithmetic, Twin
from tests.targets.litert.nets import LITE
from tests.twin.builder import Net, Style

pytest.importorskip("ai_edge_litert", reason="pip install 'detent[litert]'")

from detent.targets.litert.engine import Kernels, LiteRT

__all__ = ["KINDS", "STYLES", "differing"]

KINDS = (
    "conv",
    "conv_relu",
    "conv_relu6",
    "conv_1x1",
    "conv_strided",
    "conv_dilated",
    "conv_grouped",
    "conv_5x5_deep",
    "conv_1d",
    "depthwise",
    "depthwise_relu",
    "conv_transpose",
    "gemm",
    "gemm_relu",
    "matmul",
    "add",
    "add_relu",
    "add_channels",
    "mul",
    "mul_relu",
    "sub",
    "concat",
    "concat_equal",
    "maxpool",
    "gap",
    "mean",
    "resize_nearest",
    "resize_linear",
    "relu",
    "clip",
    "hardswish",
    "leaky_relu",
    "gelu",
    "pad",
    "moves",
    "depthwise_13",
    "add_to_row",
    "maxpool_ceil",
    "conv_transpose_gaps",
    "residual",
    *LITE,
)
"""What LiteRT runs on integers."""

STYLES = (
    Style(activation="uint8", scales="random", seed=1),
    Style(activation="int8", scales="tie", seed=2),
    Style(activation="uint8", scales="pot", seed=3, per_channel=False),
    Style(activation="int8", scales="random", seed=4, bias="float", symmetric=True),
)


def differing(net: Net, arithmetic: Arithmetic, kernels: Kernels) -> tuple[int, int]:
    """How many codes of the output differ, of how many."""
    graph = read_qdq(net.model)
    content = model_to_tflite(net.model, short_sums=kernels != "reference")
    engine = LiteRT(content, graph=graph, kernels=kernels)
    return _count(graph, engine.run(net.feeds), Twin(graph, arithmetic).run(net.feeds))


def _count(graph: Network, ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[int, int]:
    wrong = total = 0
    for output in graph.outputs:
        grid = output.read.encoding
        assert grid is not None
        codes = [np.rint(each[output.name].astype(np.float64) / float(grid.scale)) for each in (ours, theirs)]
        assert codes[0].shape == codes[1].shape
        wrong += int((codes[0] != codes[1]).sum())
        total += codes[0].size
    return wrong, total
