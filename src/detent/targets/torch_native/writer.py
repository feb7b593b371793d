"""The files for torch's own integer kernels (`torch.ops.quantized`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import numpy as safetensors

from detent.targets.base import Deployment, Format, TensorFacts, Written
from detent.targets.base.content import parse_json
from detent.targets.base.format import Roles
from detent.targets.torch_native.kernels import lower
from detent.targets.torch_native.program import JSON_FILE, TENSOR_FILE, TorchProgram, read_program, write_program

__all__ = ["FORMAT", "TorchNativeFormat", "read_torch_native"]


class TorchNativeFormat(Format):
    """The notes list what runs in float."""

    name = "torch"
    files: Mapping[str, Roles | None] = {JSON_FILE: (), TENSOR_FILE: ()}
    weights = TENSOR_FILE

    def write(self, deployment: Deployment) -> Written:
        program = lower(deployment.graph).program
        reasons: dict[str, list[str]] = {}
        for step in program.steps:
            if step.why:
                reasons.setdefault(step.why, []).extend(name for name, _ in step.ops)
        notes = (f"torch runs in float: {', '.join(names)} ({why})" for why, names in reasons.items())
        return Written(write_program(program), tuple(notes))

    def facts(self, file: str, files: Mapping[str, bytes]) -> Iterator[TensorFacts]:
        return _grid_facts(files[file]) if file == JSON_FILE else _tensor_facts(files[file])


FORMAT = TorchNativeFormat()


def read_torch_native(folder: str | Path) -> TorchProgram:
    """The network of a folder that holds both files."""
    where = Path(folder)
    return read_program({name: (where / name).read_bytes() for name in (JSON_FILE, TENSOR_FILE)})


def _grid_facts(content: bytes) -> Iterator[TensorFacts]:
    for one in parse_json(content, FORMAT.name)["grids"].values():
        facts = {"scale": one["scale"], "zero_point": one["zero_point"], "type": one["dtype"]}
        yield TensorFacts(one["tensor"], facts)


def _tensor_facts(content: bytes) -> Iterator[TensorFacts]:
    for name, held in safetensors.load(content).items():
        fact = "scale" if name.endswith("_scale") else "numbers"
        yield TensorFacts(name.removesuffix("_scale"), {fact: held})
