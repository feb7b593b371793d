"""The exception tree: drawn in its module, caught by its root, carried across processes."""

import copy
import pickle

import pytest

from detent import errors
from detent.errors import (
    CaptureError,
    DetentError,
    NotCalibratedError,
    RangeError,
    RecipeError,
    RegistrationError,
    SchemeError,
    TensorError,
    UnknownNameError,
)

TREE = [
    pytest.param(CaptureError, ValueError, id="CaptureError"),
    pytest.param(RecipeError, ValueError, id="RecipeError"),
    pytest.param(SchemeError, ValueError, id="SchemeError"),
    pytest.param(TensorError, ValueError, id="TensorError"),
    pytest.param(RangeError, ValueError, id="RangeError"),
    pytest.param(NotCalibratedError, RuntimeError, id="NotCalibratedError"),
    pytest.param(UnknownNameError, LookupError, id="UnknownNameError"),
    pytest.param(RegistrationError, ValueError, id="RegistrationError"),
]
DEFINED = {
    name: thing for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, DetentError)
}
EVERY = [pytest.param(error, id=name) for name, error in DEFINED.items()]


@pytest.mark.parametrize(("error", "builtin"), TREE)
def test_each_error_is_caught_by_the_root_and_by_its_builtin_kin(error, builtin):
    for caught_as in (DetentError, builtin):
        with pytest.raises(caught_as) as caught:
            raise error("a", "b", "c")
        assert type(caught.value) is error


def test_every_error_but_the_root_is_also_one_of_python_s_own():
    own = {name for name, error in DEFINED.items() if error.__bases__[0] is DetentError and len(error.__bases__) == 2}
    assert own == set(DEFINED) - {"DetentError"}


def test_the_public_names_are_the_errors_that_are_defined_two_warnings_and_what_turns_others_into_them():
    assert set(errors.__all__) == {*DEFINED, "FloatModelWarning", "NotQuantizedWarning", "install_hint", "refusing"}


def test_what_a_parser_raises_becomes_an_error_of_one_line(refuses):
    with (
        refuses(TensorError, "read a file", "ValueError: first", "get it again"),
        errors.refusing(TensorError, "read a file", "get it again"),
    ):
        raise ValueError("first\nsecond")
    with (
        refuses(TensorError, "a", "b", "c"),
        errors.refusing(errors.DataError, "read a file", "get it again"),
    ):
        raise TensorError("a", "b", "c")


def test_the_picture_at_the_top_of_the_module_shows_every_error():
    assert [name for name in DEFINED if name not in errors.__doc__] == []


def test_the_message_has_three_parts_in_order():
    error = TensorError("a scale of shape (3,)", "a tensor of 4 channels", "give 4 scales")
    assert str(error) == "asked: a scale of shape (3,)\nfound: a tensor of 4 channels\nto do: give 4 scales"
    assert (error.asked, error.found, error.to_do) == (
        "a scale of shape (3,)",
        "a tensor of 4 channels",
        "give 4 scales",
    )


@pytest.mark.parametrize("error", EVERY)
def test_an_error_without_its_three_parts_cannot_be_raised(error):
    with pytest.raises(TypeError, match="to_do"):
        error("what was asked", "what was found")


@pytest.mark.parametrize(
    "carry",
    [
        pytest.param(lambda error: pickle.loads(pickle.dumps(error)), id="pickle"),
        pytest.param(copy.deepcopy, id="deepcopy"),
    ],
)
@pytest.mark.parametrize("error", EVERY)
def test_an_error_survives_the_way_between_processes(error, carry):
    original = error("asked", "found", "to do")
    copied = carry(original)
    assert type(copied) is error
    assert (copied.asked, copied.found, copied.to_do) == ("asked", "found", "to do")
    assert str(copied) == str(original)
