"""oneDNN's convolutions, as torch's engine "x86" uses them: equal for powers of two, nearly so for other scales."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent.targets.torch_native.arithmetic.fbgemm import Fbgemm
from detent.targets.torch_native.arithmetic.onednn import Onednn
from tests.targets.torch_native.nets import ONEDNN_IS_BOUNDED, differing, net_of
from tests.twin.nets import Style

KINDS = ["conv", "conv_relu", "conv_1x1", "conv_grouped", "depthwise", "gemm", "matmul", "add", "residual"]


unbounded = pytest.mark.skipif(ONEDNN_IS_BOUNDED, reason="ONEDNN_MAX_CPU_ISA takes VNNI from oneDNN alone")


@unbounded
@pytest.mark.parametrize("kind", KINDS)
def test_powers_of_two_are_equal(kind: str, tmp_path: Path) -> None:
    for seed in range(3):
        assert not differing(net_of(kind, Style(scales="pot", seed=seed)), tmp_path, "x86", Onednn())[0]


@unbounded
@pytest.mark.parametrize("kind", KINDS[:-1])
def test_few_others_differ(kind: str, tmp_path: Path) -> None:
    """The claim is 1 in 10,000 on ties; 3 nets of 5,000 to 36,000 outputs leave room for chance."""
    wrong = total = 0
    for seed in range(3):
        differ, count = differing(net_of(kind, Style(scales="tie", seed=seed)), tmp_path, "x86", Onednn())
        wrong, total = wrong + sum(differ.values()), total + count
    assert wrong <= total * 4e-4


def test_without_vnni_it_is_fbgemm() -> None:
    assert Onednn("avx2").claim == Fbgemm.claim
    assert Onednn("vnni").claim.startswith("within 1 LSB")
