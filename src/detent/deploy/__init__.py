"""FILES: a prepared model as QDQ ONNX, and one writer per vendor's file format."""

from __future__ import annotations

from detent.deploy.deployment import DeployedTensor, Deployment, Writer
from detent.deploy.encoding import Encoding
from detent.deploy.files import FILES, register, writer
from detent.deploy.float_model import float_model
from detent.deploy.package import Package
from detent.deploy.qdq_graph import TRANSPOSED, Op, Output, Port, QdqGraph, Read
from detent.deploy.qdq_reading import read_qdq
from detent.deploy.saturation import can_saturate
from detent.deploy.write import deployment_of, require_writable, write

__all__ = [
    "FILES",
    "TRANSPOSED",
    "DeployedTensor",
    "Deployment",
    "Encoding",
    "Op",
    "Output",
    "Package",
    "Port",
    "QdqGraph",
    "Read",
    "Writer",
    "can_saturate",
    "deployment_of",
    "float_model",
    "read_qdq",
    "register",
    "require_writable",
    "write",
    "writer",
]
