"""What is done of a checkpoint, on disk: a run that is killed goes on behind the last part that is complete.

A part is a decoder layer, or at the end what is behind them. Of each its shard is written, then the hidden states that
come out of it, then the journal, which says that it is done; each file whole or not at all. config.json comes last, so
that nobody loads a folder that is not complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from detent.algorithms import Change
from detent.errors import ArtifactError
from detent.files import read_bytes, write_bytes

__all__ = ["JOURNAL", "Journal"]

JOURNAL = "layers.json"
_VERSION = 1
_STATES = "hidden_states-{:05}.safetensors"
_MOST = 2**28  # bytes of a journal


class Journal:
    """`parts` says of each that is done what is to be remembered, in JSON's types. `request` is what was asked for, by
    digests: another one does not go on in this folder. `undone` says that an algorithm was given up: its parts were
    removed, and are made anew without it."""

    def __init__(self, folder: Path, request: Mapping[str, str]):
        self._folder, self._request = folder, dict(request)
        self.parts: list[dict[str, Any]] = []
        self.undone: dict[str, Any] | None = None
        self.finished = False

    @classmethod
    def opened(cls, folder: Path, request: Mapping[str, str]) -> Journal:
        """That of a folder, or a new one of an empty folder."""
        journal = cls(folder, request)
        asked = f"quantize into {folder}"
        path = folder / JOURNAL
        if not path.exists():
            held = (
                sorted(one.name for one in folder.iterdir() if not one.name.startswith(".")) if folder.is_dir() else []
            )
            if held:
                found = f"the folder holds files that are none of this, as {held[0]}"
                raise ArtifactError(asked, found, "name a new or empty folder")
            folder.mkdir(parents=True, exist_ok=True)
            journal._write()  # before anything else is in the folder, which is refused without it
            return journal
        try:
            said = json.loads(read_bytes(path, most=_MOST))
            if said["layers_version"] != _VERSION:
                raise ValueError(f"its version is {said['layers_version']}")
            others = [key for key in journal._request if said["request"].get(key) != journal._request[key]]
            journal.parts = [_part(part) for part in said["parts"]]
            journal.undone = None if said["undone"] is None else _change(said["undone"])
            journal.finished = bool(said["finished"])
            if journal.finished and not journal.parts:
                raise ValueError("it is finished and has no parts")
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            raise ArtifactError(asked, f"{JOURNAL} cannot be read: {error}", "name another folder") from None
        if others:
            found = f"it was begun with another {' and '.join(others)}"
            raise ArtifactError(asked, found, "give what it was begun with, or name another folder")
        return journal

    def states(self) -> dict[str, Tensor] | None:
        """The hidden states behind the last part that is done; None at the beginning."""
        if not self.parts:
            return None
        path = self._folder / _STATES.format(len(self.parts))
        try:
            return load(read_bytes(path))
        except (OSError, SafetensorError) as error:
            found = f"{path.name} cannot be read: {error}"
            raise ArtifactError(f"go on in {self._folder}", found, "name another folder") from None

    def done(self, part: Mapping[str, Any], states: Mapping[str, Tensor]) -> None:
        """One more part is done, whose shard is on disk."""
        if states:
            write_bytes(self._folder / _STATES.format(len(self.parts) + 1), save(dict(states)))
        self.parts.append(dict(part))
        self._write()
        self._remove_states(but=len(self.parts))

    def undo(self, report: Mapping[str, Any]) -> None:
        """All is to be made anew; the shards are replaced as that goes on."""
        self.parts, self.undone = [], dict(report)
        self._write()
        self._remove_states()

    def finish(self, files: Mapping[str, bytes]) -> None:
        """The last files, in their order; then nothing is left to do."""
        for name, content in files.items():
            write_bytes(self._folder / name, content)
        self.finished = True
        self._write()
        self._remove_states()

    def _write(self) -> None:
        said = {
            "layers_version": _VERSION,
            "request": self._request,
            "finished": self.finished,
            "undone": self.undone,
            "parts": self.parts,
        }
        write_bytes(self._folder / JOURNAL, json.dumps(said, indent=1).encode())

    def _remove_states(self, but: int = -1) -> None:
        kept = _STATES.format(but)
        for path in self._folder.glob(_STATES.replace("{:05}", "*")):
            if path.name != kept:
                with suppress(FileNotFoundError):
                    path.unlink()


def _part(said: Any) -> dict[str, Any]:
    """What a journal remembers of a part, if it is that; a TypeError, KeyError or ValueError if not."""
    if not all(
        isinstance(text, str)
        for line in said["plan"]
        for text in (line["tensor"], line["as"], line["why"], *line, *line.values())
    ):
        raise ValueError("a line of its plan is not made of words")
    for width in said["widths"].values():
        if len(width) != 2 or not all(isinstance(number, int) for number in width):
            raise ValueError(f"the width {width} is not bits and a size of groups")
    found = dict(said) | {"changes": [_change(change) for change in said["changes"]]}
    if "noise" in said:
        found["noise"] = float(said["noise"])
        if found["noise"] < 0:
            raise ValueError(f"the noise {said['noise']}")
    return found


def _change(said: Any) -> dict[str, Any]:
    change = Change(**said)
    if not isinstance(change.place, str) or not isinstance(change.note, str):
        raise ValueError("the place or the note of a change is not text")
    return replace(change, before=float(change.before), after=float(change.after), kept=bool(change.kept)).to_dict()
