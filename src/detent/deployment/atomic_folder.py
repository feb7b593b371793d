"""Writes a folder atomically: the folder is complete, or it does not change."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from detent.errors import ArtifactError
from detent.files import read_bytes, sync_folder, temporary_folder
from detent.ir.package import MANIFEST

__all__ = ["place", "target_of"]

_HERE, _RENAME_EXCHANGE = -100, 2  # AT_FDCWD and the flag of renameat2(2)
_PREFIX = ".detent-"  # of temporary folders that will replace a folder


def target_of(folder: str | Path) -> Path:
    """A path where an artifact can be written: a free path, an empty folder, or one that deploy wrote."""
    try:
        target = Path(folder).resolve()
        held = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
        taken = target.exists() and not target.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links is a RuntimeError up to Python 3.12
        raise _unwritable(folder, error) from None
    if taken:
        raise ArtifactError(f"deploy into {target}", "it is a file", "name a folder")
    if held and _manifest_files(target) is None:
        raise ArtifactError(
            f"deploy into {target}", "the folder holds files that Detent did not write", "name a new or empty folder"
        )
    _check_writable(target)
    return target


def _check_writable(target: Path) -> None:
    """Refuse a place that cannot be written or replaced, by making such folders beside it and removing them again."""
    there = next(parent for parent in target.parents if os.path.lexists(parent))
    try:
        with temporary_folder(there, _PREFIX) as tried:
            (tried / target.relative_to(there)).mkdir(parents=True)
    except OSError as error:
        raise _unwritable(target, error, there) from None
    fixed = "a mount point" if os.path.ismount(target) else "the current folder" if target == Path.cwd() else None
    if fixed is not None:
        raise ArtifactError(
            f"deploy into {target}",
            f"it is {fixed}, and an artifact takes the place of a folder as a whole",
            "name a folder inside of it",
        )


def place(target: Path, contents: Mapping[str, bytes]) -> None:
    """Write beside the target, then rename: whoever looks sees the old folder or the new one, complete.

    What lies in an old artifact's folder beside its own files (a report, notes, folders) stays there, and the folder
    keeps who may read it.
    """
    kept = _foreign_files(target, contents)
    try:
        mode = stat.S_IMODE(target.stat().st_mode) if target.is_dir() else 0o755
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target.parent, _PREFIX) as made:
            for name, content in contents.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            for path in kept:
                _copy(path, made / path.relative_to(target))
            made.chmod(mode)
            _swap(made, target)
        sync_folder(target.parent)
    except OSError as error:
        raise _unwritable(target, error) from None


def _unwritable(folder: str | Path, error: Exception, there: Path | None = None) -> ArtifactError:
    why = getattr(error, "strerror", None) or str(error)
    why += "" if there is None else f" (in {there}, where folders are made and renamed)"
    return ArtifactError(
        f"deploy into {str(folder)!r}", f"it cannot be written there: {why}", "name a folder that can be written"
    )


def _manifest_files(folder: Path) -> set[str] | None:
    """The files that the manifest in `folder` names; None if deploy did not write it: others write a manifest.json
    too, and what it stands beside is about to be replaced."""
    try:
        held = json.loads(read_bytes(folder / MANIFEST))
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(held, dict) and ("manifest_version" in held or "manifest version" in held)
    if not ours or not isinstance(held.get("files"), dict):
        return None
    return {MANIFEST, *held["files"]}


def _foreign_files(target: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Files that others put into the folder, including empty folders."""
    if not target.is_dir():
        return []
    named = _manifest_files(target) or set()
    found = [path for path in target.rglob("*") if path.is_symlink() or not path.is_dir() or not any(path.iterdir())]
    others = [path for path in found if path.relative_to(target).as_posix() not in named]
    hidden = [path.name for path in others if path.relative_to(target).as_posix() in contents]
    if hidden:
        raise ArtifactError(
            f"deploy into {target}", f"{hidden[0]} is there, and deploy did not write it", "move it elsewhere"
        )
    return others


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and not source.is_symlink():
        target.mkdir(exist_ok=True)
        shutil.copystat(source, target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _swap(made: Path, target: Path) -> None:
    """Put `made` in the place of `target`, and remove what was there."""
    if _rename(made, target):
        return
    if _exchange(made, target):
        shutil.rmtree(made)
    else:
        old = Path(tempfile.mkdtemp(prefix=".detent-old-", dir=target.parent))
        target.rename(old / "artifact")
        try:
            made.rename(target)
        except BaseException:
            (old / "artifact").rename(target)
            raise
        finally:
            shutil.rmtree(old)


def _rename(made: Path, target: Path) -> bool:
    """Whether the target did not exist; another process may create it meanwhile."""
    try:
        if not target.exists():
            made.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    return not made.exists()


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two folders atomically, if the system supports it, so that a program killed at any moment leaves one of
    them."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    return rename is not None and rename(_HERE, bytes(one), _HERE, bytes(other), _RENAME_EXCHANGE) == 0
