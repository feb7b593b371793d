"""Padding along one axis, which OpenVINO writes as codes that stand for other numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import detent
from detent.ir import Network
from detent.targets.rewrites import legalize
from tests.rewrites.quantized_op import Writing, X, run, types

REWRITE = ("barrier_before_pad",)


def network(
    size: tuple[int, int], pads: list[int], value: float | None = None, *, mode: str = "constant", zero_point: int = 117
) -> Network:
    """`pads` of rows and columns: before, and behind."""
    w = Writing()
    held = [w.constant("pads", np.array(pads)), w.constant("value", np.float32(value or 0))]
    axes = w.constant("axes", np.array([-2, 3]))
    w.node("Pad", [w.on_grid(*X[:2], zero_point), *held, axes], "y", mode=mode)
    return w.network(("n", 3, *size), w.on_grid("y", X[1], zero_point))


@pytest.mark.parametrize(
    "model",
    [network((4, 1), [0, 1, 0, 1]), network((4, 5), [0, 0, 2, 0], 0.4), network((4, 5), [0, 2, 0, 1], -2.5)],
    ids=["one column", "a number below the rows", "a number beside the columns"],
)
def test_onnx_means_the_same_by_it(model: Network) -> None:
    after = legalize(model, REWRITE)
    assert types(after) == ["Max", "Pad"]
    x = np.random.default_rng(1).normal(0, 4, (2, *model.inputs["x"].shape[1:])).astype(np.float32)
    np.testing.assert_array_equal(run(after, x), run(model, x))


@pytest.mark.parametrize(
    "model",
    [
        network((4, 5), [0, 1, 0, 1]),
        network((4, 1), [1, 1, 1, 1]),
        network((4, 5), [1, 1, 0, 0], 0.4),
        network((4, 1), [0, 1, 0, 1], zero_point=0),
        network((4, 5), [0, 1, 0, 1], 0.4, mode="edge"),
    ],
    ids=["zeros beside several columns", "zeros on two axes", "a number on two axes", "no zero point", "no number"],
)
def test_left_alone(model: Network) -> None:
    assert legalize(model, REWRITE) is model


class Padded(nn.Module):
    def __init__(self, pads: tuple[int, ...], value: float):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)
        self.pads, self.value = pads, value

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.pad(self.first(x), self.pads, value=self.value))


@pytest.mark.parametrize(
    ("size", "pads", "value"), [((5, 1), (1, 1), 0.0), ((5, 5), (1, 1), 0.4)], ids=["one column", "a number"]
)
def test_the_engine_gives_what_was_simulated(
    size: tuple[int, int], pads: tuple[int, ...], value: float, tmp_path: Path
) -> None:
    """Without it, 240 of 360 outputs are up to 83 % of the largest off, and 240 of 840 up to 19 %."""
    pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")
    torch.manual_seed(0)
    inputs = [(torch.randn(2, 3, *size),) for _ in range(3)]
    recipe = detent.Recipe.from_dict({"name": "affine", "activation": {"symmetric": False, "signed": False}})
    prepared = detent.prepare(Padded(pads, value).eval(), inputs[0], backend="openvino", recipe=recipe)
    detent.calibrate(prepared, inputs)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(inputs, latency=False)
    assert verdict.holds, verdict
    assert all(difference.equal for difference in verdict.outputs if difference.what == "twin vs engine")
