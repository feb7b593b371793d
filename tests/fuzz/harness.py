"""Runs readers on damaged files in forked children, with limits on memory and time.

A child reads one mutant after the other and says so; when it dies, that one is the finding, and another child goes on.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detent.errors import DetentError
from tests.fuzz.mutating import mutated

__all__ = ["Finding", "Reader", "fuzz", "import_engines"]

_MEMORY = 4 * 2**30
_SECONDS = 20  # that a reader may compute
_WAIT = 180  # that it may take, on a machine that others use too: one that waits for ever does not compute
_LIMITS = (signal.SIGALRM, signal.SIGPROF, signal.SIGKILL)
_DONE, _REFUSED, _RAISED = range(3)


@dataclass(frozen=True)
class Reader:
    """`read` reads the file under `path`, whose content is `seed`; it returns, or raises an error of Detent's.

    `isolated`: the command that reads it does so in a process of its own, so a signal ends no more than that one.
    """

    name: str
    path: Path
    seed: bytes
    read: Callable[[Path], object]
    isolated: bool = False


@dataclass(frozen=True)
class Finding:
    """A mutant that a reader did not answer as it should: `seed` and `number` make it again."""

    reader: str
    seed: int
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.reader} seed {self.seed} mutant {self.number}: {self.what}"


def import_engines() -> None:
    """Once, and not in each child: importing them takes longer than reading fifty files."""
    for name in ("onnxruntime", "openvino", "ai_edge_litert.interpreter", "ncnn"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def fuzz(reader: Reader, seed: int, numbers: range) -> Iterator[Finding | None]:
    """For each mutant a finding, or None where all is well."""
    waiting = list(numbers)
    while waiting:
        pipe = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.close(pipe[0])
            _work(reader, seed, waiting, pipe[1])
        os.close(pipe[1])
        with os.fdopen(pipe[0], "rb") as answers:
            while header := answers.read(8):
                outcome, length = struct.unpack("<II", header)
                said = answers.read(length).decode("utf-8", "replace")
                number = waiting.pop(0)
                yield Finding(reader.name, seed, number, said) if outcome == _RAISED else None
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if waiting:
            number = waiting.pop(0)
            what = f"ended by {signal.Signals(-ended).name}" if ended < 0 else f"ended with code {ended}"
            told = not (reader.isolated and ended < 0 and -ended not in _LIMITS)
            yield Finding(reader.name, seed, number, what) if told else None


def content_of(reader: Reader, seed: int, number: int) -> bytes:
    return mutated(reader.seed, random.Random(f"{reader.name} {seed} {number}"))


def _work(reader: Reader, seed: int, numbers: list[int], pipe: int) -> None:
    """Never returns."""
    signal.alarm(_WAIT)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for number in numbers:
        reader.path.write_bytes(content_of(reader, seed, number))
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        signal.alarm(_WAIT)
        outcome, said = _DONE, b""
        try:
            reader.read(reader.path)
        except DetentError:
            outcome = _REFUSED
        except BaseException:
            outcome, said = _RAISED, traceback.format_exc().encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        os.write(pipe, struct.pack("<II", outcome, len(said)) + said)
    os._exit(0)
