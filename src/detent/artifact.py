"""`detent.deploy` and its result: an Artifact, the folder on disk that can be verified, shown and retargeted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detent.deployment import require_writable, write, wrote
from detent.errors import ArtifactError, refusing
from detent.graph import PreparedModel
from detent.ir import Package
from detent.markup import notebook, table, tag
from detent.planning import Backend
from detent.report import BATCHES, collect, page_of, write_page
from detent.retargeting import restored, retargeted
from detent.verification import Verdict, verify, verify_folder, verify_in_child

__all__ = ["Artifact", "deploy", "require_writable"]

_DAMAGED = "its files are damaged, if it was not written by this version of Detent: deploy the model again"


@dataclass(frozen=True, repr=False)
class Artifact(Package):
    """A deployed model: a folder, its manifest, and, if it was just deployed, the model that it came from."""

    prepared: PreparedModel | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        told = self.manifest
        runs = f"runs on {told['engine']}" if told["engine"] else "no engine of it is known"
        title = (
            f"Artifact {str(self.folder)!r} for {told['backend']} ({runs}), {len(told['tensors'])} tensors quantized"
        )
        files = [f"{name}  {_size(self.folder / name)}" for name in sorted(told["files"])]
        return "\n  ".join([title, *files, *(f"note: {note}" for note in told["notes"])])

    def _repr_html_(self) -> str:
        title, *_ = repr(self).splitlines()
        files = [(name, _size(self.folder / name)) for name in sorted(self.manifest["files"])]
        notes = tag("ul", *(tag("li", note) for note in self.manifest["notes"])) if self.manifest["notes"] else None
        return notebook(title, table(("file", "size#"), files), notes)

    @property
    def sqnr(self) -> dict[str, float]:
        """The SQNR of each output against the float network, in decibels, on the first batch that `detent.quantize`
        calibrated with; empty if it was not measured."""
        return {name: float(value) for name, value in self.manifest.get("sqnr", {}).items()}

    def verify(self, batches: Iterable[Any], *, isolate: bool | None = None, **options: Any) -> Verdict:
        """Run the simulation, the twin and the real engine on `batches`; see `detent.verification.verify`.

        A folder that was loaded is verified in a process of its own, unless this process wrote its files: a damaged
        file may crash a native engine. `isolate=True` always uses such a process, `isolate=False` never.
        """
        if self.prepared is not None:
            return verify(self, batches, prepared=self.prepared, **options)
        if isolate or (isolate is None and not wrote(self.manifest)):
            return verify_in_child(self, batches, **options)
        return verify_folder(self, batches, **options)

    def report(
        self,
        path: str | Path | None = None,
        *,
        data: Iterable[Any] | None = None,
        float_model: str | Path | None = None,
        log: str | Path | None = None,
        batches: int = BATCHES,
        latency: bool = True,
    ) -> Path:
        """Write one HTML page that shows what was deployed, what it computes and what it costs; returns its path,
        `report.html` in the folder unless it is named.

        `data` are batches as `verify` takes them, of which the first `batches` are run; without them the page says what
        is missing. `float_model` is the ONNX file that was quantized, needed only if this artifact was loaded; `log` is
        the `log.csv` of training, or the folder of the run.
        """
        facts = collect(
            self,
            prepared=self.prepared,
            data=data,
            float_model=float_model,
            log=log,
            batches=batches,
            latency=latency,
        )
        return write_page(page_of(facts), self.folder / "report.html" if path is None else path)

    def retarget(self, backend: str | Backend, folder: str | Path | None = None) -> Artifact:
        """Deploy the same calibrated model for another backend; placement, biases and shared scales are derived anew.

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

    `files` are the formats to write in place of the backend's own. Either everything is written or nothing. With
    several forward modes, `mode` names the one to deploy.
    """
    write(prepared, folder, files=files, dynamic_batch=dynamic_batch, mode=mode)
    loaded = Package.load(folder)
    return Artifact(loaded.folder, loaded.manifest, prepared)
