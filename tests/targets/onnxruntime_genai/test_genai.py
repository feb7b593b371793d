"""Weights in blocks on ONNX Runtime: MatMulNBits and GatherBlockQuantized against the twin and the manifest."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import detent
from detent.ir import Op
from detent.ir.packed_numbers import pack_numbers, unpack_numbers
from detent.ir.roundoff import ErrorBound, error_bounds
from detent.targets.base.blocks import pack, unpack
from detent.targets.base.onnx_session import open_session
from detent.targets.onnxruntime_genai.arithmetic import RoundedActivations, round_blocks
from detent.targets.onnxruntime_genai.file import FILE, read_nbits
from detent.verification.vendor_files import vendor_disagreements
from tests.targets.weights_in_blocks import SCHEMES, TOKENS, Net, asked, deployed


@pytest.mark.parametrize("recipe", SCHEMES)
@pytest.mark.parametrize("backend", ["onnxruntime_genai", "onnxruntime_genai_a8"])
def test_engine_and_twin_agree(tmp_path, backend, recipe):
    artifact = deployed(tmp_path / "out", backend, SCHEMES[recipe])
    verdict = artifact.verify([TOKENS], latency=False)
    assert verdict.holds, str(verdict)
    compared = {found.tensor for found in verdict.tensors if found.what == "twin vs engine"}
    grouped = recipe != "w8g64-affine"  # 96 inputs of "down" are no groups of 64
    assert ({"table", "relu", "down"} if grouped else {"table", "words"}) <= compared
    kinds = [node.op_type for node in onnx.load_model(str(artifact.folder / FILE)).graph.node]
    assert (kinds.count("MatMulNBits"), kinds.count("GatherBlockQuantized")) == (3 if grouped else 2, 1)


def test_levels_differ_in_what_runs_on_integers(tmp_path):
    for backend, integers in (("onnxruntime_genai", 0), ("onnxruntime_genai_a8", 3)):
        verdict = deployed(tmp_path / backend, backend).verify([TOKENS], latency=False)
        assert sum(placed["ran_as"] == "integer" for placed in verdict.placements) == integers


def test_what_does_not_divide_stays_float():
    prepared = detent.prepare(Net().eval(), (TOKENS,), backend="onnxruntime_genai", recipe="w4g32")
    floats = {entry.tensor: entry.reason for entry in prepared.plan.kept_float}
    assert floats["last.weight"] == "50 inputs do not divide into groups of 32"
    assert {entry.tensor for entry in prepared.plan.quantized} == {
        "table.weight", "up.weight", "down.weight", "words.weight",
    }  # fmt: skip


def test_other_group_sizes_are_refused():
    with pytest.raises(detent.errors.SchemeError, match="groups of 16 or 32 or 64 or 128 or 256"):
        detent.prepare(
            Net().eval(), (TOKENS,), backend="onnxruntime_genai", recipe=asked(bits=4, granularity={"per_group": 8})
        )


def test_a_changed_code_is_found(tmp_path):
    artifact = deployed(tmp_path / "out", "onnxruntime_genai")
    model = onnx.load_model(str(artifact.folder / FILE))
    codes = next(each for each in model.graph.initializer if each.name == "down.weight_transposed_quantized")
    changed = numpy_helper.to_array(codes).copy()
    changed[0, 0, 0] ^= 1
    codes.CopyFrom(numpy_helper.from_array(changed, codes.name))
    before, after = (
        {blocks.tensor: blocks for blocks in read_nbits(content)}
        for content in ((artifact.folder / FILE).read_bytes(), model.SerializeToString())
    )
    assert (before[codes.name].codes != after[codes.name].codes).sum() == 1
    assert not list(vendor_disagreements(artifact))
    (artifact.folder / FILE).write_bytes(model.SerializeToString())
    assert list(vendor_disagreements(artifact)) == [f"down.weight: {FILE} has other numbers than model.onnx"]


def session_of(bits: int, size: int, level: int, codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None):
    rows, columns = codes.shape
    arrays = {"codes": pack(codes.reshape(rows, -1, size), bits), "scales": scale}
    if zero_point is not None:
        arrays["zero_points"] = pack(zero_point, bits)
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft",
        K=columns, N=rows, bits=bits, block_size=size, accuracy_level=level,
    )  # fmt: skip
    ports = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "xy")
    graph = helper.make_graph([node], "one", *ports, [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return open_session(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), threads=1)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [4, 8])
def test_integer_sums_of_a_block_are_equal(bits, size, rows):
    """One block, scales of 1: what the engine gives is the integer sum itself, also where a quotient is a tie, with
    codes of one sign and at the ends of their range."""
    rng = np.random.default_rng(bits * size + rows)
    codes = rng.integers(0, 1 << bits, (24, size))
    codes[0], codes[1] = 0, (1 << bits) - 1
    x = rng.integers(-254, 255, (rows, size)).astype(np.float32) / 2  # halves, of which 127 is the largest
    x[:, 0], x[0, 1:] = 127, np.abs(x[0, 1:])
    found = session_of(bits, size, 4, codes, np.ones((24, 1), np.float32), None).run(["y"], {"x": x})[0]
    wanted = np.rint(x).astype(np.int64) @ (codes - (1 << (bits - 1))).T
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("affine", [False, True], ids=["centered", "affine"])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_bound_of_sums_over_blocks_holds(bits, affine):
    """And is not idle: it is less than what one code of an activation changes, at a middling weight."""
    rng, size = np.random.default_rng(bits), 32
    codes, scale = rng.integers(0, 1 << bits, (16, 256)), rng.random((16, 8), np.float32) / 100
    zero_point = rng.integers(0, 1 << bits, (16, 8)) if affine else np.full((16, 8), 1 << (bits - 1))
    x = rng.standard_normal((7, 256)).astype(np.float32)
    found = session_of(bits, size, 4, codes, scale, zero_point if affine else None).run(["y"], {"x": x})[0]
    steps = (codes.reshape(16, 8, size) - zero_point[..., None]).astype(np.float32)
    weight = torch.from_numpy((steps * scale[..., None]).reshape(16, 256))
    reach = torch.from_numpy(((scale * ((1 << bits) - 1 + zero_point)).T).astype(np.float32))
    op = Op("MatMulNBits", "y", (), ("y",), {"block_size": size, "transB": 1})
    bounds = [*(ErrorBound(each) for each in (torch.from_numpy(x), weight, reach)), None]
    product = RoundedActivations.product
    (bound,) = error_bounds(op, lambda *given: product.multiply(op, *given), bounds, product.error)
    apart = np.abs(found - bound.value.numpy())
    assert (apart <= bound.spread.numpy()).all()
    step = float(round_blocks(bounds[0].value, size)[1].median() * np.median(scale)) * (1 << (bits - 2))
    assert bound.spread.median() < step


def test_four_bits_are_packed_low_half_first():
    codes = np.array([[1, 2, 15]])
    assert pack(codes, 4).tolist() == [[0x21, 0x0F]]
    assert unpack(pack(codes, 4), 4, 3).tolist() == [[1, 2, 15]]


def test_scales_of_groups_are_packed_in_the_manifest(tmp_path):
    artifact = deployed(tmp_path / "out", "onnxruntime_genai")
    text = (artifact.folder / "manifest.json").read_text()
    assert text.count('"zlib"') == 8  # scales and zero points of four weights
    rows = {row["tensor"]: row for row in artifact.manifest["tensors"]}
    assert np.shape(rows["down.weight"]["scale"]) == (64, 3)


@pytest.mark.parametrize("change", [{"shape": [3]}, {"dtype": "float64"}, {"zlib": "AAAA"}, {"zlib": 3}, {"more": 1}])
def test_damaged_packed_numbers_are_refused(change):
    packed = pack_numbers(np.arange(4, dtype=np.int64).reshape(2, 2))
    assert unpack_numbers(packed).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="packed numbers"):
        unpack_numbers({**packed, **change})


@pytest.mark.parametrize(
    ("backend", "inputs", "to_do"),
    [
        ("onnxruntime_genai", 48, "ask for groups that divide the inputs of a layer, for instance"),
        ("onnxruntime_genai", 20, "use another target: groups of onnxruntime_genai are 16, 32, 64, 128, 256"),
        ("compressed_tensors", 48, "use another target: groups of compressed_tensors are 32, 64, 128, 256"),
    ],
)
def test_weights_of_which_none_divides_are_refused_with_what_would_help(backend, inputs, to_do):
    with pytest.raises(detent.errors.RecipeError, match=f"{inputs} inputs do not divide into groups of 32") as refused:
        detent.prepare(nn.Linear(inputs, 4), (torch.zeros(1, inputs),), backend=backend, recipe="w4g32")
    assert refused.value.to_do.startswith(to_do)
    assert ("per_group: 16" in refused.value.to_do) == (backend == "onnxruntime_genai" and inputs == 48)
