"""Reading and writing files, temporary folders and locks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from detent import files
from detent.errors import ArtifactError

DEAD = 2**22 + 1  # past the greatest number of a process on Linux


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert files.read_bytes(tmp_path / "a") == files.read_bytes(tmp_path / "link", most=7) == b"content"


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(bytes(11))
    for name in ("pipe", "zero"):
        with pytest.raises(OSError, match="not a regular file"):
            files.read_bytes(tmp_path / name)
    with pytest.raises(OSError, match="11 bytes, and at most 10"):
        files.read_bytes(tmp_path / "large", most=10)
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "gone")
    with pytest.raises(OSError, match="null byte"):
        files.read_bytes("a\0b")


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_bytes(tmp_path / "a", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_bytes(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_what_killed_processes_left_is_swept_and_what_others_use_is_not(tmp_path: Path) -> None:
    (tmp_path / f".a.{DEAD}-0.partial").touch()
    (tmp_path / f".a.{os.getppid()}-99.partial").touch()
    files.write_bytes(tmp_path / "a", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".a.{os.getppid()}-99.partial", "a"]

    (tmp_path / f"detent-{DEAD}-x" / "inside").mkdir(parents=True)
    (tmp_path / "detent-mine").mkdir()
    with files.temporary_folder(tmp_path) as made:
        assert sorted(path.name for path in tmp_path.glob("detent-*")) == sorted([made.name, "detent-mine"])
        with files.temporary_folder(tmp_path) as second:
            assert made.is_dir()
            assert second != made
    assert [path.name for path in tmp_path.glob("detent-*")] == ["detent-mine"]


def test_a_lock_outlasts_the_name_of_its_holder(tmp_path: Path) -> None:
    """A process of another container has a number that says nothing here; its lock does."""
    import fcntl

    other = tmp_path / f"detent-{DEAD}-x"
    other.mkdir()
    descriptor = os.open(other, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with files.temporary_folder(tmp_path):
        assert other.is_dir()
    os.close(descriptor)
    with files.temporary_folder(tmp_path):
        assert not other.exists()


def test_a_folder_is_locked_by_one(tmp_path: Path) -> None:
    with (
        files.locked(tmp_path, "train"),
        pytest.raises(ArtifactError, match=f"in use by process {os.getpid()}"),
        files.locked(tmp_path, "train again"),
    ):
        pass
    with files.locked(tmp_path, "train"):
        pass


HOLDING = """
import sys, time
from detent.files import reserved
with reserved(sys.argv[1], ""):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_that_is_replaced_is_reserved_beside_it(tmp_path: Path) -> None:
    """By one process, for itself and no other folder, whether it is there or not; a killed one holds nothing."""
    target = tmp_path / "new" / "out"
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(target)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ArtifactError, match=f"{target} is in use by process {holder.pid} since 2"),
            files.reserved(target, "deploy"),
        ):
            pass
        with files.reserved(tmp_path / "other", "deploy"):
            pass
        holder.kill()
    assert len(list(tmp_path.iterdir())) == 1
    with files.reserved(target, "deploy"), files.reserved(target, "deploy, inside of quantize"):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_open_lock", full)
    with pytest.raises(ArtifactError, match="No space left"), files.reserved(tmp_path / "out", "deploy"):
        pass


def test_a_folder_left_by_a_killed_process_goes_with_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom detent.files import temporary_folder\n"
        "with temporary_folder(sys.argv[1]):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=300).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    with files.temporary_folder(tmp_path) as made:
        assert list(tmp_path.iterdir()) == [made]


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """As root, `-o /dev/null` would be the end of it for everybody."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(OSError, match="not a regular file"):
            files.write_bytes(tmp_path / name, b"content")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["null", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    """A lock is signed: through a link that would be the end of another file."""
    (tmp_path / "precious").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / files.LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"), files.locked(run, "train"):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
    (run / files.LOCK).unlink()
    os.mkfifo(run / files.LOCK)
    with pytest.raises(OSError, match="not a regular file"), files.locked(run, "train"):
        pass


def test_permissions_are_there_before_the_name_is(tmp_path: Path) -> None:
    """Another process removes a kernel that others could have written."""
    before = os.umask(0)
    try:
        files.write_bytes(tmp_path / "all", b"")
        files.write_bytes(tmp_path / "mine", b"", mode=0o600)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("all", "mine")] == [0o666, 0o600]


@pytest.mark.parametrize("name", [".", "..", "/", ""])
def test_a_folder_is_not_written_to_as_a_file(name: str) -> None:
    with pytest.raises(IsADirectoryError):
        files.write_bytes(name, b"content")


def test_a_name_may_have_the_letters_of_patterns(tmp_path: Path) -> None:
    """And what a killed process left of it is swept, not of others."""
    name = "a**b[1]?.html"
    for left in (f".{name}.99999999-0.partial", ".axxb1c.html.99999999-0.partial"):
        (tmp_path / left).write_bytes(b"half")
    files.write_bytes(tmp_path / name, b"content")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".axxb1c.html.99999999-0.partial", name]
    assert (tmp_path / name).read_bytes() == b"content"


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder", "missing/file"):
        with pytest.raises(OSError, match="directory") as caught:
            files.write_bytes(tmp_path / name, b"content")
        assert caught.value.filename == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
