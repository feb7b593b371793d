"""What rewrites find in a network, and what becomes of it when they replace operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detent.ir import Encoding, Layout, Network, Op, Operand, Output, Port, StoredAs
from detent.rewrites.network_editor import Constant, NetworkEditor

GRID = Encoding(np.float32(0.5), np.int64(3), "uint8")
FEWER = Encoding(np.float32(0.5), np.int64(3), "uint8", qmin=1, qmax=63)
WEIGHT = Encoding(np.array([0.5, 0.25], np.float32), np.zeros(2, np.int64), "int8", 0)


def network(behind: Encoding | None = GRID, **changed: Any) -> Network:
    """x on a grid -> Conv -> Relu -> y, on a grid unless `behind` is None."""
    ops = (
        Op("Conv", "conv", (Operand("x", GRID), Operand("w", WEIGHT)), ("c",), {"kernel_shape": [1, 1]}),
        Op("Relu", "relu", (Operand("c"),), ("y",)),
    )
    made = Network(
        {"x": Port("float32", (1, 1, 2, 2))},
        (Output("out", Operand("y", behind)),),
        ops,
        {"w": np.array([1, 2], np.int8).reshape(2, 1, 1, 1)},
        frozenset({"w"}),
        {"x": (1, 1, 2, 2), "y": ("n", 2, 2, 2)},
        21,
    )
    return replace(made, **changed)


def conv(editor: NetworkEditor) -> Op:
    return next(editor.ops("Conv"))


def test_an_operation_is_found_with_the_functions_behind_it() -> None:
    editor = NetworkEditor(network())
    found = editor.found(conv(editor))
    assert found is not None
    assert (found.data, found.behind, found.result) == (Operand("x", GRID), GRID, "y")
    assert [op.name for op in (*found.ops, *found.functions)] == ["conv", "relu"]


@pytest.mark.parametrize("behind", [None, FEWER], ids=["real numbers", "fewer codes than the type has"])
def test_an_operation_is_not_found(behind: Encoding | None) -> None:
    editor = NetworkEditor(network(behind))
    assert editor.found(conv(editor)) is None


def test_a_result_may_be_read_as_real_numbers_if_no_function_follows() -> None:
    plain = network(ops=network().ops[:1], outputs=(Output("out", Operand("c")),))
    editor = NetworkEditor(plain)
    found = editor.found(conv(editor), may_end_float=True)
    assert found is not None
    assert found.behind is None
    assert editor.found(conv(editor)) is None
    with_function = NetworkEditor(network(None))
    assert with_function.found(conv(with_function), may_end_float=True) is None


def test_nothing_replaced_is_the_same_network() -> None:
    given = network()
    assert NetworkEditor(given).finished() is given


def test_what_is_written_takes_the_place_and_the_name_of_the_result() -> None:
    editor = NetworkEditor(network())
    found = editor.found(conv(editor))
    assert found is not None
    made = editor.copied(conv(editor), [found.data, editor.rearranged(held(editor), Layout.BLOCKS, HALVES, None)])
    editor.replace_found(found, made)
    assert list(editor.ops("Conv", "Relu")) == []
    after = editor.finished()
    assert [(op.type, op.name, op.outputs) for op in after.ops] == [
        ("Conv", "conv", ("c.conv",)),
        ("Relu", "relu", ("y",)),
    ]
    assert after.ops[0].inputs == (Operand("x", GRID), Operand("w_blocks"))
    assert after.ops[1].inputs == (Operand("c.conv"),)
    assert after.stored_as == {"w_blocks": StoredAs("w", Layout.BLOCKS)}
    assert list(after.constants) == ["w_blocks"]


HALVES = np.array([0.5, 1.0], np.float32).reshape(2, 1, 1, 1)


def held(editor: NetworkEditor) -> Constant:
    found = editor.constant(Operand("w", WEIGHT))
    assert found is not None
    return found


def test_a_constant_is_stored_once() -> None:
    editor = NetworkEditor(network())
    first, again = (editor.rearranged(held(editor), Layout.PHASES, HALVES, None) for _ in range(2))
    other = editor.rearranged(held(editor), Layout.PHASES, 2 * HALVES, None)
    assert (first.tensor, again.tensor, other.tensor) == ("w_phases", "w_phases", "w_phases.1")
    assert editor.integers([1], "y") != editor.reals(np.ones(1, np.float32), "y")


def test_a_constant_in_blocks_is_none() -> None:
    encoding = Encoding(np.ones((2, 1), np.float32), np.zeros((2, 1), np.int64), "int8", 1, 2)
    assert NetworkEditor(network()).constant(Operand("w", encoding)) is None


def test_later_rewrites_see_changed_attributes() -> None:
    editor = NetworkEditor(network())
    editor.change(conv(editor), kernel_shape=None, strides=[2, 2])
    assert conv(editor).attributes == {"strides": [2, 2]}
    assert editor.finished().ops[0].attributes == {"strides": [2, 2]}


def test_the_origin_of_an_operand_is_on_a_grid_or_behind_another_operation() -> None:
    editor = NetworkEditor(network())
    assert editor.origin(Operand("y"), {"Relu"}) == Operand("c")
    assert editor.origin(Operand("y"), {"Relu", "Conv"}) == Operand("x", GRID)
    assert editor.origin(Operand("y", GRID), {"Relu"}) == Operand("y", GRID)


def test_what_is_moved_uses_every_code_of_its_type() -> None:
    """It was clipped before it was moved."""
    editor = NetworkEditor(network())
    assert editor.on_grid(Operand("moved"), FEWER) == Operand("moved", GRID)
    assert editor.on_grid(Operand("moved"), None) == Operand("moved")


def test_one_free_size_is_left_to_a_reshape() -> None:
    editor = NetworkEditor(network())
    assert editor.sizes("y") == [-1, 2, 2, 2]
    assert editor.sizes("c") is None
