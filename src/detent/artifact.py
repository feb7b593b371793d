"""`detent.deploy` and what it gives: an Artifact, the folder on disk that can be verified and retargeted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detent.deployment import require_writable, write
from detent.errors import ArtifactError, refusing
from detent.graph import PreparedModel
from detent.ir import Package
from detent.planning import Backend
from detent.retargeting import restored, retargeted
from detent.verification import Verdict, verify

__all__ = ["Artifact", "deploy", "require_writable"]

_DAMAGED = "its files are damaged, if it was not written by this version of Detent: deploy the model again"


@dataclass(frozen=True, repr=False)
class Artifact(Package):
    """A deployed model: a folder, what its manifest says, and, where it was just made, the model it came from."""

    prepared: PreparedModel | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        told = self.manifest
        runs = f"runs on {told['engine']}" if told["engine"] else "no engine of it is known"
        title = (
            f"Artifact {str(self.folder)!r} for {told['backend']} ({runs}), {len(told['tensors'])} tensors quantized"
        )
        return "\n  ".join([title, *(f"{name}  {_size(self.folder / name)}" for name in sorted(told["files"]))])

    @property
    def sqnr(self) -> dict[str, float]:
        """Of each output against the float network, in decibels, on the first batch that `detent.quantize` calibrated
        with; empty if nobody measured it."""
        return {name: float(value) for name, value in self.manifest.get("sqnr", {}).items()}

    def verify(self, batches: Iterable[Any], **options: Any) -> Verdict:
        """Run the simulation, the twin and the real engine on `batches`; see `detent.verification.verify`."""
        if self.prepared is not None:
            return verify(self, batches, prepared=self.prepared, **options)
        with refusing(ArtifactError, f"verify {self.folder}", _DAMAGED):
            return verify(self, batches, **options)

    def retarget(self, backend: str | Backend, folder: str | Path | None = None) -> Artifact:
        """The same calibrated model for another backend, with placement, bias and sharing derived anew.

        Nothing is calibrated again: a tensor whose scale the other scheme cannot hold is refused. An artifact that
        was loaded is read back from its `model.onnx`. Without a `folder`, that of "out" for openvino is
        "out-openvino", beside it.
        """
        prepared = self.prepared
        if prepared is None:
            with refusing(ArtifactError, f"retarget {self.folder}", _DAMAGED):
                prepared = restored(self)
        moved = retargeted(prepared, backend)
        here = self.folder.resolve()
        return deploy(
            moved,
            here.with_name(f"{here.name}-{moved.backend.name}") if folder is None else folder,
            dynamic_batch=any(isinstance(size, str) for port in self.graph.inputs.values() for size in port.shape),
            mode=None if self.prepared is None else self.manifest["mode"],  # a file holds one
        )


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes" if path.is_file() else "missing"


def deploy(
    prepared: PreparedModel,
    folder: str | Path,
    *,
    files: Sequence[str] | None = None,
    dynamic_batch: bool = True,
    mode: str | None = None,
) -> Artifact:
    """Write a calibrated model into `folder`: `model.onnx` (QDQ), the backend's own files, `manifest.json`.

    `files` are the formats to write in place of the backend's own. Either all of it is written or nothing. With
    several forward modes, `mode` says which one is deployed.
    """
    write(prepared, folder, files=files, dynamic_batch=dynamic_batch, mode=mode)
    loaded = Package.load(folder)
    return Artifact(loaded.folder, loaded.manifest, prepared)
