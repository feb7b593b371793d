"""What `import detent` offers."""

from __future__ import annotations

import importlib
import inspect

import pytest

import detent


@pytest.mark.parametrize("name", detent.__all__)
def test_every_public_name_is_found_and_documented(name):
    assert inspect.getdoc(getattr(detent, name))


@pytest.mark.parametrize("name", ["IntGrid", "PerChannel", "QParams", "Scheme", "algorithms", "errors", "training"])
def test_names_beside_them_still_work(name):
    assert name not in detent.__all__
    assert getattr(detent, name).__name__.rpartition(".")[2] == name


def test_deploy_is_the_function_whatever_is_imported():
    importlib.import_module("detent.artifact")
    assert inspect.isfunction(detent.deploy)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'detent' has no attribute 'quantise'"):
        _ = detent.quantise
