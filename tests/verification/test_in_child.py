"""`Artifact.verify` of a folder that this process did not write: in a child, whose end is an error."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import detent
from detent import artifact as artifact_module
from detent.errors import EngineError, RangeError, TensorError
from detent.ir.package import MANIFEST, digest
from detent.verification import Accuracy, Cause, Difference, OnCpu, Speed, Verdict

X = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.conv(x)).flatten(1)


def deployed(folder: Path, backend: str) -> detent.Artifact:
    prepared = detent.prepare(Sum(), (X,), backend=backend, recipe="ptq")
    detent.calibrate(prepared, [X])
    detent.deploy(prepared, folder)
    return detent.Artifact.load(folder)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> detent.Artifact:
    return deployed(tmp_path_factory.mktemp("own") / "out", "onnxruntime")


def change(folder: Path, name: str, content: bytes) -> detent.Artifact:
    """The artifact with another file in it, and a manifest that knows it."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][name] = digest(content)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return detent.Artifact.load(folder)


def with_scale_of_the_sum(content: bytes, scale: float) -> bytes:
    flatbuffers = pytest.importorskip("flatbuffers")
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    graph = model.subgraphs[0]
    for operator in graph.operators:
        if model.operatorCodes[operator.opcodeIndex].builtinCode == schema.BuiltinOperator.ADD:
            graph.tensors[operator.outputs[0]].quantization.scale = [scale]
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def test_a_file_that_ends_its_engine_is_an_error(tmp_path: Path) -> None:
    """LiteRT aborts where the scales of a sum are too far apart."""
    folder = deployed(tmp_path / "out", "litert").folder
    content = with_scale_of_the_sum((folder / "model.tflite").read_bytes(), 1e-12)
    with pytest.raises(EngineError, match=r"SIGABRT ended the process in which litert ran .*model\.tflite") as caught:
        change(folder, "model.tflite", content).verify([X])
    assert str(folder) in caught.value.asked


def test_the_verdict_is_that_of_this_process(loaded: detent.Artifact) -> None:
    def batches() -> Iterator[object]:
        yield (X.clone().requires_grad_() * 1, torch.tensor([0, 1, 2, 3]))
        yield [X.numpy()[:2], [0, 1]]

    here = loaded.verify(batches(), isolate=False, latency=False)
    assert here.holds
    assert here.accuracy is not None
    assert here.placements
    assert loaded.verify(batches(), isolate=True, latency=False) == here
    named = [{next(iter(loaded.graph.inputs)): X}]
    assert loaded.verify(named, isolate=True, engine="onnxruntime", tensors=False).speed is not None


def test_what_it_refuses_is_refused_here(loaded: detent.Artifact) -> None:
    # A child that has answered reads no more batches: these have no end.
    with pytest.raises(TensorError, match=r"of shape \(1, 3, 9, 9\)"):
        loaded.verify((torch.zeros(1, 3, 9, 9) for _ in itertools.count()), isolate=True)
    with pytest.raises(TensorError, match="it contains no batches"):
        loaded.verify(5, isolate=True)  # type: ignore[arg-type]

    def failing() -> Iterator[torch.Tensor]:
        yield X
        raise LookupError("the loader's own")

    with pytest.raises(LookupError, match="the loader's own"):
        loaded.verify(failing(), isolate=True)


@pytest.mark.full
def test_no_batches_are_refused_by_the_child(loaded: detent.Artifact) -> None:
    with pytest.raises(RangeError, match="the batches are empty"):
        loaded.verify([], isolate=True)


def test_only_what_this_process_did_not_write_is_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = deployed(tmp_path / "out", "onnxruntime")
    isolated: list[Path] = []
    monkeypatch.setattr(artifact_module, "verify_in_child", lambda package, *_, **__: isolated.append(package.folder))
    assert own.verify([X], latency=False).holds
    assert not isolated
    own.verify([X], isolate=True)
    other = change(own.folder, "model.onnx", own.model.SerializeToString() + b"\x1a\x00")  # an empty domain
    assert other.verify([X], isolate=False, latency=False).holds
    assert isolated == [own.folder]
    other.verify([X])
    assert isolated == [own.folder] * 2


def test_a_verdict_is_read_back_from_json() -> None:
    difference = Difference("a", "twin vs engine", 8, 1, 2.0, "LSB", 1, must_equal=True)
    verdict = Verdict(
        backend="b",
        engine="e 1",
        arithmetic="a",
        claim="equal",
        samples=3,
        outputs=(difference,),
        tensors=(difference, difference),
        problems=("one",),
        placements=({"op": "conv", "kind": "Conv", "ran_as": "integer", "why": ""},),
        accuracy=Accuracy(3, None, 66.7, 33.3),
        speed=Speed(1.5, 3.0, 1.6, 3.2),
        notes=("note",),
        simulated=False,
        unsaid=("t",),
        cpu="avx2",
        others=(OnCpu("vnni", 3, 8, 0, 0.0, "LSB", (difference,), 50.0, ("vnni", "amx")),),
        predicted=(OnCpu("arm64", 3, 8, 0, float("inf"), "LSB"),),
        exact_on=("avx2",),
        causes=(Cause("what", "why", "do"),),
        sqnr={"y": 30.5},
    )
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict
