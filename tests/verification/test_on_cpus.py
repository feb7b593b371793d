"""What the twin says of other kinds of CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from detent.artifact import Artifact
from detent.cpus import CPUS, X86
from detent.errors import UnknownNameError
from detent.ir.package import MANIFEST
from detent.targets.onnxruntime.arithmetic.onnxruntime import OnnxRuntime
from detent.twin import Twin
from detent.verification.on_cpus import group_kinds
from tests.verification.mutants import batches, made

LABELED = [(x, torch.tensor([0, 1, 2, 3])) for x in batches()]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Artifact:
    return made("onnxruntime", "plain", tmp_path_factory.mktemp("narrow") / "out")


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Artifact:
    """With pairs of weights that saturate."""
    return made("onnxruntime", "plain", tmp_path_factory.mktemp("wide") / "out", bits=8)


def test_kinds_that_run_the_same_program_are_run_once(narrow):
    apart = group_kinds(Twin(narrow.graph, OnnxRuntime("amx")))
    assert apart["amx"] == ("vnni", "amx")
    assert sorted(name for alike in apart.values() for name in alike) == sorted(CPUS)


def test_weights_of_7_bits_are_the_same_on_every_x86_cpu(narrow):
    verdict = narrow.verify(batches(), latency=False)
    assert verdict.cpu == OnnxRuntime.local_cpu().name
    assert {name for row in verdict.others if not row.differing for name in row.alike} >= {*X86} - {verdict.cpu}
    assert not any(row.saturating for row in verdict.others)
    assert f"CPU: {verdict.cpu}; " in str(verdict)


def test_what_is_predicted_is_what_the_twin_of_that_cpu_gives(wide):
    """Accuracy, differing outputs against the CPU at hand, and the layers that saturate."""
    verdict = wide.verify(LABELED, latency=False, cpus=("avx2", "vnni", "arm64"))
    rows = {row.cpu: row for row in verdict.predicted}
    assert list(rows) == ["avx2", "vnni", "arm64"]
    at_hand = Twin(wide.graph, OnnxRuntime())
    (output,) = wide.graph.outputs
    for name, row in rows.items():
        twin = Twin(wide.graph, OnnxRuntime(name))
        given = [{"x": x.numpy()} for x in batches()]
        found = [twin.run(each)[output.name] for each in given]
        differing = sum(int((a != at_hand.run(each)[output.name]).sum()) for a, each in zip(found, given, strict=True))
        right = np.concatenate([a.argmax(1) == np.arange(4) for a in found])
        assert (row.differing, row.accuracy, row.samples) == (differing, 100 * right.mean(), 8)
    assert rows["avx2"].saturating[0].tensor == "relu1"
    assert not rows["vnni"].saturating
    assert "  on vnni: top-1 " in str(verdict)
    assert json.loads(json.dumps(verdict.to_dict()))["predicted"][0]["saturating"][0]["tensor"] == "relu1"


def test_layers_that_saturate_are_counted_from_the_same_inputs(wide):
    """By hand: each layer of the CPU that saturates against one that does not."""
    verdict = wide.verify(batches(), latency=False, tensors=False, cpus=("avx2",))
    saturating, plain = (Twin(wide.graph, OnnxRuntime(cpu)) for cpu in ("avx2", "avx_vnni"))
    counts = dict.fromkeys(("relu1", "relu2"), 0)
    for x in batches():
        inside = saturating.tensors({"x": x.numpy()})
        others = plain.tensors({"x": x.numpy()}, inside)
        for name in counts:
            counts[name] += int((inside[name] != others[name]).sum())
    found = {layer.tensor: layer.differing for layer in verdict.predicted[0].saturating}
    assert {name: found.get(name, 0) for name in counts} == counts
    assert counts["relu1"] > 0


def test_other_cpus_differ_is_said_in_one_line(wide):
    (line,) = [line for line in str(wide.verify(batches(), latency=False)).splitlines() if line.startswith("CPU: ")]
    assert "; other CPUs differ (by the twin, on 4 samples): " in line


@pytest.mark.parametrize(
    ("cpu", "said"), [("sse2", "not one of avx2"), ("arm64", "not on arm64: .* outputs .* differ")]
)
def test_a_cpu_that_is_not_known_is_refused(cpu, said, tmp_path):
    """OpenVINO's arithmetic is that of x86."""
    artifact = made("openvino", "plain", tmp_path / "out")
    with pytest.raises(UnknownNameError, match=said):
        artifact.verify(batches(), cpus=(cpu,))


def claiming(artifact: Artifact, cpus: list[str], folder) -> Artifact:
    manifest = {**artifact.manifest, "cpus": cpus}
    for name in artifact.manifest["files"]:
        (folder / name).write_bytes((artifact.folder / name).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return Artifact.load(folder)


def test_what_the_manifest_says_is_shown(narrow, tmp_path):
    verdict = claiming(narrow, list(X86), tmp_path).verify(batches(), latency=False)
    assert verdict.holds, verdict.problems
    assert f"exact on: {', '.join(X86)} (according to the manifest)" in str(verdict).splitlines()


@pytest.mark.parametrize("asked", [(), ("vnni",)])
def test_a_manifest_that_claims_a_cpu_that_saturates_is_a_problem(asked, wide, tmp_path):
    verdict = claiming(wide, ["avx2", "vnni"], tmp_path).verify(batches(), latency=False, cpus=asked)
    assert not verdict.holds
    said = "the manifest says that the file computes the same integers on avx2: the twin says that products saturate"
    assert any(said in problem for problem in verdict.problems)
    true = claiming(wide, ["avx_vnni", "vnni", "amx"], tmp_path).verify(batches(), latency=False, cpus=asked)
    assert true.holds, true.problems
