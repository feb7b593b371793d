"""The table of observers, and how a user adds one in a few lines."""

import inspect
import textwrap

import pytest
import torch

import detent.observers
from detent.errors import RangeError, RegistrationError, SchemeError, UnknownNameError
from detent.numerics import IntGrid, PerChannel, QParams, Requirement, Scheme, choose_qparams
from detent.observers import OBSERVERS, MinMax, MovingPercentile, Observer, register

INT8 = Scheme(IntGrid(8))


@pytest.fixture
def restored(monkeypatch):
    """Names registered in a test are forgotten after it."""
    monkeypatch.setattr(OBSERVERS, "_table", dict(OBSERVERS))


class Halved(Observer):
    """What a user writes."""

    requires = Requirement(symmetric=True, because="half of a range is a magnitude")

    def _observe(self, x, low, high):
        pass

    def _qparams(self, low, high):
        return choose_qparams(low / 2, high / 2, self.scheme)


def test_the_names_of_the_table():
    assert sorted(OBSERVERS) == [
        "fixed",
        "isotone",
        "kl",
        "lsq",
        "lsq_plus",
        "minmax",
        "moving_average",
        "moving_percentile",
        "mse",
        "percentile",
        "pow2_mode",
        "pow2_sse",
        "start",
        "std",
    ]


def test_a_name_leads_to_its_class():
    assert OBSERVERS["minmax"] is MinMax
    assert OBSERVERS["moving_percentile"] is MovingPercentile


def test_every_observer_is_final():
    # "Abstract or final": nobody derives from a class that the table holds.
    classes = set(OBSERVERS.values())
    assert not [cls for cls in classes if classes & set(cls.__mro__[1:])]


def test_a_typo_is_answered_with_the_nearest_name():
    with pytest.raises(UnknownNameError, match=r"observer 'percentil'(.|\n)*did you mean 'percentile'"):
        OBSERVERS["percentil"]


@pytest.mark.usefixtures("restored")
def test_a_users_own_observer():
    register("halved", Halved)
    observer = OBSERVERS["halved"](INT8, name="mine")
    observer.observe(torch.tensor([-1.0, 2.54]))
    observer.observe(torch.tensor([0.5]))
    found = observer.qparams()
    assert isinstance(found, QParams)
    assert found.scale.item() == pytest.approx(0.01, rel=1e-6)  # 2.54 / 2 / 127 in float32


@pytest.mark.usefixtures("restored")
def test_a_users_own_observer_inherits_the_rest():
    register("halved", Halved)
    with pytest.raises(SchemeError, match="half of a range is a magnitude"):
        OBSERVERS["halved"](Scheme(IntGrid(8), symmetric=False))
    observer = OBSERVERS["halved"](Scheme(IntGrid(8), granularity=PerChannel(0)), name="mine")
    with pytest.raises(RangeError, match=r"'mine'(.|\n)*nothing was observed"):
        observer.qparams()
    observer.observe(torch.tensor([[2.54], [0.0]], dtype=torch.bfloat16))
    observer.observe(torch.empty(0, 1))
    assert observer.qparams().scale.shape == (2,)
    observer.observe(torch.tensor([[1.0], [torch.nan]]))
    with pytest.raises(RangeError, match=r"'mine'(.|\n)*in channels \[1\]"):
        observer.qparams()


@pytest.mark.usefixtures("restored")
def test_the_example_in_the_documentation_runs():
    doc = inspect.getdoc(Observer)
    assert doc is not None
    example = textwrap.dedent(doc[doc.index("    class Halved(Observer):") :])
    exec(example, {"detent": detent, "Observer": Observer, "choose_qparams": choose_qparams})
    observer = OBSERVERS["halved"](INT8)
    observer.observe(torch.tensor([2.54, -1.0]))
    assert observer.qparams().scale.item() == pytest.approx(0.01, rel=1e-6)  # 2.54 / 2 / 127 in float32


@pytest.mark.usefixtures("restored")
def test_a_taken_name_is_refused():
    with pytest.raises(RegistrationError, match="taken by MinMax"):
        register("minmax", Halved)
    register("halved", Halved)
    with pytest.raises(RegistrationError, match="taken by Halved"):
        register("halved", MinMax)
    assert OBSERVERS["minmax"] is MinMax


@pytest.mark.usefixtures("restored")
def test_what_is_no_observer_is_refused():
    with pytest.raises(RegistrationError, match="not a subclass of Observer"):
        register("linear", torch.nn.Linear)
    assert "linear" not in OBSERVERS


@pytest.mark.usefixtures("restored")
def test_a_half_written_observer_is_refused():
    class HalfWritten(Observer):
        def _observe(self, x, low, high):
            pass

    with pytest.raises(RegistrationError, match="lacks _qparams"):
        register("half", HalfWritten)


def test_the_base_alone_cannot_be_used():
    with pytest.raises(TypeError, match="abstract"):
        Observer(INT8)
