"""Defects of earlier systems that this room could have had: one test each, named after what went wrong there."""

import numpy as np
import pytest
import torch

from detent.numerics import IntGrid, LogGrid, PerChannel, QParams, Scheme
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS, AdaRound, DoReFa, Dsq, Log, Lsq, LsqPlus, Pact, Qil, Tqt
from detent.quantizers.adaround import annealed_beta, rounding_penalty


def calibrated(cls, scheme, scale, shape=(), zero_point=None, **options):
    quantizer = cls(scheme, shape, **options)
    scale = torch.as_tensor(scale)
    quantizer.initialize(QParams.symmetric(scale) if zero_point is None else QParams(scale, torch.tensor(zero_point)))
    return quantizer


def test_pact_clip_goes_on_working_after_calibration():
    """MQBench: the clip and its gradient act only while the observer is on; after calibration alpha is dead."""
    q = calibrated(Pact, Scheme(IntGrid(4, signed=False)), 0.4)  # clips at 6
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    before = q(torch.tensor([100.0])).item()
    q(torch.tensor([100.0] * 10)).sum().backward()
    assert q.clip.grad.item() == 10.0
    optimizer.step()
    assert before == pytest.approx(6.0)
    for mode in (True, False):
        assert q.train(mode)(torch.tensor([100.0])).item() == pytest.approx(5.0)
    assert q.qparams().scale.item() == pytest.approx(5 / 15)


def test_tqt_trains_its_threshold():
    """MQBench: "TQT" keeps its scale in a buffer and returns no gradient for it: a fixed power-of-two quantizer."""
    q = calibrated(Tqt, Scheme(IntGrid(4), scale="power_of_two"), 0.25)
    optimizer = torch.optim.SGD(q.parameters(), lr=1.0)
    x = torch.tensor([10.0, -10.0, 8.0])  # all clipped: the threshold must grow
    for _ in range(20):
        optimizer.zero_grad()
        (q(x) - x).square().mean().backward()
        assert q.log2_threshold.grad.item() != 0
        optimizer.step()
        if q.qparams().scale.item() > 0.25:
            return
    pytest.fail("the scale never moved")


def test_dsq_uses_its_soft_function():
    """MQBench's paper code: the soft function is commented out, and the gradient is plain 0 or 1."""
    q = calibrated(Dsq, Scheme(IntGrid(8)), 1.0)
    x = torch.linspace(-3, 3, 101, requires_grad=True)
    q(x).sum().backward()
    assert not set(x.grad.tolist()) <= {0.0, 1.0}
    assert x.grad.max() > 1.2
    assert x.grad.min() < 0.6


UNSIGNED = ("fixed", "moving_range", "lsq", "lsq_plus", "tqt", "pact", "dorefa", "dsq", "qil", "qdrop")


@pytest.mark.parametrize("name", UNSIGNED)
def test_an_unsigned_symmetric_range_uses_the_whole_grid(name):
    """MMRazor on torch's rules: quint8 and symmetric give the zero point 127, and half of the codes after a ReLU
    are never used. Vitis: the domain of TQT is 2^(b-1) whatever the sign."""
    scheme = Scheme(IntGrid(8, signed=False), scale="power_of_two" if name == "tqt" else "float")
    q = calibrated(QUANTIZERS[name], scheme, 1 / 256).eval()
    x = torch.linspace(0, 1, 4096)
    assert q.qparams().zero_point.item() == 0
    assert set(q.codes(x).tolist()) == set(range(256))
    assert torch.all((q(x) - x).abs() <= 1.01 / 256)


AFFINE = ("fixed", "moving_range", "lsq", "lsq_plus", "pact", "dsq", "adaround", "qdrop")


@pytest.mark.parametrize("signed", [True, False], ids=["int8", "uint8"])
@pytest.mark.parametrize("name", AFFINE)
def test_the_zero_point_accounts_for_qmin(name, signed):
    """Vitis: zero_point = round(-min / s), which on a signed grid clips the upper half of the range away."""
    scheme = Scheme(IntGrid(8, signed=signed), symmetric=False)
    x = torch.linspace(-1.0, 3.0, 1000)
    observer = OBSERVERS["minmax"](scheme)
    observer.observe(x)
    role = "weight" if name == "adaround" else "activation"
    q = QUANTIZERS[name](scheme, x.shape, role=role)
    q.initialize(observer.qparams())
    q.eval()
    assert q.qparams().zero_point.item() == (-64 if signed else 64)
    codes = q.codes(x)
    assert (codes.min().item(), codes.max().item()) == ((-128, 127) if signed else (0, 255))
    assert torch.all((q(x) - x).abs() <= 0.501 * 4 / 255)


def test_adaround_regularizer_acts_after_the_warm_up():
    """PPQ and esp-ppq: an inner loop reuses the step counter, so the regularizer is always in its warm-up: zero."""
    q = calibrated(AdaRound, Scheme(IntGrid(4)), 1.0, (4,), role="weight")
    w = torch.tensor([0.2, 0.4, 1.6, -2.7])
    betas = [annealed_beta(step, 100) for step in range(100)]
    assert betas[:20] == [None] * 20
    assert None not in betas[20:]
    assert len(set(betas[20:])) == 80
    slopes = []
    for beta in (betas[20], betas[60], betas[99]):
        q.rounding.grad = None
        penalty = rounding_penalty(q.soft_rounding(w), beta)
        assert penalty.item() > 0
        penalty.backward()
        assert q.rounding.grad.abs().min() > 0
        slopes.append(q.rounding.grad.abs().min().item())
    assert slopes == sorted(slopes)
    assert slopes[0] < slopes[2]


def test_adaround_penalty_alone_decides_every_weight():
    """The same defect, seen from its end: without a penalty that works, weights stay undecided."""
    q = calibrated(AdaRound, Scheme(IntGrid(4)), 1.0, (4,), role="weight")
    w = torch.tensor([0.2, 0.4, 1.6, -2.7])
    optimizer = torch.optim.Adam(q.parameters(), lr=0.1)
    for step in range(300):
        beta = annealed_beta(step, 300)
        if beta is not None:
            optimizer.zero_grad()
            rounding_penalty(q.soft_rounding(w), beta).backward()
            optimizer.step()
    assert q.soft_rounding(w).tolist() == [0.0, 0.0, 1.0, 0.0]


def test_the_learned_lsq_scale_is_the_one_that_is_deployed():
    """MMRazor: before export, weight quantizers are replaced and a last pass over the weight measures min and max,
    which throws the learned step away."""
    q = calibrated(Lsq, Scheme(IntGrid(4)), 0.5, (3,), role="weight")
    w = torch.tensor([0.3, -0.9, 5.0])
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        q(w).sum().backward()
        optimizer.step()
    learned = q.scale.item()
    assert learned != 0.5
    q.eval()
    other = Lsq(Scheme(IntGrid(4)), (3,), role="weight")
    other.load_state_dict(q.state_dict())
    for deployed in (q, other):
        assert deployed.qparams().scale.item() == abs(learned)
        assert deployed.codes(w).tolist() == np.clip(np.rint(w.numpy() / np.float32(abs(learned))), -8, 7).tolist()


@pytest.mark.parametrize("cls", [Lsq, LsqPlus])
def test_the_lsq_factor_counts_one_channel(cls):
    """MMRazor: 1 / sqrt(numel * qmax) with the elements of the whole tensor, for per-channel scales too."""
    gradients = []
    for channels in (1, 64):
        scheme = Scheme(IntGrid(4), granularity=PerChannel(0))
        q = calibrated(cls, scheme, torch.ones(channels), (channels, 9), role="weight", gradient_scale="lsq")
        q(torch.full((channels, 9), 100.0)).sum().backward()
        gradients.append(q.scale.grad[0].item())
    assert gradients[0] == gradients[1] == pytest.approx(9 * 7 / np.sqrt(9 * 7))


def test_qil_output_has_the_size_of_its_input():
    """MQBench's paper code: the output stays in [-1, 1], so a network calibrated with it computes something else."""
    x = torch.linspace(-20, 20, 101)
    q = calibrated(Qil, Scheme(IntGrid(8, narrow=True)), 20 / 127)
    assert q(x).max().item() == pytest.approx(20.0)
    assert torch.all((q(x) - x).abs() <= 0.501 * 20 / 127)


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["positive", "negative"])
def test_nnie_quantizes_the_threshold_itself(sign):
    """MQBench: x == 2^((z - 16) / 16) falls between two strict comparisons and comes out unquantized.

    One step to the octave makes the threshold, half of the least magnitude, a float32 number."""
    q = calibrated(Log, Scheme(LogGrid(4, 1)), 1.0)  # magnitudes 2^-7 (2^-6 if negative) to 1
    least = 2.0**-7 if sign > 0 else 2.0**-6
    assert q(torch.tensor([sign * least / 2])).item() == sign * least


def test_nnie_leaves_nothing_off_its_grid():
    """The same defect on the real grid: around both thresholds every output is zero or a power of 2^(1/16)."""
    q = calibrated(Log, Scheme(LogGrid()), 2.0 ** (15 / 16))  # z = -112: thresholds 2^-8 and -2^(-127/16)
    around = torch.tensor([2.0**-8, -(2.0 ** (-127 / 16))])
    x = torch.cat([around, torch.nextafter(around, torch.tensor(0.0)), torch.nextafter(around, 2 * around)])
    for value in q(x).tolist():
        assert value == 0 or 16 * np.log2(abs(value)) == pytest.approx(round(16 * np.log2(abs(value))), abs=1e-4)
        assert value not in x.tolist()


def test_dorefa_survives_weights_that_are_all_zero():
    """tanh(w) / max|tanh(w)| divides zero by zero; MQBench adds 1e-5, which shrinks every weight instead."""
    q = DoReFa(Scheme(IntGrid(8), granularity=PerChannel(0)), (2, 3), role="weight", bound=1.0)
    w = torch.tensor([[0.0, 0.0, 0.0], [1e-4, -2e-4, 1e-4]], requires_grad=True)
    y = q(w)
    assert y[0].tolist() == [0.0, 0.0, 0.0]
    assert q.codes(w)[1].tolist() == [64, -127, 64]  # not 58, -115, 58
    y.sum().backward()
    assert torch.isfinite(w.grad).all()


LEARNED = {
    "lsq": "scale",
    "lsq_plus": "scale",
    "qdrop": "scale",
    "pact": "clip",
    "tqt": "log2_threshold",
    "qil": "center",
}


@pytest.mark.parametrize(("name", "parameter"), LEARNED.items(), ids=LEARNED)
def test_an_optimizer_made_before_calibration_trains_what_is_used(name, parameter):
    """MQBench and MMRazor: calibration replaces `scale.data`, or the checkpoint resizes it, and an optimizer that
    was made before goes on stepping a tensor nobody reads."""
    scheme = Scheme(IntGrid(4), granularity=PerChannel(1), scale="power_of_two" if name == "tqt" else "float")
    q = QUANTIZERS[name](scheme, (2, 4), **({"probability": 1.0} if name == "qdrop" else {}))
    optimizer = torch.optim.SGD(q.parameters(), lr=1.0)
    q.initialize(QParams.symmetric(torch.full((4,), 0.5)))
    before = getattr(q, parameter).detach().clone()
    scale = q.qparams().scale
    q(torch.full((2, 4), 50.0)).sum().backward()
    optimizer.step()
    assert not torch.equal(getattr(q, parameter), before)
    assert not torch.equal(q.qparams().scale, scale)
    assert q.calibrated


def test_a_moved_range_reaches_a_model_that_was_copied_and_loaded():
    """MQBench: parts of an observer's state are not buffers, so a resumed run starts from another range."""
    scheme = Scheme(IntGrid(8, signed=False), symmetric=False)
    q = calibrated(QUANTIZERS["moving_range"], scheme, 1.0, zero_point=0, momentum=0.5)
    q(torch.tensor([-3.0, 40.0]))
    other = QUANTIZERS["moving_range"](scheme, (), momentum=0.5)
    other.load_state_dict(q.state_dict())
    for quantizer in (q, other):
        quantizer(torch.tensor([-5.0, 20.0]))
    assert torch.equal(q.low, other.low)
    assert torch.equal(q.high, other.high)
