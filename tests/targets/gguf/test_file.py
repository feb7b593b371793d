"""GGUF files: blocks against llama.cpp's own Python reader, the container, the mixes, and what is refused."""

import struct

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.errors import ArtifactError, DeployError, RecipeError
from detent.numerics import super_block_scales
from detent.planning.mixes import MixedWeight
from detent.targets.gguf.architecture import interleaved, split_halves, values_of
from detent.targets.gguf.block_types import TYPES, Coded, real_numbers
from detent.targets.gguf.container import Container, GgufTensor, read, write
from detent.targets.gguf.file import FILE, SIZES, read_gguf
from detent.targets.gguf.mix import mixed, type_in_mix
from detent.verification.vendor_files import vendor_disagreements
from tests.targets.gguf.llama import Config, deployed


def coded(name: str, rows: int = 3, columns: int = 512) -> Coded:
    kind, rng = TYPES[name], np.random.default_rng(len(name))
    low, high = (0, 16) if name == "Q4_K" else (-kind.middle, kind.middle)
    codes, groups = rng.integers(low, high, (rows, columns)), columns // kind.group
    scale = torch.from_numpy(rng.random((rows, groups), np.float32) / 50)
    if kind.scale == "float16":
        return Coded(codes, scale.half().float().numpy())
    on_grid = [(many * one).flatten(-2).numpy() for many, one in (super_block_scales(scale, kind.scale),) * 2]
    return Coded(codes, on_grid[0], on_grid[1][:, ::-1].copy() if name == "Q4_K" else None)


@pytest.mark.parametrize("name", TYPES)
def test_blocks_come_back(name):
    kind, wanted = TYPES[name], coded(name)
    packed = kind.pack(wanted)
    assert packed.shape == (3, 512 // kind.block * kind.width)
    found = kind.unpack(packed, 512)
    assert np.array_equal(found.codes, wanted.codes)
    assert np.array_equal(found.scale, wanted.scale)
    assert np.array_equal(real_numbers(found), real_numbers(wanted))


@pytest.mark.gguf
@pytest.mark.parametrize("name", TYPES)
def test_the_reader_of_llama_cpp_decodes_the_same_numbers(name):
    gguf = pytest.importorskip("gguf", reason="needs the extra `gguf`")
    kind, wanted = TYPES[name], coded(name)
    theirs = gguf.dequantize(kind.pack(wanted), gguf.GGMLQuantizationType[name])
    assert gguf.GGMLQuantizationType[name] == kind.number
    np.testing.assert_array_equal(theirs, real_numbers(wanted))


def test_bytes_of_a_block():
    """Literal ones: a scale of 0.5 is 0x3800; codes of 4 bits stand 16 apart in a byte."""
    codes = np.zeros((1, 32), np.int64)
    codes[0, :2], codes[0, 16] = (-8, 7), 1
    packed = TYPES["Q4_0"].pack(Coded(codes, np.array([[0.5]], np.float32)))
    assert packed[0].tolist() == [0x00, 0x38, 0x90, 0x8F, *[0x88] * 14]
    packed = TYPES["Q8_0"].pack(Coded(codes, np.array([[0.5]], np.float32)))
    assert packed[0, :4].tolist() == [0x00, 0x38, 0xF8, 0x07]


def test_a_container_comes_back():
    values = {"a": "text", "b": True, "c": 7, "d": 0.5, "e": ["x", "yz"], "f": [1, -2]}
    tensors = {"w": GgufTensor((2, 3), 0, np.arange(6, dtype="<f4").tobytes()), "v": GgufTensor((1,), 0, bytes(4))}
    content = write(Container(values, tensors))
    found = read(content, SIZES)
    assert found.values == values
    assert {name: (held.shape, held.type, held.content) for name, held in found.tensors.items()} == {
        name: (held.shape, held.type, held.content) for name, held in tensors.items()
    }
    with pytest.raises(ArtifactError, match="ends too early"):
        read(content[:-32], SIZES)
    with pytest.raises(ArtifactError, match="does not begin with GGUF"):
        read(b"gguf" + content[4:], SIZES)


def test_a_tensor_without_numbers_is_refused():
    content = write(Container({}, {"w": GgufTensor((0, 32), 8, b""), "v": GgufTensor((1,), 0, bytes(4))}))
    with pytest.raises(ArtifactError, match="w has a dimension of 0"):
        read(content, SIZES)


def test_tensors_that_share_their_bytes_are_refused():
    """A small file would be read as many times its size."""
    head = [b"GGUF", struct.pack("<IQQ", 3, 2, 0)]
    for name in (b"v", b"w"):
        head.append(struct.pack("<Q", 1) + name + struct.pack("<IQIQ", 1, 64, 0, 0))
    content = b"".join(head)
    content += bytes(-len(content) % 32) + bytes(256)
    with pytest.raises(ArtifactError, match="lie over one another"):
        read(content, SIZES)


@pytest.mark.parametrize("value", [2**40, -1, 1e300, "\ud800", [2**40], ["\ud800"], [{}]], ids=ascii)
def test_a_value_that_a_file_cannot_hold_is_refused(value):
    """Of a config.json or a tokenizer that comes from anywhere."""
    with pytest.raises(DeployError, match="it cannot hold a key: "):
        write(Container({"a key": value}))


def test_rows_of_heads_are_put_side_by_side():
    rows = np.arange(16).reshape(8, 2)
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 4, 2, 6, 8, 12, 10, 14]
    assert np.array_equal(split_halves(interleaved(rows, 2), 2), rows)


@pytest.mark.parametrize(
    ("mix", "name", "columns", "tied", "wanted"),
    [
        ("q8_0", "blk.0.attn_q", 256, False, "Q8_0"),
        ("q8_0", "output", 256, False, "Q8_0"),
        ("q4_0", "blk.0.ffn_down", 64, False, "Q4_0"),
        ("q4_0", "output", 256, False, "Q6_K"),
        ("q4_0", "token_embd", 256, False, "Q4_0"),
        ("q4_0", "token_embd", 256, True, "Q6_K"),
        ("q4_0", "output", 64, False, "Q8_0"),
        ("q4_0", "blk.0.ffn_down", 172, False, None),
        ("q4_k_m", "blk.1.attn_v", 256, False, "Q4_K"),
        ("q4_k_m", "blk.3.attn_v", 256, False, "Q6_K"),
        ("q4_k_m", "blk.7.ffn_down", 256, False, "Q6_K"),
        ("q4_k_m", "blk.7.ffn_up", 256, False, "Q4_K"),
        ("q4_k_m", "blk.7.ffn_up", 96, False, "Q5_0"),
        ("q4_k_m", "blk.7.ffn_down", 96, False, "Q8_0"),
        ("q6_k", "blk.0.attn_q", 256, False, "Q6_K"),
    ],
)
def test_which_weight_gets_what(mix, name, columns, tied, wanted):
    assert type_in_mix(mix, name, columns, layers=8, tied=tied) == wanted


def test_a_mix_is_rules_of_a_recipe():
    weights = [
        MixedWeight("layers.0.mlp.down_proj", "linear", (8, 256), False),
        MixedWeight("x", "linear", (8, 8), False),
    ]
    first, other = mixed("q4_k_m", weights)
    assert first.weight.to_dict() == {
        "bits": 6, "granularity": {"per_group": 16}, "scale": "super8", "symmetric": True, "signed": True,
    }  # fmt: skip
    assert other.weight.to_dict() == {}  # as the recipe says
    with pytest.raises(RecipeError, match="gguf has q8_0, q4_0, q6_k, q4_k_m"):
        list(mixed("q3_k", weights))
    with pytest.raises(RecipeError, match="it has no mix of formats called 'q4_0'"):
        detent.prepare(nn.Linear(32, 4), (torch.zeros(1, 32),), backend="onnxruntime_genai", recipe="q4_0")


@pytest.mark.parametrize("recipe", ["q4_k_m", "q4_0"])
def test_the_file_holds_what_was_simulated(tmp_path, recipe):
    artifact = deployed(tmp_path / "out", recipe)
    assert list(vendor_disagreements(artifact)) == []
    content = (artifact.folder / FILE).read_bytes()
    kinds = {name: kind.name for name, kind, _ in read_gguf(content)}
    assert kinds == {
        "embed_tokens.weight": "Q4_K" if recipe == "q4_k_m" else "Q4_0",
        **{
            f"layers.0.{name}_proj.weight": "Q4_K" if recipe == "q4_k_m" else "Q4_0"
            for name in ("self_attn.q", "self_attn.k", "self_attn.o", "mlp.gate", "mlp.up")
        },
        "layers.0.self_attn.v_proj.weight": "Q6_K" if recipe == "q4_k_m" else "Q4_0",
        "layers.0.mlp.down_proj.weight": "Q8_0" if recipe == "q4_k_m" else "Q4_0",  # 288 inputs are no super-blocks
        "lm_head.weight": "Q6_K",
    }
    changed = bytearray(content)
    changed[-40] ^= 1  # in the last block of the head
    (artifact.folder / FILE).write_bytes(bytes(changed))
    assert list(vendor_disagreements(artifact)) == [f"lm_head.weight: {FILE} has other numbers than model.onnx"]


def test_a_head_that_is_the_table_is_written_once(tmp_path):
    artifact = deployed(tmp_path / "out", "q8_0", tied=True)
    content = (artifact.folder / FILE).read_bytes()
    assert "output.weight" not in read(content, SIZES).tensors
    assert list(vendor_disagreements(artifact)) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"model_type": "bert"}, "the model is a bert, and not one of llama, mistral"),
        ({"attention_bias": True}, "the model has attention_bias True"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "the model has rotary positions 'yarn'"),
    ],
)
def test_what_cannot_be_said_is_refused(changes, found):
    with pytest.raises(DeployError, match=found):
        values_of(Config(**changes).to_dict(), words=8)


@pytest.mark.parametrize("changes", [{"rms_norm_eps": None}, {"rope_parameters": [1]}], ids=str)
def test_a_config_that_says_nonsense_is_refused(changes, tmp_path):
    with pytest.raises(DeployError, match="Error: "):
        deployed(tmp_path / "out", "q8_0", **changes)


def test_a_model_without_a_config_is_refused(tmp_path):
    prepared = detent.prepare(nn.Linear(32, 4), (torch.zeros(1, 32),), backend="gguf", recipe="w8")
    detent.calibrate(prepared, [torch.ones(1, 32)])
    with pytest.raises(DeployError, match="the model has no config"):
        detent.deploy(prepared, tmp_path / "out")
