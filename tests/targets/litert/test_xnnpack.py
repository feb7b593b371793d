"""The twin's XNNPACK against XNNPACK, code by code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from detent.ir import Encoding, read_qdq
from detent.targets.litert.arithmetic.ruy import Ruy
from detent.targets.litert.arithmetic.xnnpack import Xnnpack
from detent.targets.litert.engine import LiteRT
from detent.targets.litert.file import model_to_tflite
from detent.twin import Twin
from tests.targets.litert.nets import lite_net
from tests.targets.litert.proof import KINDS, STYLES, differing
from tests.twin.builder import Builder, Style
from tests.twin.nets import image, mobilenet, resnet18


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "elu"])
def test_equals_the_engine(kind: str, style: Style) -> None:
    wrong, total = differing(lite_net(kind, style), Xnnpack(), "xnnpack")
    assert total > 0
    assert wrong == 0


@pytest.mark.pairwise(goals=lambda network, scales: [network, scales])
@pytest.mark.parametrize("scales", ["random", "tie", "pot"])
@pytest.mark.parametrize("network", [mobilenet, resnet18])
def test_every_tensor_of_a_whole_network(network, scales: str) -> None:
    net = network(Style(batch=1, scales=scales, seed=7), size=96)
    graph = read_qdq(net.model)
    engine = LiteRT(model_to_tflite(net.model), graph=graph)
    theirs, ours = engine.tensors(net.feeds), Twin(graph, Xnnpack()).tensors(net.feeds)
    assert theirs.keys() >= ours.keys()
    assert {name for name in ours if (ours[name] != theirs[name]).any()} == set()
    assert all(array.dtype == np.uint8 for name, array in ours.items())


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_extremes_are_found_among_codes_and_then_put_on_their_grid(kind: str) -> None:
    for seed in range(3):
        b = Builder(Style("int8", scales="random", seed=seed))
        axes = {"axes": np.array([1])}
        b.output(b.quantized(b.float_op(kind, image(b), "axes", constants=axes, keepdims=1)))
        wrong, total = differing(b.net(), Xnnpack(), "xnnpack")
        assert total > 0
        assert wrong == 0


def test_a_conversion_has_eight_fractional_bits() -> None:
    """256 * 0.1 / 0.3 is 85.3, and 85 is what is left of it: the exact results are 42.3, -42.7, -0.7."""
    x, y = (Encoding(np.float32(scale), np.int64(0), "int8") for scale in (0.1, 0.3))
    assert Xnnpack().convert(x, y)(torch.tensor([127.0, -128.0, -2.0])).tolist() == [42, -42, -1]


def test_quantize_multiplies_with_the_reciprocal() -> None:
    """45.5 / 7 is 6.5 and goes to 6; 45.5 * f32(1 / 7) is a little more."""
    grid = Encoding(np.float32(7), np.int64(0), "int8")
    assert Xnnpack().quantize(torch.tensor([45.5, 1e9, -1e9]), grid).tolist() == [7, 127, -128]


@pytest.mark.parametrize("symmetric", [True, False])
def test_products_of_activations(symmetric: bool) -> None:
    """XNNPACK takes them where the second factor's zero point is 0, and rounds once; else LiteRT's own kernel does,
    which rounds twice. 216 is where `f32(sa * sb)` and the product in double precision give different codes."""
    for seed in (101, 216, *range(4)):
        for scales in ("random", "tie"):
            net = lite_net("matmul_dynamic", Style("int8", symmetric=symmetric, scales=scales, seed=seed, batch=4))
            engine = LiteRT(model_to_tflite(net.model), graph=read_qdq(net.model))
            taken = read_qdq(net.model).grid_of("y").zero_point == 0
            assert [placed.why for placed in engine.explain()] == [
                "" if taken else "in LiteRT's own kernel, not XNNPACK's"
            ]
            assert differing(net, Xnnpack(), "xnnpack")[0] == 0
            assert differing(net, Ruy(), "builtin")[0] == 0
