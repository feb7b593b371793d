"""FILES: a prepared model as QDQ ONNX, and in the formats of vendors."""

from __future__ import annotations

from detent.deploy.deployment import DeployedTensor, Deployment
from detent.deploy.encoding import Encoding
from detent.deploy.files import FORMATS, find_format, register
from detent.deploy.float_model import float_model
from detent.deploy.format import Format, TensorFacts, Written, parameter_name
from detent.deploy.package import Package
from detent.deploy.qdq_graph import TRANSPOSED, Op, Output, Port, QdqGraph, Read
from detent.deploy.qdq_reading import read_qdq
from detent.deploy.saturation import can_saturate
from detent.deploy.write import deployment_of, require_writable, write

__all__ = [
    "FORMATS",
    "TRANSPOSED",
    "DeployedTensor",
    "Deployment",
    "Encoding",
    "Format",
    "Op",
    "Output",
    "Package",
    "Port",
    "QdqGraph",
    "Read",
    "TensorFacts",
    "Written",
    "can_saturate",
    "deployment_of",
    "find_format",
    "float_model",
    "parameter_name",
    "read_qdq",
    "register",
    "require_writable",
    "write",
]
