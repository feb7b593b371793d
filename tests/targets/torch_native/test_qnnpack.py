"""QNNPACK's arithmetic equals torch's kernels integer for integer, every tensor of every net."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from detent.ir import Encoding
from detent.targets.torch_native.arithmetic.qnnpack import Qnnpack
from tests.targets.torch_native.nets import TORCH, differing, net_of
from tests.twin.nets import SMALL, Style, mobilenet, resnet18

SCALES = ("random", "tie", "pot")


@pytest.mark.parametrize("kind", [*SMALL, *TORCH])
def test_operations(kind: str, tmp_path: Path) -> None:
    for scales in SCALES:
        wrong, count = differing(net_of(kind, Style(scales=scales)), tmp_path, "qnnpack", Qnnpack())
        assert count > 500
        assert not wrong, scales


@pytest.mark.parametrize("kind", ["conv", "gemm", "depthwise", "conv_transpose"])
def test_one_weight_scale(kind: str, tmp_path: Path) -> None:
    for bias in ("int32", "float", "none"):
        style = Style(scales="tie", per_channel=False, bias=bias, seed=3)  # type: ignore[arg-type]
        assert not differing(net_of(kind, style), tmp_path, "qnnpack", Qnnpack())[0]


@pytest.mark.by_default("tie")
@pytest.mark.parametrize("scales", SCALES)
def test_whole_networks(scales: str, tmp_path: Path) -> None:
    style = Style(scales=scales, batch=1)
    for net in (resnet18(style, size=32), mobilenet(style, size=64)):
        assert not differing(net, tmp_path, "qnnpack", Qnnpack())[0]


def test_an_addition_rounds_halves_away_from_zero() -> None:
    """Codes -3, -1, 1, 3 at half the output's scale: 1.5 away from zero is 2."""
    half, one = Encoding(np.float32(0.5), np.int64(8), "uint8"), Encoding(np.float32(1), np.int64(8), "uint8")
    x = torch.tensor([5.0, 7.0, 9.0, 11.0])
    assert Qnnpack()._added([half, half], one)(x, torch.full((4,), 8.0)).tolist() == [6, 7, 9, 10]
