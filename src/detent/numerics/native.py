"""Builds `fused.c` with the machine's own C compiler, once, and loads it.

Compiling takes a few seconds; the library is kept in the user's cache, under a name made of the source, the compiler
and the processor, and of its own content, which is checked before it is loaded. Where there is no compiler,
`library()` is None, a warning of the logger `detent` says so once, and callers use their plain torch operations, with
the same results. `DETENT_NATIVE=0` has the same effect without the warning; `DETENT_CACHE` moves the cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import threading
from functools import cache
from importlib import resources
from pathlib import Path

from detent.files import read_bytes, temporary_folder, write_bytes

__all__ = ["library"]

_FLAGS = ("-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
# Best first. OpenMP is compiled in but not linked: the symbols come from the runtime torch has loaded
# already, so that both share one set of threads instead of fighting for the cores.
_VARIANTS = (("-march=native", "-fopenmp"), ("-march=native",), ())

_SLOW = "quantizers run without their compiled kernels, up to 7 times slower and with the same results"
_HIDE = "DETENT_NATIVE=0 hides this"

_POINTER, _INT64, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_FLOAT, _DOUBLE = ctypes.c_float, ctypes.c_double
_SIGNATURES = {
    "fake_quantize_forward": [_POINTER] * 3 + [_INT64] * 3 + [_POINTER] * 3 + [_INT] * 2,
    "float_quantize_forward": [_POINTER] * 3 + [_INT64] * 3 + [_POINTER, _FLOAT] + [_INT] * 3,
    "fake_quantize_backward": [_POINTER] * 3 + [_INT64] * 3 + [_POINTER] * 4 + [_INT64, _POINTER] + [_INT] * 2,
    "residue_forward": [_POINTER] * 3 + [_INT64] + [_POINTER] * 3 + [_INT] * 2,
    "residue_backward": [_POINTER] * 3 + [_INT64] + [_POINTER] * 2,
    "any_pair_over": [_POINTER] + [_INT64] * 3 + [_POINTER, _INT64, _POINTER, _FLOAT],
    "bound_pairs": [_POINTER] + [_INT64] * 3 + [_POINTER, _INT64, _POINTER, _FLOAT],
    "accumulator_forward": [_POINTER] * 3 + [_INT64, _POINTER, _INT64, _DOUBLE, _DOUBLE],
    "apply_mask": [_POINTER] * 3 + [_INT64],
    "histogram": [_POINTER, _INT64, _FLOAT, _INT64, _POINTER, _POINTER, _INT64],
}
_RESULTS = {"any_pair_over": _INT}

_LOG = logging.getLogger("detent")
_lock = threading.Lock()


def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None if they cannot be built."""
    with _lock:
        return _library()


@cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("DETENT_NATIVE") == "0":
        return None
    if sys.platform == "win32":
        _LOG.info("%s: they are not built on Windows", _SLOW)
        return None
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        _LOG.warning("%s: no C compiler was found; install gcc or clang (%s)", _SLOW, _HIDE)
        return None
    source = resources.files("detent.numerics").joinpath("fused.c").read_text()
    for variant in _VARIANTS:
        try:
            loaded = _build_and_load(source, compiler, (*_FLAGS, *variant))
        except (OSError, AttributeError, subprocess.SubprocessError):
            continue
        if loaded is not None:
            return loaded
    _LOG.warning("%s: %s does not build them; install gcc or clang, or name it by CC (%s)", _SLOW, compiler, _HIDE)
    return None


def _build_and_load(source: str, compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL | None:
    binary = Path(compiler).resolve()
    identity = (source, str(binary), binary.stat().st_mtime_ns, flags, platform.machine(), _processor())
    name = f"fused-{_digest(repr(identity).encode())}"
    with temporary_folder() as scratch:
        folder = _private_cache_folder() or scratch
        path = next((found for found in folder.glob(f"{name}-*.so") if _is_whole(found)), None)
        return _load(path or _compile(source, compiler, flags, scratch, folder, name))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _is_whole(path: Path) -> bool:
    """Whether the file is what was built, whose hash is in its name: loading one that a power cut left behind ends the
    process. One that is not, or that somebody else could have written, is removed."""
    try:
        state = path.lstat()
        private = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if private and stat.S_ISREG(state.st_mode) and path.stem.endswith(f"-{_digest(read_bytes(path))}"):
            return True
        path.unlink()
    except OSError:
        pass
    return False


def _compile(source: str, compiler: str, flags: tuple[str, ...], scratch: Path, folder: Path, name: str) -> Path:
    code, compiled, built = scratch / "fused.c", scratch / "fused.o", scratch / "fused.so"
    code.write_text(source)
    subprocess.run([compiler, *flags, "-c", code, "-o", compiled], check=True, capture_output=True, timeout=600)
    shared = ["-shared", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    subprocess.run([compiler, *shared, compiled, "-o", built, "-lm"], check=True, capture_output=True, timeout=600)
    content = built.read_bytes()
    path = folder / f"{name}-{_digest(content)}.so"
    write_bytes(path, content, mode=0o600)  # another process sees the whole library or none
    return path


def _load(path: Path) -> ctypes.CDLL | None:
    loaded = ctypes.CDLL(str(path))
    for function, arguments in _SIGNATURES.items():
        getattr(loaded, function).argtypes = arguments
        getattr(loaded, function).restype = _RESULTS.get(function)
    return loaded if _computes_correctly(loaded) else None


def _computes_correctly(loaded: ctypes.CDLL) -> bool:
    """Detects a compiler that breaks float semantics before a user's model does."""
    x = (ctypes.c_float * 4)(-0.5, 0.49999997, 2.5, 9.0)
    y = (ctypes.c_float * 4)()
    one, lo, hi = (ctypes.c_float * 1)(1.0), (ctypes.c_float * 1)(-4.0), (ctypes.c_float * 1)(3.0)
    half_away, by_rounded = 3, 0
    loaded.fake_quantize_forward(x, y, None, 1, 1, 4, one, lo, hi, half_away, by_rounded)
    return list(y) == [-1.0, 0.0, 3.0, 3.0]


def _private_cache_folder() -> Path | None:
    """A folder that only this user can write to, because its contents are executed; None if there is none."""
    base = os.environ.get("DETENT_CACHE") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "detent"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError):
        return None
    private = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private and os.access(folder, os.W_OK) else None


def _processor() -> str:
    """A string that identifies the processor for -march=native, so that a home directory shared between machines holds
    one library for each."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
