"""Tengine's lines."""

from __future__ import annotations

import numpy as np
import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.tengine import FORMAT, TengineGrid, read_scales
from tests.targets.parameter_files.sample import SCALES, UINT8, ZERO_POINTS, deployment


def test_lines_read_back_as_the_very_float32():
    found = read_scales(FORMAT.write(deployment("tengine", activation=UINT8, weight=UINT8)).files["tengine.scale"])
    assert {name: (np.float32(found[name].scale), found[name].zero_point) for name in SCALES} == {
        name: (np.float32(scale), ZERO_POINTS[name]) for name, scale in SCALES.items()
    }


def test_a_convolution_before_a_relu_has_the_grid_of_the_relu():
    found = read_scales(FORMAT.write(deployment("tengine", activation=UINT8, weight=UINT8)).files["tengine.scale"])
    assert found["conv1"] == found["relu1"] == TengineGrid(0.25, 0)


def test_weights_with_a_scale_for_each_channel_are_refused():
    with pytest.raises(DeployError, match=r"weight 'conv1.weight'.*as tengine_scale\n.*one scale"):
        FORMAT.write(deployment("tengine", activation=UINT8))


def test_a_name_with_a_space_is_refused():
    made = deployment("tengine", activation=UINT8, weight=UINT8)
    for node in made.model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["my add" if name == "add" else name for name in names]
    object.__setattr__(made.tensors[[t.tensor for t in made.tensors].index("add")], "tensor", "my add")
    with pytest.raises(DeployError, match="'my add' has a space"):
        FORMAT.write(made)


def test_what_is_no_line_is_refused():
    with pytest.raises(ArtifactError, match=r"'x 0\.5'"):
        read_scales(b"x 0.5\n")
