"""The deployed network in float, and with the operands of one operation alone quantized."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Layout, Network, Op, Operand, StoredAs
from detent.report.histograms import sqnr
from detent.rewrites.dequantize_looked_up_rows import with_whole_tables
from detent.twin import OnnxSpec, Twin

__all__ = ["Reference", "joint_sqnr", "name_of", "quantized_operations"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

_SECONDS = 60.0
"""How long layers are tried one by one."""


class Reference:
    """The operations of `network` on real numbers. `parameters` are the float weights and biases by name; a constant
    that is not among them is what its codes stand for."""

    def __init__(self, network: Network, parameters: Arrays):
        self.network = network = with_whole_tables(network)
        self.deployed = {name: _real(network, name) for name in network.constants}
        self.constants = {**self.deployed, **_floats(network, parameters)}
        self._twin = self._with(self.constants, None)

    @property
    def known(self) -> frozenset[str]:
        """The quantized constants of which the float numbers are known."""
        return frozenset(name for name in self.network.coded if self.constants.get(name) is not self.deployed.get(name))

    def run_and_show(self, inputs: Arrays) -> tuple[dict[str, Array], dict[str, Array]]:
        """The outputs, and every tensor inside, by name."""
        return self._twin.run_and_show(inputs)

    def alone(self, inputs: Arrays, ops: Sequence[Op], *, seconds: float = _SECONDS) -> dict[str, float | None]:
        """The SQNR of the outputs if only the operands of one operation are quantized, by operation. Stops when the
        time is over."""
        wanted, found, end = self._twin.run(inputs), dict[str, float | None](), time.monotonic() + seconds
        for op in ops:
            if time.monotonic() > end:
                break
            weights = {read.tensor: self.deployed[read.tensor] for read in op.reads if read.tensor in self.deployed}
            found[name_of(op)] = joint_sqnr(wanted, self._with({**self.constants, **weights}, op).run(inputs))
        return found

    def _with(self, constants: Mapping[str, Array], kept: Op | None) -> Twin:
        """Real numbers everywhere, but for the activations that `kept` reads on grids."""
        given = self.network.coded & self.network.inputs.keys()

        def plain(read: Operand) -> Operand:
            return read if read.tensor in given else Operand(read.tensor)

        def operand(read: Operand, op: Op) -> Operand:
            return read if op is kept and read.tensor not in constants else plain(read)

        ops = tuple(
            replace(
                op,
                inputs=tuple(None if read is None else operand(read, op) for read in op.inputs),
                captured={name: operand(read, op) for name, read in op.captured.items()},
            )
            for op in self.network.ops
        )
        outputs = tuple(replace(out, read=plain(out.read), as_codes=False) for out in self.network.outputs)
        network = replace(self.network, ops=ops, outputs=outputs, constants=constants, coded=given)
        return Twin(network, OnnxSpec())


def joint_sqnr(wanted: Arrays, got: Arrays) -> float | None:
    """The SQNR of all float outputs together."""
    names = [name for name in wanted if name in got and wanted[name].size == got[name].size]
    real = [name for name in names if wanted[name].dtype.kind == "f"]
    if not real:
        return None
    return sqnr(*(np.concatenate([side[name].reshape(-1) for name in real]) for side in (wanted, got)))


def _real(network: Network, name: str) -> Array:
    """A constant as real numbers."""
    array = network.constants[name]
    encoding = next((one for one in network.encodings(name) if one is not None), None)
    if encoding is None:
        return array
    return encoding.dequantize(array if name in network.coded else encoding.quantize(array))


def _floats(network: Network, parameters: Arrays) -> dict[str, Array]:
    """The constants of the network whose float numbers are among `parameters`, in the layout of the network."""
    found: dict[str, Array] = {}
    for name, array in network.constants.items():
        stored = network.stored_as.get(name, StoredAs(name))
        value = parameters.get(stored.parameter)
        if value is None or stored.layout not in (Layout.SAME, Layout.TRANSPOSED):
            continue
        value = value.T if stored.layout is Layout.TRANSPOSED else value
        if value.shape == array.shape:
            found[name] = np.asarray(value, np.float32)
    return found


def name_of(op: Op) -> str:
    """Its name, or that of its result: a node of an ONNX file may have none."""
    return op.label


def quantized_operations(network: Network) -> Iterable[Op]:
    """Those that read something on a grid."""
    return (op for op in network.ops if any(read.encoding is not None for read in op.reads))
