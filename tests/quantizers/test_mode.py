"""Modes of a quantizer: what a call does, and blocks that nest and restore."""

import copy
import warnings

import pytest
import torch

from detent.errors import NotCalibratedError
from detent.numerics import IntGrid, QParams, Scheme
from detent.quantizers import PASS_THROUGH, QUANTIZE, Fixed, Mode, in_modes


@pytest.fixture
def halves():
    quantizer = Fixed(Scheme(IntGrid(4)), ())
    quantizer.initialize(QParams.symmetric(torch.tensor(0.5)))
    return quantizer


X = torch.tensor([0.3, 1.1, -9.0])
ON_GRID = [0.5, 1.0, -4.0]


def test_a_quantizer_quantizes(halves):
    assert halves.mode == QUANTIZE
    assert halves(X).tolist() == ON_GRID


def test_passing_through_gives_the_tensor_itself(halves):
    with in_modes({halves: PASS_THROUGH}):
        assert halves(X) is X
    assert halves(X).tolist() == ON_GRID


@pytest.mark.parametrize("quantizes", [True, False])
def test_a_watch_sees_the_tensor_before_it_is_quantized(halves, quantizes):
    seen = []
    with in_modes({halves: Mode(watch=seen.append, quantizes=quantizes)}):
        given = halves(X)
    assert [id(one) for one in seen] == [id(X)]
    assert given.tolist() == (ON_GRID if quantizes else X.tolist())


def test_modes_nest_and_restore(halves):
    outer, inner = [], []
    with in_modes({halves: Mode(watch=outer.append, quantizes=False)}):
        with in_modes({halves: QUANTIZE}):
            assert halves(X).tolist() == ON_GRID
            with in_modes({halves: Mode(watch=inner.append)}):
                assert halves(X).tolist() == ON_GRID
            assert halves.mode == QUANTIZE
        assert halves(X) is X
    assert halves.mode == QUANTIZE
    assert (len(outer), len(inner)) == (1, 1)


def test_an_error_restores_every_mode(halves):
    other = copy.deepcopy(halves)
    with in_modes({halves: PASS_THROUGH}):
        with pytest.raises(ZeroDivisionError), in_modes({halves: QUANTIZE, other: PASS_THROUGH}):
            raise ZeroDivisionError
        assert (halves.mode, other.mode) == (PASS_THROUGH, QUANTIZE)


def test_a_mode_says_what_a_call_does_and_not_what_is_deployed(halves):
    with in_modes({halves: PASS_THROUGH}):
        assert halves.quantize(X).tolist() == ON_GRID
        assert halves.codes(X).tolist() == [1, 2, -8]


def test_only_quantizing_needs_scales():
    quantizer = Fixed(Scheme(IntGrid(4)), ())
    with in_modes({quantizer: PASS_THROUGH}):
        assert quantizer(X) is X
    with in_modes({quantizer: Mode(watch=lambda _: None)}), pytest.raises(NotCalibratedError):
        quantizer(X)


def test_a_copy_made_inside_a_block_works_by_itself(halves):
    with in_modes({halves: PASS_THROUGH}):
        twin = copy.deepcopy(halves)
    assert halves(X).tolist() == ON_GRID
    with in_modes({twin: copy.deepcopy(QUANTIZE)}):
        assert twin(X).tolist() == ON_GRID
    assert twin(X) is X


def test_a_compiled_quantizer_follows_its_mode_in_one_graph_each(halves):
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(halves, fullgraph=True, dynamic=False, backend="aot_eager")
        assert compiled(X).tolist() == ON_GRID
        with in_modes({halves: PASS_THROUGH}):
            assert torch.equal(compiled(X), X)
        assert compiled(X).tolist() == ON_GRID
