"""`verify` on a folder that somebody else may have written, in a process of its own: a file that ends a native engine
ends that process, and the caller gets an error.

The folder, the options and the batches go to the child as pickles, for they are the caller's own. What comes back is
JSON: nothing is believed of a process that read a stranger's file.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from detent import errors
from detent.errors import ArtifactError, DetentError, EngineError, refusing
from detent.graph.capture.running import map_tensors
from detent.ir import Package
from detent.processes import how_it_ended, python_command
from detent.verification.batches import require_batches
from detent.verification.verdict import Verdict
from detent.verification.verify import verify

__all__ = ["verify_folder", "verify_in_child"]

_SERVE = f"from {__name__} import _serve; _serve()"
_DAMAGED = "its files are damaged, if it was not written by this version of Detent: deploy the model again"


def verify_folder(package: Package, batches: Iterable[Any], **options: Any) -> Verdict:
    """`verify` without the original model; whatever a parser raises becomes an error of Detent."""
    with refusing(ArtifactError, f"verify {package.folder}", _DAMAGED):
        return verify(package, batches, **options)


def verify_in_child(package: Package, batches: Iterable[Any], **options: Any) -> Verdict:
    """The same, in a child. A signal that ends it is an EngineError, which names the signal and the files."""
    require_batches(batches)
    with subprocess.Popen(python_command(_SERVE), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has answered already, or is gone
                _put(child.stdin, (str(package.folder), options))
                for batch in batches:
                    _put(child.stdin, _plain(batch))
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            output = child.stdout.read()
            ended = child.wait()
        except BaseException:
            child.kill()
            raise
    return _verdict(package, output, ended)


def _put(stream: Any, value: Any) -> None:
    pickle.dump(value, stream, protocol=pickle.HIGHEST_PROTOCOL)
    stream.flush()


def _plain(batch: Any) -> Any:
    """A plain copy: of a class that the child can import, without gradients, on the CPU."""
    if isinstance(batch, tuple):
        batch = tuple(batch)
    return map_tensors(batch, lambda tensor: tensor.detach().cpu())


def _verdict(package: Package, output: bytes, ended: int) -> Verdict:
    files = ", ".join(sorted(package.manifest["files"]))
    if ended:
        raise EngineError(
            f"verify {package.folder}",
            f"{how_it_ended(ended)} ended the process in which {package.manifest['engine']} ran {files}",
            "deploy the model again; if that is what you did, please report it",
        )
    with refusing(EngineError, f"verify {package.folder} in a process of its own", "please report it"):
        answer = json.loads(output)
        if "error" not in answer:
            return Verdict.from_dict(answer["verdict"])
        kind = getattr(errors, answer["error"]["kind"])
        assert issubclass(kind, DetentError)
        refused = kind(*(str(answer["error"][part]) for part in ("asked", "found", "to_do")))
    raise refused


def _serve() -> None:
    """In the child: writes the verdict or the error to the original standard output; what engines print goes to
    stderr."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    folder, options = pickle.load(sys.stdin.buffer)
    answer: dict[str, Any]
    try:
        verdict = verify_folder(Package.load(Path(folder)), _batches(sys.stdin.buffer), **options)
        answer = {"verdict": verdict.to_dict()}
    except DetentError as error:
        kind = next(one.__name__ for one in type(error).__mro__ if one.__name__ in errors.__all__)
        answer = {"error": {"kind": kind, "asked": error.asked, "found": error.found, "to_do": error.to_do}}
    os.close(0)  # a parent that still writes batches learns that none are read
    with channel:
        channel.write(json.dumps(answer).encode())


def _batches(stream: BinaryIO) -> Iterator[Any]:
    while True:
        try:
            yield pickle.load(stream)
        except EOFError:
            return
