"""Runs one .pte file in a process of its own, whose arguments are the file and the number of threads.

ExecuTorch has one pool of threads for a process, and models that are loaded hold on to it: it can be sized only before
the first is. Inputs come on standard input and outputs go to standard output, as safetensors, each behind its length in
8 bytes.
"""

from __future__ import annotations

import os
import struct
import sys
import warnings
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load, save

__all__ = ["main", "receive", "send", "serve"]

_LENGTH = struct.Struct("<q")


def send(stream: BinaryIO, arrays: list[npt.NDArray[Any]]) -> None:
    content = save({str(index): np.ascontiguousarray(array) for index, array in enumerate(arrays)})
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: BinaryIO) -> list[npt.NDArray[Any]] | None:
    """What `send` wrote; None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    held = load(stream.read(_LENGTH.unpack(head)[0]))
    return [held[str(index)] for index in range(len(held))]


def serve(file: str, threads: int, incoming: BinaryIO, outgoing: BinaryIO) -> None:
    warnings.simplefilter("ignore")
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    portable_lib._unsafe_reset_threadpool(threads)
    with open(file, "rb") as opened:
        program = Runtime.get().load_program(opened.read())
    method = program.load_method("forward")  # which does not keep the program alive
    send(outgoing, [])  # ready
    while (inputs := receive(incoming)) is not None:
        outputs = method.execute([torch.from_numpy(np.array(array)) for array in inputs])
        send(outgoing, [value.numpy() for value in outputs])


def main() -> None:
    # What ExecuTorch prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer, answers)
