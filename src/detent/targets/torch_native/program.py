"""The file for torch's own kernels: an integer network as a list of calls, without code and without pickle.

    model.json          inputs, outputs, grids of the quantized values, and the steps in the order they run
    model.safetensors   codes and scales of the weights, float biases, constants of the float operations

A step's `call` is one of

    quantize, dequantize
    quantized.<name>      that operator of `torch.ops.quantized`; the grid of its output is its output scale
    aten.<name>           a torch function on codes that has one output grid
    onnx.<Type>           that ONNX operation: on floats, or on codes if what goes in and comes out has one grid
    clamp                 nothing but its attribute

and any step that gives codes may have an attribute `clamp`, the least and greatest of them it leaves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from detent.errors import ArtifactError
from detent.ir import Port

__all__ = ["JSON_FILE", "TENSOR_FILE", "ProgramGrid", "ProgramStep", "TorchProgram", "read_program", "write_program"]

JSON_FILE, TENSOR_FILE = "model.json", "model.safetensors"
_FORMAT, _VERSION = "detent torch native", 1
_CODES = {"uint8": (0, 255), "int8": (-128, 127)}
_MOST = 2**31 - 1  # of sizes, which kernels take as 32 bits
_SIZES = {
    **dict.fromkeys(("strides", "dilations", "kernel_shape", "group", "groups"), (1, _MOST)),
    **dict.fromkeys(("pads", "padding", "output_padding"), (0, _MOST)),
}
"""The least and greatest of each attribute that is a size."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ProgramGrid:
    """The codes of one quantized value: of which ONNX tensor, and what they stand for.

    `real = scale * (code - zero_point)`, stored as `dtype` ("uint8" or "int8"), none outside `low` to `high`.
    """

    tensor: str
    scale: float
    zero_point: int
    dtype: str
    low: int
    high: int

    @property
    def full(self) -> bool:
        return (self.low, self.high) == ((0, 255) if self.dtype == "uint8" else (-128, 127))


@dataclass(frozen=True)
class ProgramStep:
    """One call. `ops` are name and type of the ONNX operations it stands for; `why` says why it is in float."""

    call: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ops: tuple[tuple[str, str], ...] = ()
    why: str = ""


@dataclass(frozen=True, eq=False)
class TorchProgram:
    """The whole program. `outputs` maps output names to values; `codes` lists outputs that are returned as codes."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, str]
    codes: tuple[str, ...]
    grids: Mapping[str, ProgramGrid]
    steps: tuple[ProgramStep, ...]
    tensors: Mapping[str, Array]


def write_program(program: TorchProgram) -> dict[str, bytes]:
    """The two files; the same network gives the same bytes."""
    listed = {
        "format": _FORMAT,
        "version": _VERSION,
        "inputs": {name: {"dtype": port.dtype, "shape": list(port.shape)} for name, port in program.inputs.items()},
        "outputs": dict(program.outputs),
        "codes": list(program.codes),
        "grids": {name: asdict(grid) for name, grid in program.grids.items()},
        "steps": [_listed(step) for step in program.steps],
    }
    tensors = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in program.tensors.items()}
    return {JSON_FILE: json.dumps(listed, indent=1).encode(), TENSOR_FILE: save(dict(sorted(tensors.items())))}


def read_program(files: Mapping[str, bytes]) -> TorchProgram:
    """Reads what `write_program` wrote."""
    try:
        listed = json.loads(files[JSON_FILE])
        if (listed["format"], listed["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"format {listed['format']!r} version {listed['version']}")
        program = TorchProgram(
            {name: Port(port["dtype"], tuple(port["shape"])) for name, port in listed["inputs"].items()},
            listed["outputs"],
            tuple(listed["codes"]),
            {name: ProgramGrid(**grid) for name, grid in listed["grids"].items()},
            tuple(_step(step) for step in listed["steps"]),
            load(files[TENSOR_FILE]),
        )
        _check(program)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise ArtifactError(
            f"read {JSON_FILE} and {TENSOR_FILE}", f"they hold no network: {error}", "deploy the model again"
        ) from None
    return program


def _check(program: TorchProgram) -> None:
    """Torch's kernels divide by strides and groups, and end the process where these are zero."""
    for name, grid in program.grids.items():
        least, greatest = _CODES[grid.dtype]
        if not (math.isfinite(grid.scale) and grid.scale > 0 and least <= grid.zero_point <= greatest):
            raise ValueError(f"{name} has the scale {grid.scale} and the zero point {grid.zero_point}")
    for step in program.steps:
        for key, (least, greatest) in _SIZES.items():
            held = step.attributes.get(key, [])
            sizes = held if isinstance(held, list) else [held]
            if not all(type(size) is int and least <= size <= greatest for size in sizes):
                raise ValueError(f"the step {step.call} has {key} {held}")


def _listed(step: ProgramStep) -> dict[str, Any]:
    listed: dict[str, Any] = {"call": step.call, "inputs": list(step.inputs), "outputs": list(step.outputs)}
    if step.attributes:
        listed["attributes"] = dict(step.attributes)
    if step.ops:
        listed["ops"] = [list(op) for op in step.ops]
    if step.why:
        listed["why"] = step.why
    return listed


def _step(listed: Mapping[str, Any]) -> ProgramStep:
    return ProgramStep(
        listed["call"],
        tuple(listed["inputs"]),
        tuple(listed["outputs"]),
        listed.get("attributes", {}),
        tuple((name, kind) for name, kind in listed.get("ops", [])),
        listed.get("why", ""),
    )
