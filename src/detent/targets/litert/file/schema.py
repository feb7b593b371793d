"""The flatbuffer schema of .tflite files, which comes with the LiteRT package."""

from __future__ import annotations

import importlib
from typing import Any

from detent.errors import DeployError, install_hint

__all__ = ["DTYPES", "OPTIONS", "code_of", "name_of", "schema"]

DTYPES = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "int4": "INT4",
    "int8": "INT8",
    "uint8": "UINT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
"""Types of tensors: numpy's name, as far as it has one, and that of the schema."""

OPTIONS: dict[str, str] = {
    "ADD": "AddOptions",
    "ARG_MAX": "ArgMaxOptions",
    "ARG_MIN": "ArgMinOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BROADCAST_TO": "BroadcastToOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "CUMSUM": "CumsumOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions",
    "DIV": "DivOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "GATHER": "GatherOptions",
    "GELU": "GeluOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "MUL": "MulOptions",
    "PACK": "PackOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SPLIT": "SplitOptions",
    "SPLIT_V": "SplitVOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "SUB": "SubOptions",
    "SUM": "ReducerOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "UNPACK": "UnpackOptions",
}
"""The table of options that goes with an operator; one that is not here has none that matter."""


def schema() -> Any:
    """The generated module, or an error that says how to get it."""
    try:
        return importlib.import_module("ai_edge_litert.schema_py_generated")
    except ImportError:
        raise DeployError(
            "read or write a .tflite file",
            "its schema comes with LiteRT, which is not installed",
            install_hint("litert"),
        ) from None


def code_of(enum: Any, name: str) -> int:
    """The number that an enumeration of the schema gives to a name."""
    return int(getattr(enum, name))


def name_of(enum: Any, code: int) -> str:
    """The name of an enumeration value; `UNKNOWN_<code>` if this version of the schema does not have it."""
    return next((name for name, value in vars(enum).items() if value == code), f"UNKNOWN_{code}")
