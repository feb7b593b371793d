"""FBGEMM's arithmetic equals torch's kernels integer for integer, every tensor of every net."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from detent.ir import Encoding
from detent.targets.torch_native.arithmetic.fbgemm import Fbgemm
from detent.targets.torch_native.arithmetic.kernels import last_in_memory
from detent.targets.torch_native.arithmetic.qnnpack import Qnnpack
from tests.targets.torch_native.nets import TORCH, differing, net_of
from tests.twin.nets import SMALL, Style, mobilenet, resnet18

SCALES = ("random", "tie", "pot")


@pytest.mark.parametrize("kind", [*SMALL, *TORCH])
def test_operations(kind: str, tmp_path: Path) -> None:
    for scales in SCALES:
        wrong, count = differing(net_of(kind, Style(scales=scales)), tmp_path, "fbgemm", Fbgemm())
        assert count > 500
        assert not wrong, scales


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("kind", ["conv", "conv_1x1", "conv_grouped", "gemm", "depthwise", "conv_transpose", "matmul"])
@pytest.mark.parametrize("bias", ["int32", "float", "none"])
def test_one_weight_scale(kind: str, bias: str, tmp_path: Path) -> None:
    """Then the bias is multiplied with a reciprocal, not divided: it shows on ties only."""
    for seed in range(4):
        style = Style(scales="tie", per_channel=False, bias=bias, seed=seed)  # type: ignore[arg-type]
        assert not differing(net_of(kind, style), tmp_path, "fbgemm", Fbgemm())[0]


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("network", [resnet18, mobilenet], ids=["resnet18", "mobilenet"])
@pytest.mark.parametrize("scales", SCALES)
def test_whole_networks(network: object, scales: str, tmp_path: Path) -> None:
    net = network(Style(scales=scales, batch=1), size=64)  # type: ignore[operator]
    wrong, count = differing(net, tmp_path, "fbgemm", Fbgemm())
    assert count > 50_000
    assert not wrong


def test_depthwise_pairs_saturate(tmp_path: Path) -> None:
    """Against QNNPACK's arithmetic, whose sums are exact, one output of ten is wrong; with 7 bit weights none is."""
    net = net_of("depthwise", Style(seed=1))
    wrong, _ = differing(net, tmp_path, "fbgemm", Qnnpack())
    assert sum(wrong.values()) > 200
    narrow = net_of("depthwise", Style(seed=1, weight_range=63))
    assert not differing(narrow, tmp_path, "fbgemm", Fbgemm())[0]
    assert sum(differing(narrow, tmp_path, "fbgemm", Qnnpack())[0].values()) < 5


def test_quantizes_with_the_zero_point_inside() -> None:
    """0.5 and 1.5 steps, zero point 1: 1.5 and 2.5 go to 2, where ONNX gives 1 and 3."""
    grid = Encoding(np.float32(0.5), np.int64(1), "uint8")
    assert Fbgemm().quantize(torch.tensor([0.25, 0.75]), grid).tolist() == [2, 2]
    assert grid.quantize(np.array([0.25, 0.75])).tolist() == [1, 3]


@pytest.mark.parametrize(("shape", "count"), [((2, 8, 4, 4), 0), ((1, 5, 7, 7), 53), ((3, 30), 26)])
def test_what_is_left_of_blocks(shape: tuple[int, ...], count: int) -> None:
    rest = last_in_memory(shape, 64)
    assert (0 if rest is None else len(rest[0])) == count


def test_avx2_has_the_blocks_of_avx512_but_for_average_pools() -> None:
    """29 channels are three blocks of 8, or one of 16: AVX-512 rounds eight more one by one."""
    short, long = Fbgemm("avx2"), Fbgemm("vnni")
    sums = torch.arange(29 * 49, dtype=torch.float32).reshape(1, 29, 7, 7)
    grid, out = Encoding(np.float32(0.5), np.int64(1), "uint8"), Encoding(np.float32(1), np.int64(1), "uint8")
    differ = short._averaged(sums, 4, grid, whole=False) != long._averaged(sums, 4, grid, whole=False)
    assert set(differ.nonzero()[:, 1].tolist()) == set(range(16, 24))
    x = sums.remainder(256)
    assert torch.equal(short._added([grid, grid], out)(x, x * 0), long._added([grid, grid], out)(x, x * 0))
