"""Shape inference on a network."""

from __future__ import annotations

from dataclasses import replace

from detent.ir.network import Network, Port
from detent.ir.onnx_writer import write_qdq
from detent.ir.shapes import Shape, shapes_of

__all__ = ["infer_shapes"]

_SMALL = 1024  # elements; a constant that says a shape or axes has fewer


def infer_shapes(network: Network) -> Network:
    """`network` with the shape of every tensor that can be inferred."""
    known: dict[str, Shape] = {name: port.shape for name, port in network.inputs.items()}
    known |= {name: array.shape for name, array in network.constants.items()}
    known |= network.shapes
    missing = {name for op in network.ops for name in op.outputs if name and name not in known}
    if missing:
        inferred = shapes_of(write_qdq(_without_weights(network)))
        known |= {name: inferred[name] for name in missing if name in inferred}
    return replace(network, shapes=known)


def _without_weights(network: Network) -> Network:
    """Large constants as inputs: inference takes a file, and they are not to be copied into one."""
    large = {name: array for name, array in network.constants.items() if array.size > _SMALL}
    ports = {name: Port(_dtype(network, name), array.shape) for name, array in large.items()}
    small = {name: array for name, array in network.constants.items() if name not in large}
    return replace(network, inputs={**network.inputs, **ports}, constants=small)


def _dtype(network: Network, constant: str) -> str:
    encoding = next(iter(network.encodings(constant)), None)
    return str(network.constants[constant].dtype) if encoding is None else encoding.dtype
