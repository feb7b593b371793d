"""A registry reads like a dict, grows only by explicit calls or entry points, and answers typos."""

import importlib.metadata
from abc import ABC, abstractmethod
from types import SimpleNamespace

import pytest

from detent import registry
from detent.errors import RegistrationError, UnknownNameError
from detent.registry import Registry


class Animal(ABC):
    @abstractmethod
    def sound(self) -> str: ...

    @abstractmethod
    def legs(self) -> int: ...


class Dog(Animal):
    def sound(self) -> str:
        return "woof"

    def legs(self) -> int:
        return 4


class Cat(Animal):
    def sound(self) -> str:
        return "meow"

    def legs(self) -> int:
        return 4


class HalfDone(Animal):
    def sound(self) -> str:
        return "?"


class Stone:
    pass


class FakeEntryPoint:
    """What importlib.metadata hands out: an object that loads a class, here counted."""

    name, value = "cow", "farm:Cow"
    dist = SimpleNamespace(name="farm")

    def __init__(self, target):
        self.target, self.loads = target, 0

    def load(self):
        self.loads += 1
        if isinstance(self.target, BaseException):
            raise self.target
        return self.target


@pytest.fixture
def animals():
    return Registry("animal", Animal, {"dog": Dog, "cat": Cat})


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """Entry points by (group, name); none until a test puts one in, whatever is installed here."""
    points = {}

    def entry_points(*, group, name):
        return [points[group, name]] if (group, name) in points else []

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return points


def test_it_reads_like_a_dict(animals):
    assert animals["dog"] is Dog
    assert list(animals) == ["dog", "cat"]
    assert len(animals) == 2
    assert dict(animals) == {"dog": Dog, "cat": Cat}
    assert "dog" in animals
    assert "cow" not in animals


def test_get_answers_the_default_for_an_unknown_name_as_a_dict_does(animals):
    assert animals.get("dog") is Dog
    assert animals.get("cow") is None
    assert animals.get("cow", Cat) is Cat


def test_it_cannot_be_changed_by_assignment(animals):
    with pytest.raises(TypeError):
        animals["cow"] = Dog
    with pytest.raises(TypeError):
        del animals["dog"]


def test_the_table_it_was_built_from_stays_separate():
    table = {"dog": Dog}
    animals = Registry("animal", Animal, table)
    table["cat"] = Cat
    assert list(animals) == ["dog"]


def test_register_adds_a_name(animals):
    animals.register("kitten", Cat)
    assert animals["kitten"] is Cat
    assert list(animals) == ["dog", "cat", "kitten"]


def test_a_taken_name_is_refused_and_keeps_its_class(animals):
    with pytest.raises(RegistrationError) as caught:
        animals.register("dog", Cat)
    assert caught.value.asked == "register animal 'dog'"
    assert "taken by Dog" in caught.value.found
    assert animals["dog"] is Dog


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        pytest.param(Stone, "Stone", id="class-of-another-kind"),
        pytest.param(Dog(), "Dog", id="instance-instead-of-class"),
        pytest.param("Dog", "'Dog'", id="string"),
    ],
)
def test_what_is_no_animal_is_refused(animals, thing, shown):
    with pytest.raises(RegistrationError) as caught:
        animals.register("stone", thing)
    assert shown in caught.value.found
    assert "is not a subclass of Animal" in caught.value.found
    assert "Animal" in caught.value.to_do
    assert "stone" not in animals


def test_an_abstract_class_is_refused_and_the_missing_methods_are_named(animals):
    with pytest.raises(RegistrationError) as caught:
        animals.register("half", HalfDone)
    assert caught.value.found == "HalfDone lacks legs"
    with pytest.raises(RegistrationError) as caught:
        animals.register("animal", Animal)
    assert caught.value.found == "Animal lacks legs, sound"


def test_the_literal_table_is_checked_like_any_registration():
    with pytest.raises(RegistrationError, match="Stone"):
        Registry("animal", Animal, {"stone": Stone})


def test_an_unknown_name_suggests_the_nearest(animals):
    with pytest.raises(UnknownNameError) as caught:
        animals["dgo"]
    assert caught.value.asked == "animal 'dgo'"
    assert caught.value.found == "not one of cat, dog"
    assert caught.value.to_do == "did you mean 'dog'?"


def test_an_unknown_name_that_is_near_nothing_suggests_nothing(animals):
    with pytest.raises(UnknownNameError) as caught:
        animals["xylophone"]
    assert "did you mean" not in caught.value.to_do
    assert caught.value.found == "not one of cat, dog"


def test_an_entry_point_is_loaded_when_its_name_is_first_asked_for(animals, offered):
    class Cow(Dog):
        pass

    point = offered["detent.animals", "cow"] = FakeEntryPoint(Cow)
    assert animals["dog"] is Dog
    assert point.loads == 0
    assert animals["cow"] is Cow
    assert animals["cow"] is Cow
    assert point.loads == 1
    assert list(animals) == ["dog", "cat", "cow"]


def test_an_entry_point_of_another_group_is_not_seen(animals, offered):
    offered["detent.plants", "cow"] = FakeEntryPoint(Dog)
    with pytest.raises(UnknownNameError):
        animals["cow"]


def test_an_entry_point_cannot_replace_a_known_name(animals, offered):
    point = offered["detent.animals", "dog"] = FakeEntryPoint(Cat)
    assert animals["dog"] is Dog
    assert point.loads == 0


def test_an_entry_point_of_the_wrong_kind_is_refused(animals, offered):
    offered["detent.animals", "stone"] = FakeEntryPoint(Stone)
    with pytest.raises(RegistrationError, match="is not a subclass of Animal"):
        animals["stone"]


@pytest.mark.parametrize("raised", [RuntimeError("boom"), SystemExit(3), ImportError("no chip")])
def test_an_entry_point_that_cannot_be_imported_is_refused_with_its_package(animals, offered, raised, refuses):
    offered["detent.animals", "cow"] = FakeEntryPoint(raised)
    with refuses(
        RegistrationError,
        asked="animal 'cow', an entry point of farm",
        found=f"farm:Cow cannot be imported: {type(raised).__name__}: {raised}",
        to_do="repair or uninstall farm",
    ):
        animals["cow"]


def test_the_entry_points_of_python_itself_are_what_is_asked(tmp_path, monkeypatch):
    """Through the real importlib.metadata: an installed distribution that offers a class."""
    (tmp_path / "zoo_of_a_third_party.py").write_text("class Goose(int):\n    pass\n")
    folder = tmp_path / "zoo-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[detent.numbers]\ngoose = zoo_of_a_third_party:Goose\n")
    monkeypatch.setattr(registry, "entry_points", importlib.metadata.entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    numbers = Registry("number", int, {"flag": bool})
    assert numbers["goose"].__module__ == "zoo_of_a_third_party"
    with pytest.raises(UnknownNameError):
        numbers["gander"]
