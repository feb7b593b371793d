"""The table of quantizers, and a user's own: the example of the documentation is run as it stands there."""

import textwrap

import pytest
import torch

import detent.quantizers
from detent.errors import RegistrationError, SchemeError, UnknownNameError
from detent.numerics import IntGrid, LogGrid, PerChannel, QParams, Requirement, Scheme
from detent.quantizers import QUANTIZERS, Fixed, Quantizer, on_grid, register

NAMES = {
    "fixed": "Fixed",
    "moving_range": "MovingRange",
    "lsq": "Lsq",
    "lsq_plus": "LsqPlus",
    "tqt": "Tqt",
    "pact": "Pact",
    "dorefa": "DoReFa",
    "dsq": "Dsq",
    "qil": "Qil",
    "apot": "Apot",
    "adaround": "AdaRound",
    "qdrop": "QDrop",
    "log": "Log",
    "seq": "Seq",
}


@pytest.fixture
def own_table(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(QUANTIZERS, "_table", dict(QUANTIZERS._table))


@pytest.mark.parametrize(("name", "cls"), NAMES.items(), ids=NAMES)
def test_each_name_is_its_class(name, cls):
    assert QUANTIZERS[name].__name__ == cls
    assert issubclass(QUANTIZERS[name], Quantizer)


@pytest.mark.parametrize("name", ["lsq", "lsq_plus", "pact", "dsq", "qil", "dorefa"])
def test_what_is_trained_starts_as_the_target_measures_and_better_on_few_codes(name):
    def start(bits, target=("minmax", {})):
        return QUANTIZERS[name].observer_of(Scheme(IntGrid(bits)), target)

    assert [start(bits)[0] for bits in (16, 8, 7, 6, 4, 2)] == ["minmax"] * 3 + ["start"] * 3
    assert start(4, ("pow2_mode", {"candidates": 1})) == ("pow2_mode", {"candidates": 1})


def test_what_only_rounds_is_measured_as_the_target_says():
    assert QUANTIZERS["fixed"].observer_of(Scheme(IntGrid(2))) == ("minmax", {})
    assert QUANTIZERS["adaround"].observer_of(Scheme(IntGrid(8))) == ("mse", {})


@pytest.mark.parametrize("name", NAMES)
def test_each_class_says_how_it_starts(name):
    from detent.observers import OBSERVERS

    assert QUANTIZERS[name].default_observer is None or QUANTIZERS[name].default_observer in OBSERVERS


@pytest.mark.parametrize("name", NAMES)
def test_each_file_carries_its_formula_and_an_example(name):
    from importlib import import_module

    text, example = import_module(QUANTIZERS[name].__module__).__doc__.split(">>>", 1)
    assert " = " in text
    assert f"q = {NAMES[name]}(" in example


def test_an_unknown_name_answers_with_the_nearest(refuses):
    with refuses(UnknownNameError, asked="quantizer 'lsq_puls'", found="lsq_plus", to_do="'lsq_plus'"):
        QUANTIZERS["lsq_puls"]


def documented_example():
    """The indented block in the docstring of `Quantizer`, from `class` to `register`."""
    lines = Quantizer.__doc__.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith("class Halves"))
    last = next(i for i, line in enumerate(lines) if "register(" in line)
    return textwrap.dedent("\n".join(lines[first : last + 1]))


@pytest.mark.usefixtures("own_table")
class TestTheDocumentedExample:
    @pytest.fixture(autouse=True)
    def _run(self, own_table):
        names = {"torch": torch, "Quantizer": Quantizer, "QParams": QParams, "on_grid": on_grid, "detent": detent}
        exec(documented_example(), names)

    def test_is_about_20_lines_at_most(self):
        assert len(documented_example().splitlines()) <= 20

    def test_is_found_by_its_name(self):
        assert QUANTIZERS["halves"].__name__ == "Halves"

    @pytest.mark.parametrize("granularity", ["per-tensor", "per-channel"])
    def test_quantizes_and_trains(self, granularity):
        per_channel = granularity == "per-channel"
        scheme = Scheme(IntGrid(4), granularity=PerChannel(0)) if per_channel else Scheme(IntGrid(4))
        q = QUANTIZERS["halves"](scheme, (2, 3), name="act")
        assert not q.calibrated
        q.initialize(QParams.symmetric(torch.full((2,), 1.0) if per_channel else torch.tensor(1.0)))
        assert q.calibrated
        x = torch.tensor([[0.3, -0.7, 9.0], [-9.0, 0.0, 1.1]], requires_grad=True)
        y = q(x)
        assert y.tolist() == [[0.5, -0.5, 3.5], [-4.0, 0.0, 1.0]]
        assert q.codes(x).tolist() == [[1, -1, 7], [-8, 0, 2]]
        y.sum().backward()
        assert x.grad.tolist() == [[1, 1, 0], [0, 1, 1]]

    def test_its_state_travels(self):
        q, other = (QUANTIZERS["halves"](Scheme(IntGrid(4)), ()) for _ in range(2))
        q.initialize(QParams.symmetric(torch.tensor(1.0)))
        other.load_state_dict(q.state_dict())
        assert other.calibrated
        assert other.qparams().scale.item() == 0.5

    def test_the_name_is_taken(self, refuses):
        with refuses(RegistrationError, asked="'halves'", found="Halves", to_do="choose another"):
            register("halves", Fixed)


@pytest.mark.usefixtures("own_table")
class TestRegister:
    @pytest.mark.parametrize("name", NAMES)
    def test_refuses_the_names_of_the_library(self, name, refuses):
        class Other(Fixed):
            pass

        with refuses(RegistrationError, asked=f"quantizer {name!r}", found="taken", to_do="another"):
            register(name, Other)

    def test_takes_the_same_class_twice(self):
        register("fixed", Fixed)
        assert QUANTIZERS["fixed"] is Fixed

    def test_refuses_what_is_not_a_quantizer(self, refuses):
        with refuses(RegistrationError, found="not a subclass of Quantizer"):
            register("relu", torch.nn.ReLU)

    def test_refuses_a_class_that_is_not_finished(self, refuses):
        class Unfinished(Quantizer):
            def qparams(self):
                return QParams.symmetric(torch.tensor(1.0))

        with refuses(RegistrationError, found="_fake_quantize, _initialize", to_do="implement"):
            register("unfinished", Unfinished)

    def test_a_users_requirement_is_enforced(self, refuses):
        class OnlyLogarithms(Fixed):
            requires = Requirement(grids=(LogGrid,), because="the chip has no multiplier")

        register("only_logarithms", OnlyLogarithms)
        with refuses(SchemeError, asked="OnlyLogarithms", found="the chip has no multiplier"):
            QUANTIZERS["only_logarithms"](Scheme(IntGrid(8)), ())


def test_which_are_trained_with_the_network():
    assert sorted(name for name, cls in QUANTIZERS.items() if not cls.trains) == ["adaround", "fixed", "log", "qdrop"]
