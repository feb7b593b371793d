"""Sums of pairs that saturate, kind by kind of layer, against torch's kernels; what 7 bits do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detent.ir import read_qdq
from detent.targets.arithmetics import ARITHMETICS
from detent.twin import Twin
from detent.twin.accumulate import accumulator
from detent.twin.saturating_pairs import saturate_pairs
from tests.targets.torch_native.nets import ONEDNN_IS_BOUNDED, differing
from tests.twin.builder import Array, Builder, Net, Style, T


class Skewed(Builder):
    """Most weights near one end, so that many pairs saturate."""

    def _weight_codes(self, shape: tuple[int, ...]) -> Array:
        most = self.style.weight_range
        large = self.random.integers(most // 2, most + 1, size=shape) * self.random.choice([-1, 1])
        return np.where(self.random.random(shape) < 0.8, large, super()._weight_codes(shape))


def _conv(b: Builder, inputs: int, outputs: int, *kernel: int, size: int = 9, **attributes: Any) -> T:
    x = b.input("x", b.style.batch, inputs, *[size] * len(kernel))
    shape = (outputs, inputs // attributes.get("group", 1), *kernel)
    return b.weighted("Conv", x, shape, axis=0, kernel_shape=list(kernel), **attributes)


def _transposed(b: Builder, inputs: int, outputs: int, *kernel: int, **attributes: Any) -> T:
    x = b.input("x", b.style.batch, inputs, 6, 7)
    return b.weighted("ConvTranspose", x, (inputs, outputs, *kernel), axis=1, kernel_shape=list(kernel), **attributes)


def _linear(b: Builder, inputs: int) -> T:
    return b.weighted("Gemm", b.input("x", 20, inputs), (33, inputs), axis=0, transB=1)


def _matmul(b: Builder) -> T:
    return b.weighted("MatMul", b.input("x", b.style.batch, 9, 31), (31, 18), axis=1)


KINDS: dict[str, Any] = {
    "conv, odd channels": lambda b: _conv(b, 5, 7, 3, 3, pads=[1] * 4),
    "conv, three channels, stride 2": lambda b: _conv(b, 3, 8, 7, 7, pads=[3] * 4, strides=[2, 2]),
    "conv, dilated": lambda b: _conv(b, 6, 8, 3, 2, pads=[2, 1] * 2, dilations=[2, 1]),
    "conv, more than a block of products": lambda b: _conv(b, 130, 6, 3, 3, size=5, pads=[1] * 4),
    "pointwise, odd channels": lambda b: _conv(b, 17, 9, 1, 1),
    "pointwise, groups of odd channels": lambda b: _conv(b, 21, 6, 1, 1, group=3),
    "2 channels a group": lambda b: _conv(b, 16, 16, 3, 3, pads=[1] * 4, group=8),
    "4 channels a group": lambda b: _conv(b, 32, 32, 3, 3, pads=[1] * 4, group=8),
    "8 channels a group, stride 2": lambda b: _conv(b, 64, 64, 3, 3, pads=[1] * 4, group=8, strides=[2, 2]),
    "16 channels a group": lambda b: _conv(b, 128, 128, 3, 3, pads=[1] * 4, group=8),
    "5 channels a group": lambda b: _conv(b, 15, 12, 3, 3, pads=[1] * 4, group=3),
    "depthwise, not in eights": lambda b: _conv(b, 13, 13, 3, 3, pads=[1] * 4, group=13),
    "depthwise, 2x3": lambda b: _conv(b, 16, 16, 2, 3, group=16),
    "conv 1d": lambda b: _conv(b, 7, 8, 5, size=31, pads=[2] * 2),
    "transposed": lambda b: _transposed(b, 5, 7, 3, 4, strides=[1, 2], pads=[1, 1] * 2),
    "transposed, gaps": lambda b: _transposed(b, 3, 8, 4, 3, strides=[2, 3], output_padding=[1, 2]),
    "transposed, dilated": lambda b: _transposed(b, 3, 8, 3, 3, dilations=[2, 1], pads=[3, 2] * 2),
    "transposed, groups": lambda b: _transposed(b, 15, 2, 3, 3, strides=[2, 1], group=3),
    "transposed, two rows": lambda b: _transposed(b, 16, 8, 2, 3, strides=[2, 2]),
    "linear, odd": lambda b: _linear(b, 65),
    "linear, more than a block of products": lambda b: _linear(b, 1030),
    "matmul": _matmul,
}


def net_of(kind: str, **style: Any) -> Net:
    """Transposed convolutions have kernels for one weight scale only."""
    builder = Skewed(Style(per_channel=not kind.startswith("transposed"), **style))
    builder.output(KINDS[kind](builder))
    return builder.net()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_is_equal(kind: str, tmp_path: Path) -> None:
    """On the CPU at hand. oneDNN, where it convolves, is equal for powers of two only."""
    for seed in range(2):
        for scales in ("tie", "pot"):
            assert not differing(net_of(kind, scales=scales, seed=seed), tmp_path, "fbgemm", ARITHMETICS["fbgemm"]())[0]
        if not ONEDNN_IS_BOUNDED:
            assert not differing(net_of(kind, scales="pot", seed=seed), tmp_path, "x86", ARITHMETICS["onednn"]())[0]


@pytest.mark.parametrize("kind", KINDS)
def test_seven_bits_are_the_same_on_every_cpu(kind: str) -> None:
    """64 twice, and an activation of 255, are 32640; 8 bits are not the same, so these nets do saturate."""
    assert not _alike(net_of(kind, scales="pot"), "fbgemm")
    assert _alike(net_of(kind, scales="pot", weight_range=64), "fbgemm")


def test_engine_x86_rounds_ties_otherwise_with_vnni() -> None:
    """oneDNN convolves there: by default Detent runs FBGEMM."""
    assert not _alike(net_of("4 channels a group", scales="pot", weight_range=64), "onednn")


def _alike(net: Net, arithmetic: str) -> bool:
    outputs = [Twin(net.model, ARITHMETICS[arithmetic](cpu)).run(net.feeds) for cpu in ("avx2", "vnni")]
    return all(np.array_equal(value, outputs[1][name]) for name, value in outputs[0].items())


def test_pairs_are_neighbors_and_the_last_stays_alone() -> None:
    """255 * (127 + 127) saturates at 32767, twice that of negative weights at -32768; the fifth product does not."""
    builder = Builder(Style(per_channel=False, bias="none"))
    x = builder.input("x", 1, 5)
    builder.output(builder.weighted("Gemm", x, (2, 5), axis=0, transB=1))
    model = builder.net().model
    for each in model.graph.initializer:
        if each.name.endswith("weight_quantized"):
            each.raw_data = np.array([[127, 127, 1, -1, 127], [-127, 1, -127, -127, -127]], np.int8).tobytes()
    graph = read_qdq(model)
    op = next(op for op in graph.ops if op.type == "Gemm")
    sums = accumulator(graph, op)
    assert sums is not None
    zero_point = int(sums.input.zero_point)
    found = saturate_pairs(sums, op)(torch.full((1, 5), 255.0))
    raw = found + zero_point * torch.from_numpy(sums.weights.sum(1))
    assert raw.tolist() == [[32767 + 0 + 255 * 127, -255 * 126 - 32768 - 255 * 127]]


def test_sums_that_cannot_saturate_are_left_as_they_are() -> None:
    graph = read_qdq(net_of("conv, odd channels", weight_range=64).model)
    op = next(op for op in graph.ops if op.type == "Conv")
    sums = accumulator(graph, op)
    assert sums is not None
    assert saturate_pairs(sums, op) is sums
