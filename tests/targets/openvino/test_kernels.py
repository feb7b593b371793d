"""Where OpenVINO's kernels round, one kind of kernel at a time, on nets of ties: all codes are equal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.ir import Encoding
from detent.targets.openvino.arithmetic.openvino import OpenVino
from detent.targets.openvino.arithmetic.ranges import Range
from detent.twin import Twin
from tests.models import MODELS
from tests.targets.openvino.proof import STYLES, UINT8, distances
from tests.twin.nets import Builder, Style, T, conv

pytest.importorskip("openvino", reason="pip install 'detent[openvino]'")


@pytest.mark.pairwise
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("bias", ["int32", "none"])
@pytest.mark.parametrize(("kind", "sizes"), [("Gemm", (40,)), ("MatMul", (3, 20)), ("MatMul", (2, 3, 10))], ids=str)
def test_linear_layers(kind, sizes, bias, style, tmp_path):
    """On matrices, on three and on four dimensions they are three ways of computing. Seed 3 has a zero point that is
    114.99999 as a float32 number of steps, which its sums show."""
    for seed, then in ((3, None), (4, "Relu"), (5, None)):
        b = Builder(Style(scales="tie", seed=seed, bias=bias, **style))
        b.output(b.weighted(kind, b.input("x", *sizes, 24), (24, 6), axis=1, then=then))
        assert not distances(b.net(), tmp_path).any()


def test_a_product_with_a_constant_behind_a_bias_that_a_kernel_of_its_own_adds(tmp_path):
    """Powers of two, but for the constant."""
    for seed in range(4):
        b = Builder(Style(activation="int8", symmetric=True, scales="pot", seed=seed))
        made = b.weighted("MatMul", b.input("x", 4, 1, 6, 1), (1, 18), axis=1)
        scaled = b.float_op("Mul", made, "factor", constants={"factor": np.array(0.875, np.float32)})
        b.output(b.quantized(b.float_op("AveragePool", b.quantized(scaled), kernel_shape=[2, 3], strides=[2, 1])))
        net = b.net()
        assert [op.type for op in Twin(net.model, OpenVino()).steps[1].ops] == ["MatMul", "Add"]
        assert not distances(net, tmp_path).any()


def test_an_average_on_its_own_grid_keeps_a_shift_that_is_next_to_nothing(tmp_path):
    """Range and steps of these codes are 8e-6 apart, which decides every tie; a convolution would drop it."""
    b = Builder(Style(scales="random", seed=0))
    x = b.input("x", 4, 8, 8, 8)
    held = b.on_grid(b.float_op("Relu", x).name, x.value.relu(), np.float32(0.11336253), 114)
    made = b.float_op("AveragePool", held, kernel_shape=[2, 2])
    b.output(b.on_grid(made.name, made.value, np.float32(0.11336253), 114))
    grid = Range.of(Encoding(np.float32(0.11336253), np.int64(114), "uint8"))
    assert 0 < abs(grid.shift - 114) < 1e-5
    assert not distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("style", STYLES)
def test_an_average_in_ceil_mode_is_one_of_real_numbers(style, tmp_path):
    for seed in range(3):
        b = Builder(Style(scales="tie", seed=seed, **style))
        x = conv(b, b.input("x", 2, 8, 9, 9), 8)
        pool = b.float_op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1)
        b.output(b.quantized(pool, like=x))
        net = b.net()
        (ran,) = [step for step in Twin(net.model, OpenVino()).steps if step.ops and step.ops[0].type == "AveragePool"]
        assert ran.ran_as == "float"
        assert not distances(net, tmp_path).any()


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", [*STYLES, pytest.param({"activation": "int8"}, id="int8")])
@pytest.mark.parametrize("kind", ["Sub", "Mul"])
def test_differences_and_products_of_two_activations(kind, style, tmp_path):
    """The plugin computes them on codes, not on real numbers."""
    for seed in range(4):
        b = Builder(Style(scales="tie", seed=seed, **style))
        x = b.input("x", 2, 8, 6, 12)
        y = b.input("y", 2, 8, 6, 12, spread=float(x.scale) * 3)
        made, relu = b.float_op(kind, x, y), seed % 2 == 1
        unit = float(x.scale) * (float(y.scale) if kind == "Mul" else 1)
        b.output(b.quantized(b.activation("Relu", made) if relu else made, relu=relu, unit=unit))
        assert not distances(b.net(), tmp_path).any()


def clipped_difference(b: Builder) -> T:
    """y less a convolution that is clipped: the convolution is subtracted in its own steps, and y brought to them."""
    y, made = b.input("y", 2, 8, 6, 6), conv(b, b.input("x", 2, 8, 6, 6), 8, grid=False)
    bounds = {"low": np.array(-1.03, np.float32), "high": np.array(2.53, np.float32)}
    held = b.quantized(b.float_op("Clip", made, "low", "high", constants=bounds))
    return b.float_op("Sub", y, held)


def joined_sum(b: Builder) -> T:
    """What is joined of unequal grids, and y: y has a grid of its own, and is brought to the steps of the other."""
    a, c = b.input("a", 2, 4, 6, 6), b.input("c", 2, 4, 6, 6, spread=0.031)
    made = b.float_op("Concat", a, c, axis=1)
    held = b.on_grid(made.name, made.value, np.float32(0.043), 0 if b.style.symmetric else 117)
    return b.float_op("Add", held, b.input("y", 2, 8, 6, 6))


def sum_with_what_is_given(b: Builder) -> T:
    """A summand that the network gives has two readers: y is brought to its steps."""
    y, made = b.input("y", 2, 8, 6, 6), conv(b, b.input("x", 2, 8, 6, 6), 8, then="Relu")
    b.output(made)
    return b.float_op("Add", y, made)


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("net", [clipped_difference, joined_sum, sum_with_what_is_given])
def test_which_summand_is_moved(net, style, tmp_path):
    for seed in range(3):
        b = Builder(Style(scales="tie", seed=seed, **style))
        b.output(b.quantized(net(b)))
        assert not distances(b.net(), tmp_path).any()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["Sigmoid", "Elu", "HardSigmoid"])
def test_a_function_behind_a_convolution(kind, style, tmp_path):
    """The grid between them gives real numbers, and the last one is rounded as a convolution does: a sigmoid of 0 is a
    tie of 255 steps, and falls to 127 where its codes are moved on, to 128 where they are given. HardSigmoid has a
    kernel of its own."""
    for seed, moved in ((0, False), (1, True)):
        b = Builder(Style(scales="tie", seed=seed, **style))
        made = b.quantized(b.float_op(kind, conv(b, b.input("x", 2, 8, 6, 6), 8, then="Relu")), relu=kind != "Elu")
        if moved:
            made = b.quantized(b.float_op("Transpose", made, perm=[0, 1, 3, 2]), like=made)
        b.output(made)
        assert not distances(b.net(), tmp_path).any()


def test_what_a_convolution_and_a_product_of_activations_read_stays_float(tmp_path):
    """One takes uint8 alone, the other int8 as its second factor; so the convolution is rounded before the sum."""
    b = Builder(Style(scales="pot", seed=2, **UINT8))
    x, y = b.input("x", 2, 8, 6, 6), b.input("y", 2, 8, 6, 6)
    b.output(b.quantized(b.float_op("MatMul", x, b.float_op("Transpose", x, perm=[0, 1, 3, 2]))))
    b.output(b.quantized(b.float_op("Add", conv(b, x, 8, 1), y)))
    net = b.net()
    assert not any(
        step.ran_as == "integer" and step.ops[0].type == "Conv" for step in Twin(net.model, OpenVino()).steps
    )
    assert not distances(net, tmp_path).any()


@pytest.mark.by_default("pact")
@pytest.mark.parametrize("recipe", ["pact", "qil", "dorefa"])
def test_grids_that_use_fewer_codes(recipe, tmp_path):
    """These clip the image at -127 and 127 steps. Up to 37 steps were off where the range said so, and no Clip."""
    torch.manual_seed(0)
    network = MODELS["mobile_cnn"].build().eval()
    batches = [MODELS["mobile_cnn"].inputs() for _ in range(2)]
    prepared = detent.prepare(network, batches[0], backend="openvino", recipe=recipe)
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches[:1], latency=False)
    assert verdict.holds, verdict
    assert all(difference.equal for difference in verdict.outputs), verdict


class ClippedBranch(nn.Module):
    """conv, what clips it, add."""

    def __init__(self, clip: nn.Module):
        super().__init__()
        self.first, self.branch, self.side, self.last = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.clip, self.drop = clip, nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return self.last(self.drop(self.clip(self.branch(x))) + self.side(x))


@pytest.mark.parametrize("clip", [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.Identity()], ids=str)
def test_simulation_twin_and_engine_are_equal_where_a_convolution_is_clipped_before_a_sum(clip, tmp_path):
    """With a grid before the sum, which the engine does not round to, 7 % of the sums were one step off."""
    torch.manual_seed(0)
    network = ClippedBranch(clip).eval()
    batches = [(torch.randn(2, 4, 12, 12),) for _ in range(2)]
    prepared = detent.prepare(network, batches[0], backend="openvino")
    detent.calibrate(prepared, batches)
    verdict = detent.deploy(prepared, tmp_path / "out").verify(batches, latency=False)
    assert all(difference.equal for difference in verdict.outputs), verdict
