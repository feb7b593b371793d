"""The float network behind a deployed one has the operations of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detent.errors import OnnxError
from detent.rewrites import float_network
from detent.rewrites.original import Original
from detent.rewrites.undo import has_rewrites, undo
from detent.targets.rewrites import REWRITES, legalize
from tests.rewrites import test_conv_transpose_as_conv as transposed
from tests.rewrites import test_space_to_depth_strided_conv as strided
from tests.rewrites.quantized_op import run, types

NETWORKS: dict[str, Any] = {
    **{f"transposed, {name}": (transposed.network, given) for name, given in transposed.GEOMETRIES.items()},
    **{f"strided, {name}": (strided.network, given) for name, given in strided.GEOMETRIES.items()},
}


@pytest.mark.parametrize(("name", "relu"), [(name, index % 2 == 0) for index, name in enumerate(NETWORKS)])
def test_it_is_that_of_the_model(name: str, relu: bool) -> None:
    network, given = NETWORKS[name]
    before = network(**given, relu=relu)
    after = legalize(before, sorted(REWRITES))
    assert types(after) != types(before)
    plain, undone = float_network(before), float_network(after)
    assert types(undone) == types(plain)
    default = (2, 3, 14, 10) if name.startswith("strided") else (2, 6, 5, 7)
    shape = [2 if isinstance(size, str) else size for size in given.get("shape", default)]
    x = np.random.default_rng(1).normal(0, 4, shape).astype(np.float32)
    np.testing.assert_array_equal(run(undone, x), run(plain, x))
    again = undo(after)
    assert not has_rewrites(again)
    np.testing.assert_array_equal(run(again, x), run(before, x))
    assert {name: held.shape for name, held in undone.constants.items()} == {
        name: held.shape for name, held in plain.constants.items()
    }


def test_a_rewrite_of_another_release_is_refused(refuses: Any) -> None:
    network, given = NETWORKS[next(iter(NETWORKS))]
    after = legalize(network(**given, relu=False), sorted(REWRITES))
    ops = [replace(op, metadata=Original("later", {}, (), ()).metadata) if Original.of(op) else op for op in after.ops]
    with refuses(OnnxError, asked="undo the rewrite 'later'", found="conv_transpose_as_conv"):
        undo(replace(after, ops=tuple(ops)))
