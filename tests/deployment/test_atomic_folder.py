"""An artifact takes the place of a folder as a whole: killed at any line, with other things in it, of any mode."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from detent.deployment.atomic_folder import place, target_of
from detent.errors import ArtifactError
from tests.killing import printed

FILES = {"model.onnx": "", "inner/model.bin": ""}
OLD = {"manifest.json": json.dumps({"manifest_version": 2, "files": FILES}).encode(), "model.onnx": b"old"}
NEW = {**OLD, "model.onnx": b"new", "inner/model.bin": b"more"}

PROGRAM = """
import json, sys
from pathlib import Path
import detent.files
from detent.deployment import atomic_folder
from tests.deployment.test_atomic_folder import NEW, OLD
from tests.killing import Saving

saving = Saving(detent.files, atomic_folder)
states = []
for line in range(1, 10_000, int(sys.argv[3])):
    target = Path(sys.argv[1]) / str(line) / "out"
    if sys.argv[2] == "onto an old one":
        atomic_folder.place(target, OLD)
        (target / "notes.txt").write_text("mine")
    ended = saving.ended(lambda: atomic_folder.place(atomic_folder.target_of(target), NEW), line)
    found = {str(p.relative_to(target)): p.read_text() for p in sorted(target.rglob("*")) if p.is_file()}
    atomic_folder.place(atomic_folder.target_of(target), NEW)  # and the next one sweeps
    left = sorted(path.name for path in target.parent.iterdir())
    states.append([ended, found, left])
    if ended == 0:
        break
print(json.dumps(states))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="folders change places in one step on Linux")
@pytest.mark.parametrize(
    ("way", "every"),
    [
        ("onto an old one", 3),
        pytest.param("onto an old one", 1, marks=pytest.mark.full),
        pytest.param("into a free place", 1, marks=pytest.mark.full),
    ],
)
def test_killed_at_a_line_it_is_the_old_folder_or_the_new_one(tmp_path: Path, way: str, every: int) -> None:
    states = json.loads(printed(tmp_path / "temporary", "-c", PROGRAM, tmp_path / "runs", way, str(every)))
    assert len(states) > 60 // every, "lines at which it was killed"
    assert [ended for ended, _, _ in states] == [-9] * (len(states) - 1) + [0]
    before, after = ({name: content.decode() for name, content in held.items()} for held in (OLD, NEW))
    if way == "onto an old one":
        before, after = ({**held, "notes.txt": "mine"} for held in (before, after))
    else:
        before = {}
    for _, found, left in states:
        assert found in (before, after)
        assert left == ["out"], "nothing is left over"
    assert states[0][1] == before
    assert states[-1][1] == after


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_the_folder_keeps_its_mode_and_what_is_beside(tmp_path: Path, mode: int) -> None:
    out = tmp_path / "out"
    place(out, OLD)
    assert stat.S_IMODE(out.stat().st_mode) == 0o755
    out.chmod(mode)
    (out / "empty" / "inside").mkdir(parents=True)
    (out / "empty" / "inside").chmod(0o700)
    (out / "notes.txt").write_text("mine")
    place(target_of(out), NEW)
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert stat.S_IMODE((out / "empty" / "inside").stat().st_mode) == 0o700
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "model.onnx").read_bytes() == b"new"


@pytest.mark.parametrize("files", [None, 5, [[5, "x"]], ["model.onnx"]], ids=["null", "number", "pairs", "list"])
def test_a_manifest_of_another_form_is_no_artifact(tmp_path: Path, files: object) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"manifest_version": 2, "files": files}))
    with pytest.raises(ArtifactError, match="files that Detent did not write"):
        target_of(tmp_path)


def test_a_manifest_nested_without_end_is_none_either(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(ArtifactError, match="files that Detent did not write"):
        target_of(tmp_path)
