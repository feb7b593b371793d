"""Where trained ranges start: the least cubed error, with the least square and the whole range beside it."""

import torch

from detent.numerics import IntGrid, PerChannel, Scheme
from detent.observers import OBSERVERS, MinMax, Mse, Start


def observed(cls, scheme, *tensors, **options):
    observer = cls(scheme, **options)
    for tensor in tensors:
        observer.observe(tensor)
    return observer


def test_it_is_the_least_cubed_error_and_knows_the_square_and_the_whole_range():
    scheme = Scheme(IntGrid(3), granularity=PerChannel(0))
    batches = torch.randn(2, 4, 1000, generator=torch.Generator().manual_seed(0))
    start = observed(Start, scheme, *batches)
    assert torch.equal(start.qparams().scale, observed(Mse, scheme, *batches, norm=3.0).qparams().scale)
    square, whole = start.alternatives()
    assert torch.equal(square.scale, observed(Mse, scheme, *batches).qparams().scale)
    assert torch.equal(whole.scale, observed(MinMax, scheme, *batches).qparams().scale)
    assert (square.scale < start.qparams().scale).all()
    assert (start.qparams().scale < whole.scale).all()


def test_it_clips_less_than_the_least_square():
    scheme = Scheme(IntGrid(3))
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    square, cube = (observed(OBSERVERS[name], scheme, x).qparams().scale.item() for name in ("mse", "start"))
    assert (round(square, 2), round(cube, 2)) == (0.6, 0.7)
