"""The deployment IR: a network whose operands carry their qparams, and one table of its operators."""

from __future__ import annotations

from detent.ir.attributes import attribute_value, changed_defaults, default_activations, schema_defaults
from detent.ir.deployed_tensor import DeployedTensor
from detent.ir.names import TensorNames
from detent.ir.network import Layout, Network, Op, Operand, Output, Port, StoredAs, per_network
from detent.ir.onnx_reader import read_qdq
from detent.ir.onnx_writer import write_qdq
from detent.ir.ops import OPS, OpSpec, Trait, ops_with
from detent.ir.package import Package
from detent.ir.patterns import (
    clip_bounds,
    constant_values,
    is_output,
    reduced_axes,
    requantizes,
    sole_float_reader,
    sole_reader,
)
from detent.ir.qparams import Encoding
from detent.ir.saturation import can_saturate

__all__ = [
    "OPS",
    "DeployedTensor",
    "Encoding",
    "Layout",
    "Network",
    "Op",
    "OpSpec",
    "Operand",
    "Output",
    "Package",
    "Port",
    "StoredAs",
    "TensorNames",
    "Trait",
    "attribute_value",
    "can_saturate",
    "changed_defaults",
    "clip_bounds",
    "constant_values",
    "default_activations",
    "is_output",
    "ops_with",
    "per_network",
    "read_qdq",
    "reduced_axes",
    "requantizes",
    "schema_defaults",
    "sole_float_reader",
    "sole_reader",
    "write_qdq",
]
