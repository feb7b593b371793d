"""An engine whose answers are wrong: none of them holds, whatever is compared. It is wrong in the second batch only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from detent.artifact import Artifact
from detent.targets.engines import ENGINES
from detent.verification import Verdict
from tests.verification.mutants import INSTALLED, LAYERS, NETS, batches, made, mutate_layer, mutate_run


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    found: dict[tuple[str, str], Artifact] = {}

    def artifact(backend: str, kind: str) -> Artifact:
        if (backend, kind) not in found:
            found[backend, kind] = made(backend, kind, tmp_path_factory.mktemp("made") / "out")
        return found[backend, kind]

    return artifact


def swapped(outputs):
    return {name: values[:, [1, 0, *range(2, values.shape[1])]] for name, values in outputs.items()}


def not_a_number(outputs):
    return {
        name: np.where(np.arange(values.size).reshape(values.shape) == 7, np.float32(np.nan), values)
        for name, values in outputs.items()
    }


OWN = {"mnn": pytest.mark.mnn, "executorch_xnnpack": pytest.mark.executorch, "qnn": pytest.mark.qnn}
ENGINES_HERE = [pytest.param(name, marks=OWN[name]) if name in OWN else name for name in INSTALLED]
"""Those with an environment of their own, which `make test-engines` runs, are marked."""


OUTPUTS: dict[str, Callable] = {"swapped outputs": swapped, "not a number": not_a_number}


in_each_mode = pytest.mark.parametrize("tensors", [True, False], ids=["every tensor", "ends"])
beside_or_not = pytest.mark.parametrize("simulated", [True, False], ids=["with simulation", "file alone"])


def verdict_on(artifact: Artifact, *, tensors: bool, simulated: bool) -> Verdict:
    given = artifact if simulated else Artifact.load(artifact.folder)
    return given.verify(batches(), latency=False, tensors=tensors)


@pytest.mark.pairwise
@in_each_mode
@beside_or_not
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("backend", ENGINES_HERE)
def test_what_is_right_holds(backend, kind, tensors, simulated, deployed):
    verdict = verdict_on(deployed(backend, kind), tensors=tensors, simulated=simulated)
    assert verdict.holds, verdict.problems


@pytest.mark.pairwise
@in_each_mode
@beside_or_not
@pytest.mark.parametrize("shows", [True, False], ids=["inside and out", "outputs alone"])
@pytest.mark.parametrize("mutant", LAYERS)
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("backend", ENGINES_HERE)
def test_a_layer_that_is_wrong_is_caught(backend, kind, mutant, shows, tensors, simulated, deployed, monkeypatch):
    artifact = deployed(backend, kind)
    mutate_layer(monkeypatch, artifact, LAYERS[mutant], shows=shows)
    verdict = verdict_on(artifact, tensors=tensors, simulated=simulated)
    assert not verdict.holds
    if shows:
        assert verdict.problems[0].startswith(("conv2:", "relu2:")), verdict.problems


@pytest.mark.pairwise
@in_each_mode
@beside_or_not
@pytest.mark.parametrize("mutant", OUTPUTS)
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("backend", ENGINES_HERE)
def test_outputs_that_are_wrong_are_caught(backend, kind, mutant, tensors, simulated, deployed, monkeypatch):
    artifact = deployed(backend, kind)
    engine = ENGINES[artifact.manifest["engine"]]
    run = engine.run
    mutate_run(monkeypatch, engine, lambda self, given: OUTPUTS[mutant](run(self, given)))
    assert not verdict_on(artifact, tensors=tensors, simulated=simulated).holds
