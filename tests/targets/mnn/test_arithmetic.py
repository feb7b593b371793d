"""MNN's arithmetic in literal numbers; `tests/targets/mnn/test_engine.py` runs the engine next to it."""

from __future__ import annotations

import numpy as np
import torch

from detent.ir import Encoding, Network, Op, Operand, Output, Port
from detent.targets.mnn.arithmetic import Mnn
from detent.twin import Twin


def grid(scale: float) -> Encoding:
    return Encoding(np.array(scale, np.float32), np.array(0), "int8", qmin=-127)


def network(*ops: Op, constants: dict[str, np.ndarray], output: Operand, shape: tuple[int | str, ...]) -> Network:
    coded = frozenset(name for name, value in constants.items() if value.dtype == np.int64)
    return Network({"x": Port("float32", shape)}, (Output("y", output),), ops, constants, coded, {}, 21)


def test_codes_round_half_away_from_zero() -> None:
    values = torch.tensor([0.25, -0.25, 0.2499999, 0.75, 100.0])
    assert Mnn().quantize(values, grid(0.5)).tolist() == [1, -1, 0, 2, 127]


def test_a_depthwise_bias_is_cut_off_not_rounded() -> None:
    """Biases of 2.9 and -2.9 steps are 2 and -2: 3 becomes 5 and 1, where rounded ones give 6 and 0."""
    constants = {"w": np.ones((2, 1, 1, 1), np.int64), "b": np.array([2.9, -2.9], np.float32)}
    reads = (Operand("x", grid(1.0)), Operand("w", grid(1.0)), Operand("b"))
    conv = Op("Conv", "conv", reads, ("y",), {"group": 2, "kernel_shape": [1, 1]})
    graph = network(conv, constants=constants, output=Operand("y", grid(1.0)), shape=("batch", 2, 1, 1))
    given = Twin(graph, Mnn()).run({"x": np.full((1, 2, 1, 1), 3, np.float32)})["y"]
    assert given.ravel().tolist() == [5.0, 1.0]


def test_a_convolution_from_one_channel_to_one_is_a_depthwise_one() -> None:
    """A bias of 2.9 steps is 2."""
    constants = {"w": np.ones((1, 1, 1, 1), np.int64), "b": np.array([2.9], np.float32)}
    inputs = (Operand("x", grid(1.0)), Operand("w", grid(1.0)), Operand("b"))
    conv = Op("Conv", "conv", inputs, ("y",), {"kernel_shape": [1, 1]})
    graph = network(conv, constants=constants, output=Operand("y", grid(1.0)), shape=("batch", 1, 1, 1))
    given = Twin(graph, Mnn()).run({"x": np.full((1, 1, 1, 1), 3, np.float32)})["y"]
    assert given.ravel().tolist() == [5.0]


def test_an_average_is_rounded_down_with_a_reciprocal_of_24_bits() -> None:
    """Of 1, 1, 1, 0 it is 0; of -1, 0, 0, 0 it is -1; of nine 3s it is 2, for 9 * (2**24 // 9) is below 2**24."""
    conv = Op("Conv", "conv", (Operand("x", grid(1.0)), Operand("w", grid(1.0))), ("c",), {"kernel_shape": [1, 1]})
    pool = Op("AveragePool", "pool", (Operand("c", grid(1.0)),), ("y",), {"kernel_shape": [2, 2], "strides": [2, 2]})
    constants = {"w": np.ones((1, 1, 1, 1), np.int64)}
    graph = network(conv, pool, constants=constants, output=Operand("y", grid(1.0)), shape=("batch", 1, 2, 4))
    x = np.array([[1, 1, -1, 0], [1, 0, 0, 0]], np.float32).reshape(1, 1, 2, 4)
    assert Twin(graph, Mnn()).run({"x": x})["y"].ravel().tolist() == [0.0, -1.0]
    whole = Op("GlobalAveragePool", "pool", (Operand("c", grid(1.0)),), ("y",))
    graph = network(conv, whole, constants=constants, output=Operand("y", grid(1.0)), shape=("batch", 1, 3, 3))
    assert Twin(graph, Mnn()).run({"x": np.full((1, 1, 3, 3), 3, np.float32)})["y"].ravel().tolist() == [2.0]


def test_an_add_far_from_any_layer_is_computed_in_float() -> None:
    """MNN has no scale for x or for the sum, so 0.4 stays 0.4 until the output is put on its grid: 0.8 is 1, where
    rounding first gives 0."""
    op = Op("Add", "add", (Operand("x", grid(1.0)), Operand("x", grid(1.0))), ("y",))
    graph = network(op, constants={}, output=Operand("y", grid(1.0)), shape=("batch",))
    assert Twin(graph, Mnn()).run({"x": np.array([0.4], np.float32)})["y"].tolist() == [1.0]


def test_sums_are_scaled_twice() -> None:
    """First by the weight's scale, then by that of input over output, each rounded to float32: 10.5 less a unit of the
    last place is 10, where one product of both scales gives 10.5 and so 11."""
    sx, sw, sy = np.float32(0.061437685), np.float32(0.0038968245), np.float32(0.0021889086)
    code = 96
    constants = {"w": np.array([1, 0]).reshape(1, 2, 1, 1)}
    conv = Op("Conv", "conv", (Operand("x", grid(sx)), Operand("w", grid(sw))), ("y",), {"kernel_shape": [1, 1]})
    graph = network(conv, constants=constants, output=Operand("y", grid(sy)), shape=("batch", 2, 1, 1))
    lifted, shift = np.float32(code + 128), -np.float32(np.float32(sw * np.float32(128 * sx)) / sy)
    twice, once = np.float32(lifted * sw) * np.float32(sx / sy), lifted * np.float32(np.float32(sx / sy) * sw)
    assert (np.float32(twice + shift), np.float32(once + shift)) == (np.float32(10.499998), np.float32(10.5))
    given = Twin(graph, Mnn()).run({"x": np.full((1, 2, 1, 1), code * sx, np.float32)})["y"]
    assert np.rint(given / sy).item() == 10


def test_an_average_that_nobody_reads_on_its_grid_is_not_rounded() -> None:
    """0.75 stays what it is in the network."""
    conv = Op("Conv", "conv", (Operand("x", grid(1.0)), Operand("w", grid(1.0))), ("c",), {"kernel_shape": [1, 1]})
    pool = Op("GlobalAveragePool", "pool", (Operand("c", grid(1.0)),), ("y",))
    constants = {"w": np.ones((1, 1, 1, 1), np.int64)}
    graph = network(conv, pool, constants=constants, output=Operand("y"), shape=("batch", 1, 2, 2))
    x = np.array([1, 1, 1, 0], np.float32).reshape(1, 1, 2, 2)
    assert Twin(graph, Mnn()).run({"x": x})["y"].ravel().tolist() == [0.75]


def test_what_a_clip_leaves_of_codes_may_lie_between_two() -> None:
    """Unless MNN computes it within the convolution, which it does from 0 to 6: on a grid of 4, that is 8 then."""
    constants = {
        "w": np.ones((1, 1, 1, 1), np.int64),
        "zero": np.array(0, np.float32),
        **{f"{bound}": np.array(bound, np.float32) for bound in (6, 7)},
    }
    given = {}
    for bound in (6, 7):
        conv = Op("Conv", "conv", (Operand("x", grid(4.0)), Operand("w", grid(1.0))), ("c",), {"kernel_shape": [1, 1]})
        clip = Op("Clip", "clip", (Operand("c"), Operand("zero"), Operand(f"{bound}")), ("d",))
        double = Op("Add", "add", (Operand("d", grid(4.0)), Operand("zero")), ("y",))
        graph = network(conv, clip, double, constants=constants, output=Operand("y"), shape=("batch", 1, 1, 2))
        x = np.array([4.0, 40.0], np.float32).reshape(1, 1, 1, 2)
        given[bound] = Twin(graph, Mnn()).run({"x": x})["y"].ravel().tolist()
    assert given == {6: [4.0, 8.0], 7: [4.0, 7.0]}
