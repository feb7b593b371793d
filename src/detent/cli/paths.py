"""Files that an option names are looked for before torch is loaded, which takes seconds."""

from __future__ import annotations

import difflib
import errno
from pathlib import Path

__all__ = ["require_data", "require_path", "require_recipe"]


def require_path(path: Path | None) -> Path | None:
    """`path` as it is, or `FileNotFoundError` with the nearest name in the same folder."""
    if path is not None and not path.exists():
        raise FileNotFoundError(errno.ENOENT, f"no such file or folder{_nearest(path)}", str(path))
    return path


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


def require_recipe(recipe: str) -> str:
    """The same for `--recipe`: what has a suffix is a file, else it is the name of a recipe that comes with Detent."""
    if Path(recipe).suffix:
        require_path(Path(recipe))
    return recipe


def _nearest(path: Path) -> str:
    try:
        names = [other.name for other in path.parent.iterdir()]
    except (OSError, ValueError):  # a path with a null character is a ValueError
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {str(path.parent / near[0])!r}?" if near else ""
