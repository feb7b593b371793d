"""The twin's reference kernels against LiteRT's, code by code."""

from __future__ import annotations

import pytest
import torch

from detent.ir import Encoding
from detent.targets.litert.arithmetic.reference import TfliteReference
from tests.targets.litert.nets import lite_net
from tests.targets.litert.proof import KINDS, STYLES, differing
from tests.twin.builder import Style
from tests.twin.nets import mobilenet, resnet18


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in [*KINDS, "matmul_dynamic"] if kind != "pixel_shuffle"])
def test_equals_the_engine(kind: str, style: Style) -> None:
    wrong, total = differing(lite_net(kind, style), TfliteReference(), "reference")
    assert total > 0
    assert wrong == 0


@pytest.mark.parametrize("network", [mobilenet, resnet18])
def test_whole_networks(network) -> None:
    assert differing(network(Style(batch=1, scales="tie", seed=7), size=64), TfliteReference(), "reference")[0] == 0


def test_quantize_rounds_half_away() -> None:
    grid = Encoding(0.5, 3, "uint8")
    given = torch.tensor([0.25, -0.25, 0.75, -9.0, 1000.0])
    assert TfliteReference().quantize(given, grid).tolist() == [4, 2, 5, 0, 255]
