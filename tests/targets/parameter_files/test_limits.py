"""One grid for a tensor: what formats by tensor name cannot say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from detent.errors import DeployError
from detent.targets.base import Deployment
from detent.targets.base.content import as_json, shortest
from detent.targets.base.limits import by_name, float_readers
from tests.targets.parameter_files.sample import deployment


def again(made: Deployment, tensor: str, **changes: object) -> Deployment:
    """The same with one activation listed twice, the second time changed."""
    one = next(found for found in made.tensors if found.tensor == tensor)
    return replace(made, tensors=(*made.tensors, replace(one, **changes)))


def test_a_tensor_listed_twice_on_one_grid_is_one():
    made = deployment("tensorrt")
    assert list(by_name(again(made, "relu1"), "some")) == list(by_name(made, "some"))


def test_a_tensor_on_two_grids_is_refused():
    made = again(deployment("tensorrt"), "relu1", scale=np.float32(0.125))
    with pytest.raises(DeployError, match=r"'relu1'.*as some\n.*one grid for a tensor"):
        by_name(made, "some")


def test_a_tensor_that_somebody_reads_in_float_is_noted():
    made = deployment("tensorrt")
    node = next(node for node in made.model.graph.node if node.name == "add")
    node.input[0] = "relu1"
    assert float_readers(made, "some") == (
        "some has one grid for a tensor: relu1 will be quantized for all that read it, "
        "also where model.onnx has it in float",
    )
    assert float_readers(deployment("tensorrt"), "some") == ()


def test_lists_of_numbers_stand_on_one_line():
    value = {"a": [1, -2.5, 1e-07], "b": [[8, 7]], "c": ["[\n1\n]"], "d": [{"e": [3]}]}
    text = as_json(value).decode()
    assert '"a": [1, -2.5, 1e-07],' in text
    assert '"b": [[8, 7]],' in text
    assert '"e": [3]' in text
    assert json.loads(text) == value


@pytest.mark.parametrize("value", [0.1, 1 / 3, 2.0**-30, 1234567.9, 5e-45])
def test_the_shortest_text_is_the_same_float32(value):
    assert np.float32(float(shortest(np.float32(value)))) == np.float32(value)
