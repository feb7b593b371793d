"""AMCT's record, read by protobuf with the schema that Huawei's document gives for ONNX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from detent.errors import ArtifactError, DeployError
from detent.targets.ascend import FORMAT, AscendRecord, read_records
from tests.targets.parameter_files.sample import (
    INT8,
    INT8_AFFINE,
    PER_CHANNEL,
    SCALES,
    UINT8,
    WEIGHT_SCALES,
    deployment,
)

FIELD = descriptor_pb2.FieldDescriptorProto


def schema() -> Any:
    """scale_offset_record_onnx.proto, as far as scales go. Fields it does not name are errors when text is parsed."""
    file = descriptor_pb2.FileDescriptorProto(name="record.proto", syntax="proto2")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            made.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)

    one, many = FIELD.LABEL_OPTIONAL, FIELD.LABEL_REPEATED
    message(
        "SingleLayerRecord",
        ("scale_d", 1, FIELD.TYPE_FLOAT, one, ""),
        ("offset_d", 2, FIELD.TYPE_INT32, one, ""),
        ("scale_w", 3, FIELD.TYPE_FLOAT, many, ""),
        ("offset_w", 4, FIELD.TYPE_INT32, many, ""),
    )
    message(
        "MapFiledEntry",
        ("key", 1, FIELD.TYPE_STRING, one, ""),
        ("value", 2, FIELD.TYPE_MESSAGE, one, ".SingleLayerRecord"),
    )
    message("ScaleOffsetRecord", ("record", 1, FIELD.TYPE_MESSAGE, many, ".MapFiledEntry"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ScaleOffsetRecord"))()


def test_protobuf_reads_the_text():
    made = deployment("ascend", activation=UINT8, weight=PER_CHANNEL, bias=None)
    for tensor in made.parameters:
        if tensor.tensor == "fc.weight":
            object.__setattr__(tensor, "scheme", INT8)
            object.__setattr__(tensor, "scale", np.float32(0.03))
    found = text_format.Parse(FORMAT.write(made).files["ascend_record.txt"].decode(), schema())
    assert [entry.key for entry in found.record] == ["conv1", "conv2", "fc"]
    first = found.record[0].value
    assert np.float32(first.scale_d) == np.float32(SCALES["x"])
    assert first.offset_d == 100 - 128
    np.testing.assert_array_equal(np.float32(first.scale_w), np.float32(WEIGHT_SCALES["conv1.weight"]))
    assert list(first.offset_w) == [0, 0]


@pytest.mark.parametrize("activation", [UINT8, INT8_AFFINE], ids=str)
def test_signed_and_unsigned_codes_have_one_offset(activation):
    """AMCT counts from -128, so that the same grid has the same offset whichever way it is stored."""
    found = read_records(
        FORMAT.write(deployment("ascend", activation=activation, weight=INT8, bias=None)).files["ascend_record.txt"]
    )
    assert found == {
        "conv1": AscendRecord(0.1, -28, (0.02,)),
        "conv2": AscendRecord(0.25, -128, (0.005,)),
        "fc": AscendRecord(0.2, -118, (0.03,)),
    }


def test_operations_without_a_record_are_named():
    made = deployment("ascend", activation=UINT8, weight=INT8, bias=None)
    assert any("no record for add, pool" in note for note in FORMAT.write(made).notes)


def test_a_linear_layer_has_one_scale():
    with pytest.raises(DeployError, match=r"weight 'fc.weight'.*as ascend_record\n.*one scale"):
        FORMAT.write(deployment("ascend", activation=UINT8, bias=None))


def test_a_scale_out_of_amct_s_bounds_is_refused():
    with pytest.raises(DeployError, match=r"'x'.*\n.*outside of 1.19e-07"):
        FORMAT.write(deployment("ascend", activation=UINT8, weight=INT8, bias=None, scales={**SCALES, "x": 1e-8}))


def test_a_record_without_a_scale_is_refused():
    with pytest.raises(ArtifactError):
        read_records(b'record {\n  key: "c"\n  value {\n    offset_d: 1\n  }\n}\n')
