"""ncnn's files: what is written is what ncnn's format says, and it comes back as it was."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import DeployError
from detent.targets.ncnn.file import NcnnLayer, NcnnModel, TableEntry, read_ncnn_table
from detent.targets.ncnn.file.table import table_of, write_table

f32 = np.float32

INPUT = NcnnLayer("Input", "x", (), ("x",), {0: 4, 1: 4, 2: 2})
CONV = NcnnLayer(
    "Convolution",
    "conv",
    ("x",),
    ("y",),
    {0: 3, 1: 1, 5: 1, 6: 6, 8: 102, 9: 3, 10: (0.0, 6.0), 11: 1},
    (
        np.array([1, -2, 3, -127, 127, 0], np.int8),
        np.array([0.5, -1.0, 0.25], f32),
        np.array([100.0, 50.0, 25.0], f32),
        np.array([10.0], f32),
        np.array([21.0], f32),
    ),
)


def test_param_is_the_text_that_ncnn_reads() -> None:
    assert NcnnModel((INPUT, CONV)).param().decode().splitlines() == [
        "7767517",
        "2 2",
        "Input x 0 1 x 0=4 1=4 2=2",
        "Convolution conv 1 1 x y 0=3 1=1 5=1 6=6 8=102 9=3 -23310=2,0.00000000e+00,6.00000000e+00 11=1",
    ]


def test_bin_has_a_tag_and_padding_before_floats() -> None:
    content = NcnnModel((INPUT, CONV)).bin()
    assert content[:4] == struct.pack("<I", 0x000D4B38)
    assert np.frombuffer(content[4:10], np.int8).tolist() == [1, -2, 3, -127, 127, 0]
    assert content[10:12] == b"\0\0"
    assert np.frombuffer(content[12:], "<f4").tolist() == [0.5, -1.0, 0.25, 100.0, 50.0, 25.0, 10.0, 21.0]


def test_files_come_back_as_they_were() -> None:
    model = NcnnModel((INPUT, CONV))
    again = NcnnModel.read(model.param(), model.bin())
    assert again.param() == model.param()
    assert again.bin() == model.bin()
    assert again.layer("conv").params == CONV.params
    assert again.layer("conv").int8
    assert again.layer("conv").gives_codes


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_parameter_keeps_every_float32_in_15_characters(value: float) -> None:
    model = NcnnModel((NcnnLayer("Clip", "clip", ("x",), ("y",), {0: value}),))
    text = model.param().decode().split("0=")[-1].strip()
    assert len(text) <= 15
    assert NcnnModel.read(model.param(), b"").layer("clip").params[0] == value


@pytest.mark.parametrize(
    ("param", "content", "found"),
    [
        (b"767517\n", b"", "begins with"),
        (NcnnModel((INPUT, CONV)).param(), NcnnModel((INPUT, CONV)).bin()[:-1], "too early"),
        (NcnnModel((INPUT, CONV)).param(), NcnnModel((INPUT, CONV)).bin() + b"\0", "1 bytes too many"),
    ],
)
def test_files_that_do_not_fit_are_refused(param: bytes, content: bytes, found: str) -> None:
    with pytest.raises(DeployError, match=found):
        NcnnModel.read(param, content)


def test_a_name_that_ncnn_would_cut_is_refused() -> None:
    with pytest.raises(DeployError, match="has spaces"):
        NcnnModel((NcnnLayer("Input", "an input", (), ("x",)),)).param()


def test_table_has_weights_first_and_reads_back() -> None:
    entries = (
        TableEntry("conv1", np.array([12.5, 130.25], f32), f32(31.75)),
        TableEntry("fc", np.array([1 / 3], f32), f32(1e-9)),
    )
    text = write_table(entries)
    assert text.decode().splitlines() == [
        "conv1_param_0 12.5 130.25",
        "fc_param_0 0.333333343",
        "conv1 31.75",
        "fc 9.99999972e-10",
    ]
    again = read_ncnn_table(text)
    assert [entry.layer for entry in again] == ["conv1", "fc"]
    for one, other in zip(entries, again, strict=True):
        assert one.weight.tolist() == other.weight.tolist()
        assert one.input == other.input


def test_table_of_a_model_has_its_integer_layers() -> None:
    (entry,) = table_of(NcnnModel((INPUT, CONV)))
    assert entry.layer == "conv"
    assert entry.weight.tolist() == [100.0, 50.0, 25.0]
    assert entry.input == 10.0


@pytest.mark.parametrize(
    ("text", "found"),
    [("a_param_0 1 2\n", "half of a"), ("a x\n", "line 1"), ("a 1 2\n", "2 scales"), ("a 1\n", "half of a")],
)
def test_a_table_that_says_too_little_is_refused(text: str, found: str) -> None:
    with pytest.raises(DeployError, match=found):
        read_ncnn_table(text.encode())
