"""Operator versions for the file: the first that supports the types in use."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["version_of"]

_INT8 = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "ELU": 1,
    "FULLY_CONNECTED": 4,
    "GELU": 2,
    "HARD_SWISH": 1,
    "PRELU": 1,
    "QUANTIZE": 2,
    "RESHAPE": 1,
    "TRANSPOSE_CONV": 3,
}
"""With int8; 2 for those that are not here."""

_INT16 = {
    "BROADCAST_TO": 2,
    "CONV_2D": 4,
    "DEPTHWISE_CONV_2D": 5,
    "FULLY_CONNECTED": 7,
    "GATHER": 4,
    "GELU": 2,
    "LEAKY_RELU": 2,
    "MAXIMUM": 4,
    "MINIMUM": 4,
    "MUL": 4,
    "QUANTIZE": 2,
    "RESHAPE": 1,
    "RESIZE_BILINEAR": 4,
    "RESIZE_NEAREST_NEIGHBOR": 4,
    "SPLIT": 4,
    "SPLIT_V": 2,
    "STRIDED_SLICE": 2,
    "SUB": 5,
    "TILE": 2,
    "TRANSPOSE": 5,
}
"""With int16; 3 for those that are not here."""

_INT16_AND_INT32 = {"CONV_2D": 8}
"""With a bias of int32, which others do not have where activations are int16."""

_INT4 = {"CONV_2D": 7, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 10}
"""With weights of int4. Of depthwise convolutions it is 7, which LiteRT does not find when it runs reference kernels,
and the kernels of 6 are the same."""

_INT4_AND_INT16 = {"CONV_2D": 7, "FULLY_CONNECTED": 13}

_OTHERS = {"BROADCAST_TO": 2}
"""With other types; 1 for those that are not here."""


def version_of(kind: str, dtypes: Collection[str]) -> int:
    """The version of an operator between tensors of these types.

    >>> version_of("CONV_2D", ["int8", "int4", "int32"]), version_of("ADD", ["int16"]), version_of("ADD", ["float32"])
    (7, 3, 1)
    """
    if "int16" in dtypes and "int32" in dtypes and kind in _INT16_AND_INT32:
        return _INT16_AND_INT32[kind]
    if "int4" in dtypes:
        return (_INT4_AND_INT16 if "int16" in dtypes else _INT4)[kind]
    if "int16" in dtypes:
        return _INT16.get(kind, 3)
    if "int8" in dtypes:
        return _INT8.get(kind, 2)
    return _OTHERS.get(kind, 1)
