"""Caffe's messages, built from the table of its format without a compiler."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from detent.frontends.caffe.format import ENUMS, MESSAGES

__all__ = ["message"]


def message(name: str) -> Any:
    """An empty message of Caffe's format."""
    return _classes()[f"detent.caffe.{name}"]()


@cache
def _classes() -> dict[str, Any]:
    descriptors: Any = import_module("google.protobuf.descriptor_pb2")
    pools: Any = import_module("google.protobuf.descriptor_pool")
    factory: Any = import_module("google.protobuf.message_factory")
    file = descriptors.FileDescriptorProto(name="detent/caffe.proto", package="detent.caffe", syntax="proto2")
    for enum, values in ENUMS.items():
        # Each in a message of its own: two of them have a value MAX.
        holder = file.message_type.add(name=f"{enum}Enum")
        described = holder.enum_type.add(name=enum)
        for value, number in values.items():
            described.value.add(name=value, number=number)
    for name, lines in MESSAGES.items():
        described = file.message_type.add(name=name)
        for line in filter(None, (line.strip() for line in lines.splitlines())):
            _add_field(described, line.split(), descriptors.FieldDescriptorProto)
    pool = pools.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [f"detent.caffe.{name}" for name in MESSAGES]
    return {name: factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


def _add_field(described: Any, words: list[str], fields: Any) -> None:
    label, kind, name, number, *default = words
    field = described.field.add(name=name, number=int(number))
    field.label = fields.LABEL_OPTIONAL if label == "optional" else fields.LABEL_REPEATED
    if label == "packed":
        field.options.packed = True
    if kind in ENUMS:
        field.type, field.type_name = fields.TYPE_ENUM, f".detent.caffe.{kind}Enum.{kind}"
    elif kind in MESSAGES:
        field.type, field.type_name = fields.TYPE_MESSAGE, f".detent.caffe.{kind}"
    else:
        field.type = getattr(fields, f"TYPE_{kind.upper()}")
    if default:
        field.default_value = default[0]
