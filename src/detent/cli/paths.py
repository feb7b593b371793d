"""Files that an option names are looked for before torch is loaded, which takes seconds."""

from __future__ import annotations

import difflib
import errno
from pathlib import Path

from detent.cli.onnx_header import looks_like_onnx
from detent.errors import ArtifactError, OnnxError

__all__ = ["require_all_deployed", "require_data", "require_deployed", "require_onnx", "require_path"]


def require_path(path: Path | None) -> Path | None:
    """`path` as it is, or `FileNotFoundError` with the nearest name in the same folder."""
    if path is not None and not path.exists():
        raise FileNotFoundError(errno.ENOENT, f"no such file or folder{_nearest(path)}", str(path))
    return path


def require_onnx(path: Path) -> Path:
    """The same for an ONNX file, which is refused if it is none; a folder is left to the command."""
    require_path(path)
    if path.is_file() and not looks_like_onnx(path):
        raise OnnxError(
            f"load {str(path)!r}", "it is not an ONNX file, or it is damaged", "export or download it again"
        )
    return path


def require_deployed(folder: Path) -> Path:
    """The same for a folder that deploy wrote, which holds a manifest."""
    require_path(folder)
    if not (folder / "manifest.json").is_file():
        raise ArtifactError(
            f"load {folder}", "there is no manifest.json in it", "give a folder that quantize or deploy wrote"
        )
    return folder


def require_all_deployed(folders: list[Path]) -> list[Path]:
    """The same for each of several."""
    return [require_deployed(folder) for folder in folders]


def require_data(data: str | None) -> str | None:
    """The same for `--data`, which may also be `file.py:function` or `module:function`."""
    if data is None:
        return None
    place, colon, function = data.rpartition(":")
    named = bool(colon) and function.isidentifier() and not Path(data).exists()
    if not named:
        require_path(Path(data))
    elif place.endswith(".py"):
        require_path(Path(place))
    return data


def _nearest(path: Path) -> str:
    try:
        names = [other.name for other in path.parent.iterdir() if other.exists()]  # a link may lead nowhere
    except (OSError, ValueError):  # a path with a null character is a ValueError
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""
