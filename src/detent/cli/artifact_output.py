"""What commands that deploy say of the folder they wrote."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detent.artifact import Artifact

__all__ = ["show_artifact"]


def show_artifact(artifact: Artifact, *, json: bool) -> None:
    """Its files, how much is quantized, and the notes."""
    from detent.verification.text import sqnr_line

    files, notes = sorted(artifact.manifest["files"]), artifact.manifest["notes"]
    if json:
        sqnr = artifact.manifest.get("sqnr", {})
        told = {"folder": str(artifact.folder), "files": files, "backend": artifact.manifest["backend"], "notes": notes}
        told |= {"sqnr": sqnr} if sqnr else {}
        print(json_format.dumps(told, indent=2))
        return
    print(f"{artifact.folder}: {', '.join(files)}; {len(artifact.manifest['tensors'])} tensors quantized")
    if artifact.sqnr:
        print(sqnr_line(artifact.sqnr))
    for note in notes:
        print(f"note: {note}")
