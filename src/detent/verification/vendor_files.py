"""Compares the vendors' files with the manifest, also those that no engine runs here.

Each file is read back by its format. What it says of a tensor must be the grid that the tensor has in the
manifest; what it says of an operation, the grids on which this operation reads its inputs in `model.onnx`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import ArtifactError, DetentError, refusing
from detent.ir import Encoding, Layout, Network, Operand, Package
from detent.numerics import Scheme
from detent.targets.base import TensorFacts
from detent.targets.base.format import Roles
from detent.targets.formats import FORMATS, QDQ_FILE, find_format
from detent.traversal import reachable
from detent.verification.parameters import ParameterInFile, parameters_of

__all__ = ["unchecked_files", "vendor_disagreements"]

Floats = npt.NDArray[np.float64]


def vendor_disagreements(package: Package) -> Iterator[str]:
    """A sentence for each tensor or operation that a file describes differently from the manifest, or leaves out."""
    names = _names(package)
    entries = {names.get(tensor["tensor"], tensor["tensor"]): tensor for tensor in package.manifest["tensors"]}
    known = _Known(entries, package.graph)
    checked: set[str] = set()
    for name, files in package.manifest["formats"].items():
        roles = _roles(name)
        unread = [file for file in files if roles.get(file) is not None and file not in checked]
        contents = {file: (package.folder / file).read_bytes() for file in files} if unread else {}
        checked.update(unread)
        for file in unread:
            try:
                with refusing(ArtifactError, f"read {file}", "deploy the model again"):
                    read = find_format(name).facts(file, contents)
                    facts = [one._replace(name=names.get(one.name, one.name)) for one in read]
            except DetentError as error:
                yield f"{file}: it cannot be read: {error.found}"
                continue
            yield from _differences(file, roles[file] or (), facts, known)


def _names(package: Package) -> dict[str, str]:
    """What the manifest calls tensors that other files may call otherwise: constants that store a parameter, codes
    (`x_quantized` for x), and what stands before an output's Q in a network that was read from a file."""
    graph, same_scales = package.graph, (Layout.SAME, Layout.TRANSPOSED)
    stored = {name: one.parameter for name, one in graph.stored_as.items() if one.layout in same_scales}
    own = {*graph.inputs, *graph.constants, *(name for op in graph.ops for name in op.outputs)}
    codes = {f"{name}_quantized": stored.get(name, name) for name in own}
    named = {name: tensor for name, tensor in codes.items() if name not in own}
    return {**named, **stored, **graph.unquantized_outputs(package.manifest.get("names", {}))}


def unchecked_files(package: Package) -> Iterator[str]:
    """A note for each format whose files are not compared with the manifest."""
    for name, files in package.manifest["formats"].items():
        others = [file for file in files if file != QDQ_FILE]
        if others and not any(roles is not None for roles in _roles(name).values()):
            yield f"{', '.join(others)}: not checked, because the format {name!r} is not read back"


def _roles(name: str) -> Mapping[str, Roles | None]:
    """The roles of the files of a format; none if the format is not registered."""
    return find_format(name).files if name in FORMATS else {}


def _differences(file: str, roles: Roles, facts: Sequence[TensorFacts], known: _Known) -> Iterator[str]:
    for one in facts:
        other = known.other_numbers(one)
        if other:
            yield f"{one.name}: {file} has {other}"
        grids = known.grids(one, in_full=bool(roles))
        differing = [grid.difference(one.facts) for grid in grids]
        if differing and all(differing):
            yield f"{one.name}: {file} has {differing[0]}"
        if roles and not grids:
            yield f"{one.name}: {file} speaks of it, and there is nothing of that name on a grid"
    named = {one.name for one in facts}
    for name, tensor in known.entries.items():
        if tensor["role"] in roles and name not in named:
            yield f"{name}: {file} does not speak of it"


class _Known:
    """The grids of tensors according to the manifest, and of operands according to the network."""

    def __init__(self, entries: Mapping[str, Mapping[str, Any]], graph: Network):
        self.entries, self._graph = entries, graph
        self._ops = {op.name: op for op in graph.ops}
        self._held: dict[str, list[ParameterInFile]] = {}
        for held in parameters_of(graph):
            self._held.setdefault(held.name, []).append(held)

    def grids(self, fact: TensorFacts, *, in_full: bool) -> list[_Grid]:
        """The grids that a fact may describe. A file that does not list all tensors may have other names for some."""
        if fact.place is None:
            return self._of_tensor(fact.name) if in_full else self._in_manifest(fact.name)
        read = self._read(fact)
        if read is None or read.encoding is not None:
            return [] if read is None or read.encoding is None else [_Grid.of_encoding(read.encoding)]
        return self._in_manifest(read.tensor)

    def _read(self, fact: TensorFacts) -> Operand | None:
        op = self._ops.get(fact.name.partition(":")[0])  # of a layer that is one of several parts of an operation
        if op is None or fact.place is None or fact.place >= len(op.inputs):
            return None
        return op.inputs[fact.place]

    def other_numbers(self, fact: TensorFacts) -> str:
        """How a parameter differs from that in `model.onnx`, in words; empty if it does not."""
        numbers = fact.facts.get("numbers")
        if numbers is None:
            return ""
        read = self._read(fact)
        held = self._held.get(fact.name if read is None else self._parameter(read.tensor), [])
        known = [array for one in held for array in (one.stored, one.values) if array.dtype.kind == numbers.dtype.kind]
        # None where a writer makes codes of a bias that is float in model.onnx, on grids of the layers that share it.
        same = not known or any(_same_numbers(numbers, array) for array in known)
        return "" if same else "other numbers than model.onnx"

    def _parameter(self, constant: str) -> str:
        stored = self._graph.stored_as.get(constant)
        return constant if stored is None else stored.parameter

    def _of_tensor(self, name: str) -> list[_Grid]:
        """The grids of a tensor; of one that is not in the manifest (the input of a ReLU), those of what reads it."""

        def behind(tensor: str) -> list[str]:
            readers = () if tensor in self.entries else self._graph.readers(tensor)
            return [output for op, _ in readers for output in op.outputs]

        return [grid for tensor in reachable([name], behind) for grid in self._in_manifest(tensor)]

    def _in_manifest(self, name: str) -> list[_Grid]:
        return [_Grid.of_tensor(self.entries[name])] if name in self.entries else []


@dataclass(frozen=True, eq=False)
class _Grid:
    """Numbers along the channels, if there are several; `least` and `greatest` are codes."""

    scale: Floats
    zero_point: Floats
    least: int
    greatest: int
    type: str

    @classmethod
    def of_tensor(cls, entry: Mapping[str, Any]) -> _Grid:
        grid = Scheme.from_dict(entry["scheme"]).grid
        kind = f"{'int' if getattr(grid, 'signed', True) else 'uint'}{grid.bits}"
        scale = np.asarray(entry["scale"], np.float32)
        return cls(_row(scale), _row(entry["zero_point"]), grid.qmin, grid.qmax, kind)

    @classmethod
    def of_encoding(cls, encoding: Encoding) -> _Grid:
        return cls(_row(encoding.scale), _row(encoding.zero_point), encoding.qmin, encoding.qmax, encoding.dtype)

    def difference(self, facts: Mapping[str, Any]) -> str:
        """The difference in words; empty if there is none."""
        for what, held in facts.items():
            if what == "numbers":
                continue
            if what in ("type", "bits"):
                if held != self._facts[what]:
                    return f"{held} as its {what}, the manifest {self._facts[what]}"
                continue
            own, wanted = _row(held), _row(self._facts[what])
            if not _alike(own, wanted, in_order=what != "factor"):
                fact = what.replace("_", " ")
                return f"{_shown(own, wanted)} as its {fact}, the manifest {_shown(wanted, own)}"
        return ""

    @cached_property
    def _facts(self) -> dict[str, Any]:
        bits = int(self.type.removeprefix("u").removeprefix("int"))
        ends, full, whole = (self.least, self.greatest), self._codes(bits), self._codes(-(-bits // 8) * 8)
        least = full[0]
        low, high = (self._real(code) for code in ends)
        return {
            "bits": bits,
            "byte_range": [self._real(code) for code in whole],
            "codes": ends,
            "factor": 1 / self.scale,
            "full_range": [self._real(code) for code in full],
            "greatest": np.maximum(-low, high),
            "magnitude": 127 * self.scale,
            "offset": least - self.zero_point,
            "range": [low, high],
            "scale": self.scale,
            "type": self.type,
            "zero_point": self.zero_point,
        }

    def _codes(self, bits: int) -> tuple[int, int]:
        """The least and greatest of all of that width."""
        least = 0 if self.type.startswith("u") else -(2 ** (bits - 1))
        return least, least + 2**bits - 1

    def _real(self, code: int) -> Floats:
        return (code - self.zero_point) * self.scale


def _same_numbers(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    """Whether they are the same numbers in any order, possibly with zeros in between, as in files with other
    layouts."""
    if np.array_equal(first, second):
        return True
    one, other = (np.ravel(side)[np.ravel(side) != 0] for side in (first, second))
    if first.dtype == second.dtype == np.int8:
        counted, wanted = (np.bincount(row.view(np.uint8), minlength=256) for row in (one, other))
        return np.array_equal(counted, wanted)
    return np.array_equal(np.sort(one), np.sort(other))


def _row(numbers: Any) -> Floats:
    """As float32: ranges and reciprocals are rounded once."""
    return np.ravel(np.asarray(numbers, np.float32)).astype(np.float64)


def _alike(own: Floats, wanted: Floats, *, in_order: bool) -> bool:
    """Whether they are equal. One number in the manifest may stand for all channels; factors, one for every group of
    channels."""
    if not in_order and own.size != wanted.size and wanted.size % max(own.size, 1) == 0:
        return bool(np.isin(own, wanted).all())
    return (own.size == wanted.size or wanted.size == 1) and bool(np.all(own == wanted))


def _shown(numbers: Floats, others: Floats) -> str:
    """The first number that differs."""
    if numbers.size != others.size:
        return f"{numbers.size} numbers" if numbers.size > 1 else f"{numbers[0]:.9g}"
    at = int(np.argmax(numbers != others))
    return f"{numbers[at]:.9g}" + (f" [{at}]" if numbers.size > 1 else "")
