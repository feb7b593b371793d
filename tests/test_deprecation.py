"""Names from before the packages were parted keep working, and say the new ones."""

import importlib

import pytest

import detent
from detent.planning import Backend, Offer
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.targets.litert.engine import LiteRT


@pytest.mark.parametrize(
    ("old", "name", "home", "value"),
    [
        ("detent.backends", "BACKENDS", "detent.targets", BACKENDS),
        ("detent.backends", "Backend", "detent.planning", Backend),
        ("detent.backends", "Offer", "detent.planning", Offer),
        ("detent.engines", "LiteRT", "detent.targets.litert.engine", LiteRT),
        ("detent.engines", "ENGINES", "detent.targets.engines", ENGINES),
        ("detent.twin", "ARITHMETICS", "detent.targets.arithmetics", ARITHMETICS),
    ],
)
def test_old_names_warn(old: str, name: str, home: str, value: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{old}.{name} is now {home}.{name}$"):
        assert getattr(importlib.import_module(old), name) is value


def test_constants_of_backends_warn() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"^detent.backends.OPENVINO is now detent.targets.BACKENDS\['openvino'\]$"
    ):
        assert importlib.import_module("detent.backends").OPENVINO is BACKENDS["openvino"]


def test_a_name_that_never_was() -> None:
    with pytest.raises(AttributeError, match=r"module 'detent.backends' has no attribute 'BACKEND'"):
        _ = detent.backends.BACKEND


def test_deploy_is_a_function_whatever_is_imported() -> None:
    importlib.import_module("detent.deployment")
    assert detent.deploy.__name__ == "deploy"
