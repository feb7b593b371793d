"""The twin's LiteRT kernels against LiteRT's optimized kernels, code by code."""

from __future__ import annotations

import pytest

from detent.targets.litert.arithmetic.ruy import Ruy
from tests.targets.litert.nets import lite_net
from tests.targets.litert.proof import KINDS, STYLES, differing
from tests.twin.builder import Style
from tests.twin.nets import mobilenet, resnet18


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("kind", [*KINDS, "elu"])
def test_equals_the_engine(kind: str, style: Style) -> None:
    wrong, total = differing(lite_net(kind, style), Ruy(), "builtin")
    assert total > 0
    assert wrong == 0


@pytest.mark.parametrize("network", [mobilenet, resnet18])
def test_whole_networks(network) -> None:
    assert differing(network(Style(batch=1, scales="tie", seed=7), size=64), Ruy(), "builtin")[0] == 0


@pytest.mark.parametrize("kind", ["add", "concat", "conv_transpose", "gap", "residual"])
def test_what_is_left_over_of_vectors_rounds_otherwise(kind: str) -> None:
    """A batch of three images of odd channel counts leaves elements over."""
    for seed in range(3):
        assert differing(lite_net(kind, Style(scales="pot", batch=3, seed=seed)), Ruy(), "builtin")[0] == 0
