"""Where MNN's scales go, in networks of a few operations; `tests/targets/mnn/test_engine.py` asks the engine."""

from __future__ import annotations

import numpy as np

from detent.ir import Encoding, Network, Op, Operand, Output, Port
from detent.targets.mnn.scales import MnnScales


def grid(scale: float) -> Encoding:
    return Encoding(np.array(scale, np.float32), np.array(0), "int8", qmin=-127)


def conv(read: Operand, output: str) -> Op:
    return Op("Conv", output, (read, Operand("w", grid(1.0))), (output,), {"kernel_shape": [1, 1]})


def network(*ops: Op, output: Operand) -> MnnScales:
    constants = {"w": np.ones((1, 1, 1, 1), np.int64), "two": np.array(2, np.float32)}
    shape = ("batch", 1, 4, 4)
    graph = Network({"x": Port("float32", shape)}, (Output("y", output),), ops, constants, frozenset({"w"}), {}, 21)
    return MnnScales(graph)


def scales(found: MnnScales) -> dict[str, float]:
    return {name: float(encoding.scale) for name, encoding in found.grids.items()}


def test_layers_have_scales_and_hand_them_on_through_what_moves_numbers() -> None:
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("AveragePool", "b", (Operand("a", grid(0.25)),), ("b",), {"kernel_shape": [2, 2]}),
        Op("Sigmoid", "c", (Operand("b", grid(0.25)),), ("c",)),
        output=Operand("c"),
    )
    assert scales(found) == {"x": 0.5, "a": 0.25, "b": 0.25}
    assert set(found.on_integers) == {"a", "b"}
    assert found.missing(found.units[2]) == ["c"]


def test_a_max_pool_is_on_codes_if_none_is_negative() -> None:
    for function, on_codes in (("Relu", True), ("Tanh", False)):
        found = network(
            conv(Operand("x", grid(0.5)), "a"),
            Op(function, "b", (Operand("a"),), ("b",)),
            Op("MaxPool", "c", (Operand("b", grid(0.25)),), ("c",), {"kernel_shape": [2, 2]}),
            conv(Operand("c", grid(0.25)), "d"),
            output=Operand("d", grid(1.0)),
        )
        assert ("c" in found.on_integers) == on_codes
        assert found.never_on_codes == (set() if on_codes else {"c"})


def test_windows_need_equal_scales_and_a_resize_between_others_is_kept_from_codes() -> None:
    """MNN would copy the codes of the one grid to the other."""
    for kind, scale, on_codes, never in (
        ("AveragePool", 0.25, True, False),
        ("AveragePool", 0.5, False, False),
        ("Resize", 0.25, True, False),
        ("Resize", 0.5, False, True),
    ):
        found = network(
            conv(Operand("x", grid(0.5)), "a"),
            Op(kind, "b", (Operand("a", grid(0.25)),), ("b",), {"kernel_shape": [2, 2]}),
            conv(Operand("b", grid(scale)), "c"),
            output=Operand("c", grid(1.0)),
        )
        assert ("b" in found.on_integers, "b" in found.never_on_codes) == (on_codes, never)


def test_a_clip_hands_scales_on_and_has_no_kernel() -> None:
    """So the sum before it is on the grid of what the clip goes into."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Add", "b", (Operand("a", grid(0.25)), Operand("a", grid(0.25))), ("b",)),
        Op("Clip", "c", (Operand("b"), Operand("two"), Operand("two")), ("c",)),
        conv(Operand("c", grid(2.0)), "d"),
        output=Operand("d", grid(1.0)),
    )
    assert scales(found)["b"] == 2.0
    assert "b" in found.on_integers
    assert "c" not in found.on_integers


def test_a_sum_before_a_concatenation_has_the_scale_of_what_reads_that() -> None:
    """Whatever grid the network has for the sum."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Add", "b", (Operand("a", grid(0.25)), Operand("a", grid(0.25))), ("b",)),
        Op("Concat", "c", (Operand("b", grid(0.125)), Operand("a", grid(0.25))), ("c",), {"axis": 1}),
        conv(Operand("c", grid(2.0)), "d"),
        output=Operand("d", grid(1.0)),
    )
    assert scales(found)["b"] == 2.0
    assert "b" in found.on_integers
    assert "c" not in found.on_integers  # `a` has a scale of its own: the parts are joined in float


def test_a_function_runs_with_the_layer_before_it() -> None:
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Relu", "b", (Operand("a"),), ("b",)),
        conv(Operand("b", grid(0.25)), "c"),
        output=Operand("c", grid(1.0)),
    )
    assert [[op.name for op in unit.ops] for unit in found.units] == [["a", "b"], ["c"]]
    assert scales(found) == {"x": 0.5, "b": 0.25, "c": 1.0}


def test_a_constant_has_no_scale() -> None:
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Mul", "b", (Operand("a", grid(0.25)), Operand("two")), ("b",)),
        conv(Operand("b", grid(2.0)), "c"),
        output=Operand("c", grid(1.0)),
    )
    assert set(found.on_integers) == {"a", "c"}
    assert found.missing(found.units[1]) == ["two"]


def test_codes_that_several_read_in_float_are_made_real_once() -> None:
    """Layers read the codes as before."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Sigmoid", "b", (Operand("a", grid(0.25)),), ("b",)),
        Op("Tanh", "c", (Operand("a", grid(0.25)),), ("c",)),
        conv(Operand("a", grid(0.25)), "d"),
        Op("Mul", "e", (Operand("b"), Operand("c")), ("e",)),
        output=Operand("d", grid(1.0)),
    )
    assert found.casts.readers == {"a": {"b", "c"}}
    assert scales(found) == {"x": 0.5, "a": 0.25, "d": 1.0}
    assert set(found.on_integers) == {"a", "d"}


def test_one_reader_in_float_needs_no_cast_of_its_own() -> None:
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Sigmoid", "b", (Operand("a", grid(0.25)),), ("b",)),
        conv(Operand("a", grid(0.25)), "d"),
        output=Operand("d", grid(1.0)),
    )
    assert found.casts.readers == {}
    assert set(found.on_integers) == {"a", "d"}


def leaky(read: Operand, output: str) -> Op:
    return Op("LeakyRelu", output, (read,), (output,), {"alpha": 0.01})


def test_a_sum_is_in_float_if_its_scale_would_be_that_of_other_numbers() -> None:
    """A leaky ReLU makes large negative numbers small: on the grid of those the sum before it would be cut off. A clip
    cuts off too."""
    for function, on_codes in (("LeakyRelu", False), ("Clip", True)):
        found = network(
            conv(Operand("x", grid(0.5)), "a"),
            Op("Add", "b", (Operand("a", grid(0.25)), Operand("a", grid(0.25))), ("b",)),
            Op(function, "c", (Operand("b", grid(8.0) if function == "LeakyRelu" else None),), ("c",)),
            conv(Operand("c", grid(2.0)), "d"),
            output=Operand("d", grid(1.0)),
        )
        assert ("b" in found.on_integers) == on_codes
        assert ("b" in found.never_on_codes) != on_codes


def test_an_average_is_in_float_if_what_it_reads_would_be_on_its_grid() -> None:
    """Averages are smaller than what they are taken of."""
    for scale, on_codes in ((0.25, False), (None, False), (0.125, True)):
        read = Operand("b", None if scale is None else grid(scale))
        found = network(
            conv(Operand("x", grid(0.5)), "a"),
            Op("Sigmoid", "b", (Operand("a", grid(0.25)),), ("b",)),
            Op("AveragePool", "c", (read,), ("c",), {"kernel_shape": [2, 2]}),
            conv(Operand("c", grid(0.125)), "d"),
            output=Operand("d", grid(1.0)),
        )
        assert ("c" in found.on_integers) == on_codes


def test_moves_one_behind_the_other_hold_no_scale_up() -> None:
    """`b` has two readers, but MNN goes from it to `d` and `f` at once, which have a scale: that goes back to `b`."""
    moves = [
        Op(kind, output, (Operand(read, grid(2.0)),), (output,))
        for kind, read, output in (
            ("Reshape", "b", "c"),
            ("Transpose", "c", "d"),
            ("Slice", "b", "e"),
            ("Pad", "e", "f"),
        )
    ]
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Add", "b", (Operand("a", grid(0.25)), Operand("a", grid(0.25))), ("b",)),
        *moves,
        conv(Operand("d", grid(2.0)), "g"),
        conv(Operand("f", grid(2.0)), "h"),
        Op("Concat", "i", (Operand("g", grid(1.0)), Operand("h", grid(1.0))), ("i",), {"axis": 1}),
        output=Operand("i", grid(1.0)),
    )
    assert found.between_moves == {"c", "e"}
    assert scales(found)["b"] == 2.0
    assert "b" in found.on_integers


def test_real_numbers_that_somebody_wants_do_not_have_the_scale_of_a_layer() -> None:
    """MNN would round them where it changes their layout: the layer reads a tensor of its own."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Sigmoid", "b", (Operand("a", grid(0.25)),), ("b",)),
        conv(Operand("b", grid(0.125)), "c"),
        Op("Softmax", "d", (Operand("b"),), ("d",)),
        Op("Add", "e", (Operand("c", grid(1.0)), Operand("d")), ("e",)),
        output=Operand("e"),
    )
    assert found.casts.readers == {"b": {"c"}}
    assert "b" not in scales(found)
    assert scales(found)["b.real"] == 0.125
    assert "c" in found.on_integers


def test_a_scale_that_comes_through_a_leaky_relu_ends_before_it_if_the_numbers_are_given_out() -> None:
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        leaky(Operand("a", grid(0.25)), "b"),
        Op("Identity", "y", (Operand("b"),), ("y",)),
        output=Operand("y"),
    )
    assert found.casts.readers == {"a": {"b"}}
    assert scales(found) == {"x": 0.5, "a": 0.25}


def test_scales_go_on_from_where_they_are_when_sizes_change() -> None:
    """At first `b` has two readers without a scale, so that none comes back to it. By the second time `c` has one, that
    goes back to `b` and on to the average: it is kept from codes at once."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Sigmoid", "b", (Operand("a", grid(0.25)),), ("b",)),
        Op("Clip", "c", (Operand("b", grid(0.125)), Operand("two")), ("c",)),
        Op("MaxPool", "d", (Operand("c", grid(0.125)),), ("d",), {"kernel_shape": [2, 2]}),
        conv(Operand("d", grid(0.125)), "e"),
        Op("GlobalAveragePool", "f", (Operand("b", grid(0.125)),), ("f",)),
        Op("Tanh", "g", (Operand("f", grid(0.125)),), ("g",)),
        Op("Add", "h", (Operand("e", grid(1.0)), Operand("g")), ("h",)),
        output=Operand("h"),
    )
    assert "f" not in found.on_integers
    assert "f" in found.never_on_codes


def test_a_tensor_may_be_called_as_an_alias_would_be() -> None:
    """`b.real` is the network's, so the alias of `b` gets another name."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Sigmoid", "b", (Operand("a", grid(0.25)),), ("b",)),
        conv(Operand("b", grid(0.125)), "c"),
        Op("Softmax", "b.real", (Operand("b"),), ("b.real",)),
        Op("Add", "e", (Operand("c", grid(1.0)), Operand("b.real")), ("e",)),
        output=Operand("e"),
    )
    assert found.casts.alias_of == {"b": "b.real_1"}
    assert scales(found) == {"x": 0.5, "a": 0.25, "b.real_1": 0.125, "c": 1.0}


def test_no_tensor_is_an_alias_because_of_its_name() -> None:
    """`a.real` has the scale of `a`, and nothing to do with its codes."""
    found = network(
        conv(Operand("x", grid(0.5)), "a"),
        Op("Sigmoid", "a.real", (Operand("a", grid(0.25)),), ("a.real",)),
        conv(Operand("a.real", grid(0.25)), "c"),
        Op("Softmax", "d", (Operand("a.real"),), ("d",)),
        Op("Add", "e", (Operand("c", grid(1.0)), Operand("d")), ("e",)),
        output=Operand("e"),
    )
    assert found.casts.readers == {"a.real": {"c"}}


def test_a_tensor_called_parts_has_its_scale() -> None:
    found = network(
        conv(Operand("x", grid(0.5)), "x.parts"),
        conv(Operand("x.parts", grid(0.25)), "c"),
        output=Operand("c", grid(1.0)),
    )
    assert scales(found) == {"x": 0.5, "x.parts": 0.25, "c": 1.0}
