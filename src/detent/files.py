"""Files and folders: reading never blocks and is bounded in size; writing is atomic.

    read_bytes(path, most=...)      a regular file, no larger than that
    write_bytes(path, content)      the whole file under its name, on disk, or what was there before
    temporary_folder()              removed at the end, or by a later process if this one is killed
    locked(folder)                  one process at a time; the others are told who
    reserved(folder)                the same of a folder that is replaced as a whole

What is unfit to be read is an `OSError`, as a missing file is, so that callers have one thing to catch.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from detent.errors import ArtifactError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: no lock is held there, and nothing is swept
    fcntl = None

__all__ = ["locked", "read_bytes", "reserved", "sync_folder", "temporary_folder", "write_bytes"]

PREFIX, PARTIAL = "detent-", ".partial"
LOCK, RESERVED = ".lock", ".detent-"
_OWNER = re.compile(r"(\d+)-[^-]*$")  # in the names of temporary files

_count = itertools.count()
_reserved: set[Path] = set()


def read_bytes(path: str | os.PathLike[str], *, most: int | None = None) -> bytes:
    """All of a regular file. A pipe, on which a reader waits, and a device, which has no end, are refused, as is a file
    of more than `most` bytes."""
    where = os.fspath(path)
    if "\0" in where:
        raise OSError(errno.EINVAL, "embedded null byte")
    descriptor = os.open(where, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(file.fileno())
        if stat.S_ISDIR(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), where)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", where)
        if most is not None and state.st_size > most:
            raise OSError(errno.EFBIG, f"it has {state.st_size:,} bytes, and at most {most:,} are read", where)
        return file.read()


def write_bytes(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o666) -> None:
    """All of `content` under `path`, on disk when this returns, or what was there before. The permissions are `mode`,
    but for what the umask takes away."""
    target = Path(path)
    with contextlib.suppress(FileNotFoundError):
        mode_there = target.stat().st_mode
        if stat.S_ISDIR(mode_there):  # also one without a name of its own, such as "." and "/"
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if not stat.S_ISREG(mode_there):
            raise OSError(errno.EINVAL, "it is not a regular file", str(target))
    _sweep_partial(target)
    # A name of its own: two processes that write one file must not write into one another's.
    partial = target.with_name(f".{target.name}.{os.getpid()}-{next(_count)}{PARTIAL}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _try_lock(file.fileno())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flushes a rename to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_folder(folder: str | os.PathLike[str] | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """A new folder in `folder` (by default the system's for such) that is gone afterward, if it is still there.

    Those that killed processes left behind are removed first: a lock tells whether somebody still uses one.
    """
    parent = Path(tempfile.gettempdir() if folder is None else folder)
    _sweep_folders(parent, prefix)
    made = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
    descriptor = os.open(made, os.O_RDONLY)
    try:
        _try_lock(descriptor)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: str | os.PathLike[str], asked: str) -> Iterator[None]:
    """Inside the block the folder is this process's; another one is refused, and told whose it is and since when."""
    path = Path(folder) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_lock(path) as file:
        _sign(file, folder, asked, mine=_try_lock(file.fileno()))
        try:
            yield
        finally:
            file.truncate(0)  # the file stays: to remove it would let two processes lock two files of one name


@contextlib.contextmanager
def reserved(folder: str | os.PathLike[str], asked: str) -> Iterator[None]:
    """Like `locked`, for a folder that need not be there and is replaced as a whole: the lock lies beside it, or beside
    the first of its parents that is missing, and is gone afterward. What this process has reserved, it may again."""
    target = Path(folder).resolve()
    if target in _reserved:
        yield
        return
    there = next(parent for parent in target.parents if parent.is_dir())
    path = there / f"{RESERVED}{hashlib.sha256(os.fsencode(target)).hexdigest()[:16]}{LOCK}"
    with contextlib.ExitStack() as held:
        try:
            file, mine = _open_lasting(path)
            _sign(held.enter_context(file), folder, asked, mine=mine)
        except OSError as error:
            raise ArtifactError(
                asked, f"{there}: {error.strerror or error}", "name a folder that can be written"
            ) from None
        _reserved.add(target)
        try:
            yield
        finally:
            _reserved.discard(target)
            with contextlib.suppress(OSError):
                path.unlink()


def _open_lasting(path: Path) -> tuple[TextIO, bool]:
    """The file of that name, not one that its last holder has removed meanwhile, and whether it is locked now."""
    while True:
        file = _open_lock(path)
        mine = _try_lock(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, mine
        file.close()


def _open_lock(path: Path) -> TextIO:
    """No link, through which what is written would reach another file, and no pipe, on which it would wait."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "a+", encoding="utf-8")


def _sign(file: TextIO, folder: str | os.PathLike[str], asked: str, *, mine: bool) -> None:
    if not mine:
        file.seek(0)
        holder = file.read(200).strip() or "another process"
        raise ArtifactError(asked, f"{folder} is in use by {holder}", "wait for it, or name another folder")
    file.truncate(0)
    file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}")
    file.flush()


def _try_lock(descriptor: int) -> bool:
    """Whether nobody else holds it. The system lets go of it when the process ends, however it ends."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)  # a file system without locks refuses nobody
    return True


def _sweep_partial(target: Path) -> None:
    for left in target.parent.glob(f".{glob.escape(target.name)}.*{PARTIAL}"):
        if _is_abandoned(left):
            with contextlib.suppress(OSError):
                left.unlink()


def _sweep_folders(parent: Path, prefix: str) -> None:
    for left in parent.glob(f"{prefix}*"):
        if left.is_dir() and not left.is_symlink() and _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    """Whether it is this user's, and the process that made it is gone: it does not run here, nor hold its lock, as one
    of another machine or container would."""
    owner = _OWNER.search(path.name)
    if fcntl is None or owner is None or _runs(int(owner[1])):
        return False
    try:
        if path.lstat().st_uid != os.getuid():
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's
        return True
    return True
