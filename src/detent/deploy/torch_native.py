"""The files for torch's own integer kernels (`torch.ops.quantized`)."""

from __future__ import annotations

from pathlib import Path

from detent.deploy.deployment import Deployment
from detent.deploy.torch_native_kernels import lower
from detent.deploy.torch_native_program import JSON_FILE, TENSOR_FILE, Program, read_program, write_program

__all__ = ["read_torch_native", "write_torch_native"]


def write_torch_native(deployment: Deployment) -> dict[str, bytes]:
    """`model.json` and `model.safetensors`; what runs in float is said in the notes."""
    program = lower(deployment.graph).program
    reasons: dict[str, list[str]] = {}
    for step in program.steps:
        if step.why:
            reasons.setdefault(step.why, []).extend(name for name, _ in step.ops)
    for why, names in reasons.items():
        deployment.notes.append(f"torch runs in float: {', '.join(names)} ({why})")
    return write_program(program)


def read_torch_native(folder: str | Path) -> Program:
    """The network of a folder that holds both files."""
    where = Path(folder)
    return read_program({name: (where / name).read_bytes() for name in (JSON_FILE, TENSOR_FILE)})
