"""Names from before the packages were parted keep working, and say the new ones."""

import importlib
from dataclasses import replace

import pytest

import detent
from detent.planning import Backend, SupportedSchemes
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from detent.targets.litert.engine import LiteRT


@pytest.mark.parametrize(
    ("old", "name", "home", "value"),
    [
        ("detent.backends", "BACKENDS", "detent.targets", BACKENDS),
        ("detent.backends", "Backend", "detent.planning", Backend),
        ("detent.engines", "LiteRT", "detent.targets.litert.engine", LiteRT),
        ("detent.engines", "ENGINES", "detent.targets.engines", ENGINES),
        ("detent.twin", "ARITHMETICS", "detent.targets.arithmetics", ARITHMETICS),
    ],
)
def test_old_names_warn(old: str, name: str, home: str, value: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"^{old}.{name} is now {home}.{name}$"):
        assert getattr(importlib.import_module(old), name) is value


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("detent", "analyse", "analyze"),
        ("detent", "exact", "bit_exact"),
        ("detent", "keeping_codes", "compress_saved_activations"),
        ("detent.algorithms", "analyse", "analyze"),
        ("detent.planning", "Offer", "SupportedSchemes"),
        ("detent.planning", "both", "quantize_io"),
        ("detent.planning", "takes", "quantize_inputs"),
    ],
)
def test_names_that_were_changed_warn(module: str, old: str, new: str) -> None:
    home = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"^{module}.{old} is now {module}.{new}$"):
        assert getattr(home, old) is getattr(home, new)


def test_old_fields_of_a_backend_warn() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Backend.shares is now Backend.passthrough$"):
        changed = replace(BACKENDS["openvino"], shares=())
    assert changed.passthrough == ()
    with pytest.warns(DeprecationWarning, match=r"^Backend.any_place is now Backend.arbitrary_qdq_placement$"):
        assert changed.any_place == BACKENDS["openvino"].arbitrary_qdq_placement
    with pytest.warns(DeprecationWarning, match=r"^Backend.ends_bits is now Backend.first_last_bits$"):
        made = Backend(
            name="toy", about="", weight=SupportedSchemes(), activation=SupportedSchemes(), rules={}, ends_bits=8
        )
    assert made.first_last_bits == 8
    with pytest.raises(AttributeError, match="'Backend' object has no attribute 'offers'"):
        _ = made.offers


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
