"""Deploying: a folder is written whole or not at all, and says everything about itself."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.deployment import atomic_folder as placing
from detent.deployment import deployment_of, write
from detent.errors import ArtifactError, DeployError, NotCalibratedError, UnknownNameError, install_hint
from detent.ir import Package, package
from detent.ir.package import MANIFEST
from detent.targets.base import Format, Written
from detent.targets.formats import FORMATS
from tests.deployment.float_path import prepared_for
from tests.models import MODELS


def small(backend: str = "onnxruntime", *, factor: float = 1.0):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 6)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    return prepared_for(net, (x * factor,), backend)


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_the_folder_holds_the_files_and_a_manifest_of_them(tmp_path):
    prepared = small("openvino")
    write(prepared, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {MANIFEST, *manifest["files"]}
    assert {"model.onnx", "model.xml", "model.bin"} <= found
    for name, expected in manifest["files"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == expected
    assert hidden(tmp_path) == []


def test_the_manifest_says_what_was_asked_and_what_came_out(tmp_path):
    prepared = small()
    write(prepared, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["manifest_version"] == 2
    assert (manifest["backend"], manifest["arithmetic"], manifest["engine"]) == ("onnxruntime",) * 3
    assert manifest["mode"] is None
    assert manifest["recipe"] == prepared.recipe.to_dict()
    assert manifest["plan"] == prepared.plan.to_dict()
    assert manifest["versions"] == {
        "detent": metadata.version("detent"),
        "torch": torch.__version__,
        "onnx": metadata.version("onnx"),
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    tensors = {tensor["tensor"]: tensor for tensor in manifest["tensors"]}
    assert set(tensors) == {entry.tensor for entry in prepared.plan.quantized}
    scale = prepared.get_submodule("0").parametrizations.weight[0].qparams().scale
    # Decimal text and back: the same float32.
    assert np.array_equal(np.asarray(tensors["0.weight"]["scale"], np.float32), scale.numpy())
    assert tensors["0.weight"]["zero_point"] == [0, 0, 0, 0]
    assert tensors["0.weight"]["scheme"] == prepared.plan.quantized[[*tensors].index("0.weight")].scheme.to_dict()
    assert tensors["0.weight"]["op"] in {node.name for node in deployment_of(prepared).model.graph.node}


def test_the_same_model_gives_the_same_bytes_wherever_they_are_put(tmp_path):
    for name in ("one", "two"):
        write(small("openvino"), tmp_path / name)
    one, two = (Package.load(tmp_path / name).manifest["files"] for name in ("one", "two"))
    assert set(one) == {"model.onnx", "model.xml", "model.bin"}
    assert one == two


def test_deploying_leaves_the_model_as_it_was(tmp_path):
    prepared = small().train()
    before = {name: tensor.clone() for name, tensor in prepared.state_dict().items()}
    write(prepared, tmp_path / "out")
    assert all(module.training for module in prepared.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in prepared.state_dict().items())


# ---- all or nothing ----


class Own(Format):
    """A format of what a function gives."""

    name = "mine"
    files: Mapping[str, Any] = {}

    def __init__(self, function):
        self.function = function

    def write(self, deployment):
        return Written(self.function(deployment))


def failing(_deployment):
    raise DeployError("write the format 'failing'", "it always fails", "do not ask for it")


def test_a_writer_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS._table, "failing", Own(failing))
    with pytest.raises(DeployError, match="it always fails"):
        write(small(), tmp_path / "out", files=["failing"])
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_fails_leaves_the_old_artifact(tmp_path, monkeypatch):
    write(small(), tmp_path / "out")
    before = (tmp_path / "out" / MANIFEST).read_bytes()
    monkeypatch.setitem(FORMATS._table, "failing", Own(failing))
    with pytest.raises(DeployError):
        write(small(factor=2.0), tmp_path / "out", files=["failing"])
    assert (tmp_path / "out" / MANIFEST).read_bytes() == before
    Package.load(tmp_path / "out")


def test_a_full_disk_leaves_the_old_artifact(tmp_path, monkeypatch):
    write(small(), tmp_path / "out")
    before = (tmp_path / "out" / MANIFEST).read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match="it cannot be written there: No space left on device"):
        write(small(factor=2.0), tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).read_bytes() == before
    assert hidden(tmp_path) == []
    Package.load(tmp_path / "out")


KILLED = """
    import os, signal, sys
    import torch
    from torch import nn
    import detent
    from detent.deployment import write

    torch.set_num_threads(1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(2, 3, 6, 6)
    prepared = detent.prepare(net, (x,), backend="onnxruntime")
    detent.calibrate(prepared, [x])
    folder, where = sys.argv[1], sys.argv[2]
    write(prepared, folder)

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "writing":
        os.fsync = die
    else:  # the new folder is in place, what was there is still to be removed
        import shutil
        shutil.rmtree = die
    detent.calibrate(prepared, [x * 2])
    write(prepared, folder)
"""


@pytest.mark.by_default("replacing")
@pytest.mark.parametrize("where", ["writing", "replacing"])
def test_a_program_that_is_killed_leaves_a_whole_artifact(where, tmp_path):
    script = textwrap.dedent(KILLED)
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path / "out"), where], timeout=300, check=False)
    assert ended.returncode == -signal.SIGKILL
    Package.load(tmp_path / "out")  # every hash is right
    assert hidden(tmp_path) != []  # what was being written lies beside, under a name that nobody reads
    write(small(), tmp_path / "out")
    Package.load(tmp_path / "out")


def test_where_folders_cannot_change_places_they_are_moved(tmp_path, monkeypatch):
    monkeypatch.setattr(placing, "_exchange", lambda *_: False)
    write(small(), tmp_path / "out")
    before = (tmp_path / "out" / MANIFEST).read_bytes()
    write(small(factor=2.0), tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).read_bytes() != before
    assert hidden(tmp_path) == []

    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if Path(target) == tmp_path / "out" and self.name != "artifact":
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    now = (tmp_path / "out" / MANIFEST).read_bytes()
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ArtifactError, match="Permission denied"):
        write(small(), tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).read_bytes() == now
    assert hidden(tmp_path) == []


# ---- where to ----


def test_an_artifact_is_replaced_whole(tmp_path):
    write(small("openvino"), tmp_path / "out")
    write(small("onnxruntime"), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {MANIFEST, "model.onnx"}
    assert Package.load(tmp_path / "out").manifest["backend"] == "onnxruntime"


@pytest.mark.parametrize("manifest", [None, '{"name": "a web page"}', "[]", "not JSON"])
def test_a_folder_of_somebody_else_is_refused(manifest, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    if manifest is not None:
        (tmp_path / "out" / MANIFEST).write_text(manifest)
    with pytest.raises(ArtifactError, match="files that Detent did not write"):
        write(small(), tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ArtifactError, match="it is a file"):
        write(small(), tmp_path / "out")


def test_nor_is_anything_else_that_is_there(tmp_path):
    """It would change places with the artifact, and root may do that with a device."""
    os.mkfifo(tmp_path / "out")
    with pytest.raises(ArtifactError, match="it is a file"):
        write(small(), tmp_path / "out")
    assert (tmp_path / "out").is_fifo()


def test_where_nothing_can_be_written_the_system_says_why(tmp_path):
    (tmp_path / "file").write_text("a file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for folder in (tmp_path / "file" / "out", tmp_path / "loop" / "out", tmp_path / ("long" * 100), f"{tmp_path}/\0"):
        with pytest.raises(ArtifactError, match="it cannot be written there: "):
            write(small(), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


def test_the_current_folder_is_not_replaced_under_the_feet_of_who_is_in_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="it is the current folder"):
        write(small(), ".")
    assert list(tmp_path.iterdir()) == []


def test_nor_is_a_mount_point_which_cannot_be_renamed(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "volume")
    (tmp_path / "volume").mkdir()
    with pytest.raises(ArtifactError, match="it is a mount point") as caught:
        write(small(), tmp_path / "volume")
    assert caught.value.to_do == "name a folder inside of it"


def test_two_deploys_to_one_free_place_leave_one_whole_artifact(tmp_path, monkeypatch):
    """Another process takes the place between the question whether it is free and the rename."""
    rename, other = Path.rename, small(factor=3.0)

    def late(self, target):
        monkeypatch.setattr(Path, "rename", rename)
        write(other, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    write(small(), tmp_path / "out")
    held = Package.load(tmp_path / "out").manifest["files"]["model.onnx"]
    write(small(), tmp_path / "again")
    assert held == Package.load(tmp_path / "again").manifest["files"]["model.onnx"]
    assert hidden(tmp_path) == []


def test_an_artifact_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    write(small("openvino"), tmp_path / "out")
    digest, newer = package.digest, small("onnxruntime")

    def late(content):
        monkeypatch.setattr(package, "digest", digest)
        write(newer, tmp_path / "out")
        return digest(content)

    monkeypatch.setattr(package, "digest", late)
    assert Package.load(tmp_path / "out").manifest["backend"] == "onnxruntime"


def test_a_folder_that_a_library_needs_for_a_moment_and_has_not(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(FORMATS._table, "mine", Own(full))
    with pytest.raises(DeployError, match="No space left on device") as caught:
        write(small(), tmp_path / "out", files=["mine"])
    assert "TMPDIR" in caught.value.to_do
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("pte", "executorch", "executorch"),
        ("openvino_ir", "openvino", "openvino"),
        ("tflite", "ai_edge_litert", "litert"),
    ],
)
def test_a_format_whose_package_is_missing_is_refused_before_anything_is_computed(
    name, package, extra, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    not_calibrated = detent.prepare(nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 6, 6),), backend="onnxruntime")
    with pytest.raises(DeployError, match=f"write the format '{name}'\nfound: {package} is not installed") as caught:
        write(not_calibrated, tmp_path / "out", files=[name])
    assert caught.value.to_do == install_hint(extra)


def test_what_others_put_beside_the_files_of_an_artifact_stays(tmp_path):
    out = tmp_path / "out"
    write(small("openvino"), out)
    (out / "report.html").write_text("what was found")
    (out / "mine").mkdir()
    (out / "mine" / "notes.txt").write_text("years of work")
    (out / "link").symlink_to("report.html")
    write(small("onnxruntime"), out)
    assert {path.name for path in out.iterdir()} == {MANIFEST, "model.onnx", "report.html", "mine", "link"}
    assert (out / "mine" / "notes.txt").read_text() == "years of work"
    assert os.readlink(out / "link") == "report.html"


def test_a_file_of_somebody_else_is_not_replaced(tmp_path):
    write(small("onnxruntime"), tmp_path / "out")
    (tmp_path / "out" / "model.xml").write_text("not ours")
    with pytest.raises(ArtifactError, match=r"model\.xml is there, and deploy did not write it"):
        write(small("openvino"), tmp_path / "out")
    assert (tmp_path / "out" / "model.xml").read_text() == "not ours"
    assert hidden(tmp_path) == []


def test_folders_on_the_way_are_made_and_an_empty_one_is_taken(tmp_path, monkeypatch):
    write(small(), tmp_path / "a" / "b")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    write(small(), "empty")
    assert Package.load("empty").manifest["backend"] == "onnxruntime"


# ---- what is refused ----


def test_deploying_before_calibration_names_the_tensors(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    prepared = detent.prepare(net, (torch.randn(2, 3, 6, 6),), backend="onnxruntime")
    with pytest.raises(NotCalibratedError) as caught:
        write(prepared, tmp_path / "out")
    assert caught.value.found.startswith("these tensors have no scale: ")
    for tensor in ("0.weight", "2.weight", "input"):
        assert tensor in caught.value.found
    assert list(tmp_path.iterdir()) == []


def test_a_graph_break_is_refused_and_nothing_is_written(tmp_path):
    torch.manual_seed(0)
    entry = MODELS["control_flow"]
    prepared = prepared_for(entry.build(), entry.inputs(), "onnxruntime")
    with pytest.raises(DeployError, match="gate"):
        write(prepared, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_one_format_is_given_in_a_list(tmp_path):
    with pytest.raises(DeployError, match=r"give \['tflite'\]"):
        write(small(), tmp_path / "out", files="tflite")


def test_an_unknown_format_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(UnknownNameError, match="tflite"):
        write(small(), tmp_path / "out", files=["tflight"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["../outside.txt", "/etc/outside.txt", "model.onnx", MANIFEST])
def test_a_writer_may_not_leave_the_folder_or_replace_a_file(file, tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS._table, "mine", Own(lambda _: {file: b""}))
    with pytest.raises(DeployError, match="write the format 'mine'"):
        write(small(), tmp_path / "out", files=["mine"])


def test_a_file_in_a_folder_of_its_own_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS._table, "mine", Own(lambda deployment: {"inner/notes.txt": deployment.name.encode()}))
    write(small(), tmp_path / "out", files=["mine"])
    assert (tmp_path / "out" / "inner" / "notes.txt").read_bytes() == b"model"
    Package.load(tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_model_that_was_turned_into_another_precision_is_refused(dtype, tmp_path):
    prepared = small().to(dtype)
    with pytest.raises(DeployError, match=r"prepared\.float\(\)"):
        write(prepared, tmp_path / "out")
    write(prepared.float(), tmp_path / "out")
