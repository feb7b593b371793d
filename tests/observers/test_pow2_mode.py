"""pow2_mode: each batch votes for an exponent, the commonest wins."""

import pytest
import torch

from detent.errors import SchemeError
from detent.numerics import IntGrid, PerChannel, PerGroup, QParams, Scheme
from detent.observers import Pow2Mode, Pow2Sse

pytestmark = pytest.mark.usefixtures("one_thread")

INT8 = Scheme(IntGrid(8), scale="power_of_two")


def measured(scheme: Scheme, *batches: torch.Tensor, **options: int) -> QParams:
    observer = Pow2Mode(scheme, **options)
    for batch in batches:
        observer.observe(batch)
    return observer.qparams()


def ballot(*exponents: int) -> list[torch.Tensor]:
    """Batches whose overflow-free exponent is the one given: 127 steps of 2^exponent."""
    return [torch.tensor([127 * 2.0**exponent]) for exponent in exponents]


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        pytest.param([3], 3, id="one-batch"),
        pytest.param([0, 0, 5], 0, id="the-commonest-is-not-the-coarsest"),
        pytest.param([-4, 1, 1], 1, id="the-commonest-is-not-the-finest"),
        pytest.param([2, 0, -2, 0, 2, 0], 0, id="plurality"),
        pytest.param([0, 2], 2, id="a-tie-goes-to-the-coarser"),
        pytest.param([2, 0], 2, id="a-tie-in-the-other-order"),
        pytest.param([-3, -3, -1, -1, -5], -1, id="a-tie-of-two-and-two"),
        pytest.param([-60, -60, 50], -60, id="far-exponents"),
    ],
)
def test_the_vote_literally(votes, winner):
    found = measured(INT8, *ballot(*votes), candidates=1)
    assert (found.scale.item(), found.zero_point.item()) == (2.0**winner, 0)


def test_a_batch_has_one_vote_whatever_its_size():
    large = torch.full((10_000,), 127.0 * 4)
    assert measured(INT8, large, *ballot(0, 0), candidates=1).scale.item() == 1.0


def test_a_batch_votes_for_its_least_squared_error():
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) ** 3
    by_error = Pow2Sse(INT8)
    by_error.observe(x)
    assert measured(INT8, x).scale.item() == by_error.qparams().scale.item()
    assert measured(INT8, x).scale.item() < measured(INT8, x, candidates=1).scale.item(), "so that the search matters"


def test_an_odd_batch_is_outvoted():
    generator = torch.Generator().manual_seed(0)
    ordinary = [torch.randn(1000, generator=generator) for _ in range(3)]
    usual = measured(INT8, *ordinary).scale.item()
    assert measured(INT8, *ordinary, torch.full((1000,), 1e4)).scale.item() == usual


def test_every_channel_votes_by_itself():
    scheme = Scheme(IntGrid(8), granularity=PerChannel(0), scale="power_of_two")
    batches = [
        torch.tensor([[127.0], [127.0 / 4]]),
        torch.tensor([[127.0], [127.0 * 2]]),
        torch.tensor([[127.0 * 8], [127.0 / 4]]),
    ]
    found = measured(scheme, *batches, candidates=1)
    assert found.scale.tolist() == [1.0, 0.25]
    assert found.zero_point.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("scheme", "needs"),
    [
        pytest.param(Scheme(IntGrid(8)), "a power-of-two scale", id="float-scale"),
        pytest.param(Scheme(IntGrid(8), symmetric=False, scale="power_of_two"), "a symmetric scheme", id="affine"),
        pytest.param(
            Scheme(IntGrid(8), granularity=PerGroup(1, 4), scale="power_of_two"),
            "PerTensor or PerChannel",
            id="per-group",
        ),
    ],
)
def test_schemes_it_has_no_meaning_for_are_refused_with_the_reason(scheme, needs):
    with pytest.raises(SchemeError, match=f"{needs}, because it searches one exponent"):
        Pow2Mode(scheme)
