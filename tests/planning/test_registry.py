"""The table of backends reads like a dict, grows only by explicit calls or entry points, and answers typos."""

from dataclasses import replace

import pytest

import detent.targets
from detent import registry as module
from detent.errors import RegistrationError, UnknownNameError
from detent.planning import Backend
from detent.targets import BACKENDS, BackendRegistry

NCNN = BACKENDS["ncnn"]


@pytest.fixture
def table():
    return BackendRegistry((NCNN, BACKENDS["mnn"]))


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """Entry points by name; none until a test puts one in, whatever is installed here."""
    points = {}

    class Point:
        def __init__(self, value):
            self.value = value

        def load(self):
            return self.value

    def entry_points(*, group, name):
        assert group == "detent.backends"
        return [Point(points[name])] if name in points else []

    monkeypatch.setattr(module, "entry_points", entry_points)
    return points


def test_it_reads_like_a_dict(table):
    assert list(table) == ["ncnn", "mnn"]
    assert len(table) == 2
    assert table["ncnn"] is NCNN
    assert "ncnn" in table
    assert "mnm" not in table


def test_every_backend_stands_under_its_own_name():
    assert all(backend.name == name for name, backend in BACKENDS.items())
    assert all(isinstance(backend, Backend) and backend.about for backend in BACKENDS.values())


def test_the_public_function_adds_to_the_public_table(monkeypatch):
    monkeypatch.setattr(BACKENDS, "_table", dict(BACKENDS))
    mine = replace(NCNN, name="mine")
    detent.targets.register(mine)
    assert BACKENDS["mine"] is mine


def test_a_taken_name_is_refused_but_the_same_backend_again_is_not(table):
    table.register(NCNN)
    with pytest.raises(RegistrationError, match="the name is taken"):
        table.register(replace(NCNN, about="another"))


def test_what_is_no_backend_is_refused(table):
    with pytest.raises(RegistrationError, match="it is a str"):
        table.register("ncnn")


def test_an_unknown_name_is_answered_with_the_nearest(table):
    with pytest.raises(UnknownNameError, match="did you mean 'ncnn'"):
        table["ncn"]
    with pytest.raises(UnknownNameError, match="register your own backend first"):
        table["zzz"]


def test_a_backend_may_come_from_an_entry_point(table, offered):
    offered["chip"] = replace(NCNN, name="chip")
    assert table["chip"].name == "chip"
    assert "chip" in table


def test_an_entry_point_has_the_name_of_its_backend(table, offered):
    offered["chip"] = replace(NCNN, name="other")
    with pytest.raises(RegistrationError, match="it calls itself 'other'"):
        table["chip"]


def test_an_entry_point_that_is_no_backend_is_refused(table, offered):
    offered["chip"] = 7
    with pytest.raises(RegistrationError, match="it is a int"):
        table["chip"]
