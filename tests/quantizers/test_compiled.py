"""Under torch.compile, in one graph, quantizers compute what they compute in eager mode."""

import shutil
import warnings

import pytest
import torch

from detent.numerics import IntGrid, PerChannel, QParams, Scheme
from detent.quantizers import QUANTIZERS

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="torch.compile needs a C++ compiler"
)

SHAPE = (4, 8, 16)
S4 = Scheme(IntGrid(4))
CHANNELS = Scheme(IntGrid(4), granularity=PerChannel(1))
AFFINE = Scheme(IntGrid(4, signed=False), symmetric=False, granularity=PerChannel(1))
POWERS = Scheme(IntGrid(4), scale="power_of_two")
CASES = [
    pytest.param("fixed", AFFINE, id="fixed-affine-per-channel"),
    pytest.param("lsq", S4, id="lsq-per-tensor"),
    pytest.param("lsq", CHANNELS, id="lsq-per-channel"),
    pytest.param("lsq_plus", AFFINE, id="lsq_plus-affine-per-channel"),
    pytest.param("tqt", POWERS, id="tqt-power-of-two"),
    pytest.param("moving_range", AFFINE, id="moving_range-in-eval"),
]


@pytest.fixture(autouse=True)
def _a_compiler_of_its_own():
    """Nothing compiled before counts; what torch warns about on its own account is not ours to fail on."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def calibrated(name, scheme):
    quantizer = QUANTIZERS[name](scheme, SHAPE)
    shape = scheme.granularity.scale_shape(SHAPE)
    generator = torch.Generator().manual_seed(0)
    scale = torch.rand(shape, generator=generator) * 0.2 + 0.05
    if scheme.scale == "power_of_two":
        scale = torch.exp2(torch.round(torch.log2(scale)))
    zero_point = torch.zeros(shape) if scheme.symmetric else torch.randint(2, 14, shape, generator=generator)
    quantizer.initialize(QParams(scale, zero_point.to(torch.int64)))
    return quantizer.eval() if name == "moving_range" else quantizer


@pytest.mark.by_default("lsq-per-channel")
@pytest.mark.parametrize(("name", "scheme"), CASES)
@pytest.mark.slow
def test_compiled_is_eager(name, scheme):
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    g = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2))
    found = []
    for compiled in (False, True):
        q = calibrated(name, scheme)
        run = torch.compile(q, fullgraph=True, dynamic=False) if compiled else q
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        y.backward(g)
        found.append((y.detach(), leaf.grad, {key: p.grad for key, p in q.named_parameters()}))
    (y, dx, learned), (compiled_y, compiled_dx, compiled_learned) = found
    assert 0 < (dx == 0).sum() < dx.numel()
    assert torch.equal(compiled_y, y)
    assert torch.equal(compiled_dx, dx)
    assert learned.keys() == compiled_learned.keys()
    for key, gradient in learned.items():
        # Sums of 64 to 512 terms, in another order.
        assert torch.allclose(compiled_learned[key], gradient, rtol=1e-6, atol=1e-6 * gradient.abs().max().item()), key
