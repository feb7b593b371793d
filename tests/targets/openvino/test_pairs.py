"""OpenVINO on CPUs without VNNI: which products are added in pairs that saturate, and that weights of 7 bits never do.

On a CPU with VNNI the engine is held to its kernels for AVX2, in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from detent.cpus import CPUS
from detent.ir import Encoding, Op, Operand
from detent.targets.openvino.arithmetic.cpu import limited_by_environment
from detent.targets.openvino.arithmetic.openvino import OpenVino
from detent.targets.openvino.arithmetic.pairs import saturated_in_pairs
from detent.twin import Twin
from detent.twin.accumulate import Accumulator
from tests.targets.openvino.proof import STYLES, UINT8
from tests.twin.builder import Builder, Style, T

GRID = Encoding(np.float32(1), np.int64(0), "uint8")
WEIGHT = Encoding(np.float32(1), np.int64(0), "int8")


def _sums(weights: Any, total: Callable[[torch.Tensor], torch.Tensor]) -> Accumulator:
    return Accumulator(Operand("x", GRID), WEIGHT, np.float32(1), np.array(weights, np.int64), (-1,), None, total)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([127, 127, 127], 32767 + 32385),
        ([-127, -127, 127], -32768 + 32385),
        ([127, -127, 127], 32385),
        ([1, 127, 127], 255 + 2 * 32385),
        ([64, 64, 64], 3 * 16320),
    ],
    ids=str,
)
def test_columns_0_and_1_are_neighbors_and_1_and_2_are_not(weights: list[int], expected: int) -> None:
    row = torch.tensor(weights, dtype=torch.float32)
    sums = saturated_in_pairs(_sums([weights], lambda x: (x @ row).unsqueeze(-1)), Op("MatMul", "m", (), ("y",)))
    assert sums(torch.full((1, 3), 255.0)).tolist() == [[expected]]


@pytest.mark.parametrize(("groups", "expected"), [(1, 4 * 32385), (2, 2 * 32767)], ids=["places-apart", "groups-of-1"])
def test_places_of_a_window_are_neighbors_in_odd_groups_only(groups: int, expected: int) -> None:
    """One channel in a group that gives two is multiplied as a matrix; a convolution without groups pads channels."""
    weights = torch.full((2 * groups, 1, 4), 127.0)
    op = Op("Conv", "c", (), ("y",), {"group": groups})
    sums = saturated_in_pairs(
        _sums(weights.numpy(), lambda x: torch.nn.functional.conv1d(x, weights, groups=groups)), op
    )
    assert sums(torch.full((1, groups, 4), 255.0)).unique().tolist() == [expected]


def _conv(channels: int, outputs: int, kernel: int, rank: int = 2, groups: int = 1, **attributes: Any) -> Any:
    shape, sides = (outputs, channels // groups, *[kernel] * rank), {"kernel_shape": [kernel] * rank, "group": groups}
    sides["pads"] = [kernel // 2] * 2 * rank
    return lambda b: b.weighted("Conv", b.input("x", 2, channels, *[6] * rank), shape, axis=0, **sides, **attributes)


def _transposed(channels: int, outputs: int, kernel: int, rank: int = 2, **attributes: Any) -> Any:
    shape, sides = (channels, outputs, *[kernel] * rank), {"kernel_shape": [kernel] * rank}
    return lambda b: b.weighted(
        "ConvTranspose", b.input("x", 2, channels, *[5] * rank), shape, axis=1, **sides, **attributes
    )


def _matrices(b: Builder) -> T:
    return b.quantized(b.float_op("MatMul", b.input("x", 2, 3, 8, 25), b.input("y", 2, 3, 25, 7)))


LAYERS: dict[str, Callable[[Builder], T]] = {
    "image": _conv(3, 8, 3),
    "odd": _conv(17, 9, 3, dilations=[2, 2]),
    "1x1": _conv(19, 21, 1),
    "1x1-strided": _conv(19, 21, 1, strides=[2, 2]),
    "1d": _conv(13, 9, 3, rank=1),
    "3d": _conv(5, 9, 3, rank=3),
    "groups-of-4": _conv(8, 8, 3, groups=2),
    "groups-of-16": _conv(32, 16, 3, groups=2),
    "groups-of-3": _conv(6, 6, 3, groups=2),
    "groups-1d": _conv(12, 8, 3, rank=1, groups=4),
    "groups-3d": _conv(8, 8, 3, rank=3, groups=2),
    "depthwise": _conv(13, 13, 5, groups=13),
    "depthwise-3d": _conv(6, 6, 3, rank=3, groups=6),
    "depth-multiplier": _conv(12, 24, 3, groups=12),
    "transposed": _transposed(9, 7, 4, strides=[2, 2], pads=[1] * 4),
    "transposed-padded": _transposed(16, 8, 3, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    "transposed-1d": _transposed(9, 7, 4, rank=1, strides=[2], pads=[1] * 2),
    "transposed-3d": _transposed(9, 7, 3, rank=3, strides=[2] * 3, pads=[1] * 6),
    "transposed-stride-4": _transposed(9, 7, 4, strides=[4, 4]),
    "linear": lambda b: b.weighted("Gemm", b.input("x", 5, 37), (9, 37), axis=0, transB=1),
    "linear-deep": lambda b: b.weighted("Gemm", b.input("x", 2, 1001), (5, 1001), axis=0, transB=1),
    "matmul": lambda b: b.weighted("MatMul", b.input("x", 2, 5, 31), (31, 19), axis=1),
    "matrices": _matrices,
}
NOT_BY_WEIGHTS = ["groups-3d", "depthwise-3d", "matrices"]
"""Where data is stored as int8: weights are halved, or the second factor is no weight."""


def _net(layer: str, style: dict[str, Any], **options: Any) -> Any:
    b = Builder(Style(seed=3, **style, **options))
    b.output(LAYERS[layer](b))
    return b.net()


def _equal_on_both(net: Any) -> bool:
    ours, theirs = (next(iter(Twin(net.model, OpenVino(cpu)).run(net.feeds).values())) for cpu in ("avx2", "vnni"))
    return np.array_equal(ours, theirs)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layer", LAYERS)
def test_weights_of_7_bits_give_the_same_on_every_cpu(layer: str, style: dict[str, Any]) -> None:
    same = style == UINT8 or layer not in NOT_BY_WEIGHTS
    assert _equal_on_both(_net(layer, style, weight_range=64)) is same


def test_products_of_two_activations_that_do_not_saturate_are_the_same_numbers_on_every_cpu() -> None:
    """As real numbers, which tell the sum of integers from a sum of real products."""
    b = Builder(Style(seed=3, activation="int8", symmetric=True))
    b.output(b.float_op("MatMul", b.input("x", 2, 3, 8, 25), b.input("y", 2, 3, 25, 7)))
    net = b.net()
    net.feeds["y"] *= 0.49
    assert _equal_on_both(net)


@pytest.mark.parametrize("layer", [name for name in LAYERS if name not in ("depthwise", "transposed-stride-4")])
def test_weights_of_8_bits_do_not(layer: str) -> None:
    assert not _equal_on_both(_net(layer, {"activation": "int8", "symmetric": True}))


@pytest.mark.pairwise(strength=1)
@pytest.mark.skipif(not OpenVino().cpu.saturates, reason="this CPU has VNNI: tested by the one below")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layer", LAYERS)
def test_equal_where_pairs_saturate(layer: str, style: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    from tests.targets.openvino.proof import distances

    assert not distances(_net(layer, style), tmp_path).any()


@pytest.mark.skipif(OpenVino().cpu.saturates, reason="this CPU has no VNNI: tested above")
def test_equal_where_pairs_saturate_on_a_cpu_with_vnni() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            __file__,
            "-k",
            "test_equal_where_pairs_saturate",
        ],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("cpu", "bound", "expected"),
    [
        ("vnni", "AVX2", "avx2"),
        ("amx", "avx512_core_fp16", "vnni"),
        ("amx", "AVX2_VNNI", "avx_vnni"),
        ("vnni", "AVX512_CORE", "avx512"),
        ("vnni", "DEFAULT", "vnni"),
        ("avx2", "AVX512_CORE_VNNI", "avx2"),
        ("arm64", "AVX2", "arm64"),
    ],
)
def test_the_environment_lessens_a_cpu(cpu: str, bound: str, expected: str) -> None:
    assert limited_by_environment(CPUS[cpu], {"ONEDNN_MAX_CPU_ISA": bound}).name == expected
    assert limited_by_environment(CPUS[cpu], {}).name == cpu
