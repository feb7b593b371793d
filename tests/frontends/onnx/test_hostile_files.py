"""Damaged and malicious files: a clear error, no crash, no read outside the model's folder, bounded memory."""

from __future__ import annotations

import itertools
import os
import random
import resource
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import fx

from detent import load
from detent.errors import OnnxError
from detent.frontends.onnx import example_inputs
from detent.frontends.onnx.reading.files import _opened
from tests.models import MODELS

MEGABYTES = 1024
OPERATORS = sorted(schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == "")


def relu_model(**changes: Any) -> ModelProto:
    graph = helper.make_graph(
        changes.get("nodes", [helper.make_node("Add", ["x", "w"], ["y"], name="add")]),
        "net",
        [helper.make_tensor_value_info("x", changes.get("type", TensorProto.FLOAT), [2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in changes.get("outputs", ["y"])],
        changes.get("initializers", [numpy_helper.from_array(np.array([1, 2], np.float32), "w")]),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved(model: ModelProto, folder: Path) -> Path:
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return file


# --- files --------------------------------------------------------------------------------------------------


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="no such file"):
        load(tmp_path / "absent.onnx")


@pytest.mark.parametrize(
    "content", [b"\x08", b"not a model", b"\xff" * 100, b""], ids=["cut", "text", "noise", "empty"]
)
def test_no_onnx_file(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    with pytest.raises(OnnxError):
        load(file)


def test_every_truncation_is_an_error_or_a_model(tmp_path: Path) -> None:
    content = relu_model().SerializeToString()
    file = tmp_path / "model.onnx"
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(OnnxError):
            load(file)


# --- graphs -------------------------------------------------------------------------------------------------

GRAPHS: dict[str, tuple[dict[str, Any], str]] = {
    "cycle": (
        {
            "nodes": [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])],
            "outputs": ["b"],
        },
        "cycle",
    ),
    "reads-itself": ({"nodes": [helper.make_node("Add", ["x", "y"], ["y"])]}, "cycle"),
    "missing-initializer": ({"initializers": []}, "'w', which no input"),
    "output-of-nothing": ({"outputs": ["z"]}, "nothing computes it"),
    "no-outputs": ({"outputs": []}, "no outputs"),
    "given-twice": ({"nodes": [helper.make_node("Relu", ["x"], ["y"])] * 2}, "given twice"),
    "missing-input": ({"nodes": [helper.make_node("Add", ["x"], ["y"])]}, "input 1 is missing"),
    "wrong-attribute": ({"nodes": [helper.make_node("Softmax", ["x"], ["y"], axis="one")]}, "another type"),
    "text": ({"type": TensorProto.STRING}, "STRING"),
    "shapes-that-do-not-fit": (
        {
            "nodes": [helper.make_node("Add", ["v", "w"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
            "initializers": [
                numpy_helper.from_array(np.zeros(n, np.float32), name) for n, name in ((2, "v"), (3, "w"))
            ],
        },
        "contradicts itself",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_broken_graphs(name: str) -> None:
    changes, words = GRAPHS[name]
    with pytest.raises(OnnxError, match=words):
        load(relu_model(**changes))


@pytest.mark.parametrize(
    "dims", [[2**62], [-1], [2**31, 2**31, 2**31], [3]], ids=["huge", "negative", "overflow", "off-by-one"]
)
def test_absurd_shapes_of_initializers(dims: list[int]) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"\0" * 8)
    with pytest.raises(OnnxError, match="'w'"):
        load(relu_model(initializers=[tensor]))


def constant(name: str, values: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


BOMBS: dict[str, tuple[list[Any], list[TensorProto]]] = {
    "ConstantOfShape": ([helper.make_node("ConstantOfShape", ["s"], ["c"])], [constant("s", [2**40])]),
    "Expand": ([helper.make_node("Expand", ["o", "s"], ["c"])], [constant("o", [1.0]), constant("s", [2**40])]),
    "Tile": ([helper.make_node("Tile", ["o", "s"], ["c"])], [constant("o", [1.0]), constant("s", [2**40])]),
    "Range": (
        [helper.make_node("Range", ["a", "b", "d"], ["c"])],
        [constant("a", np.int64(0)), constant("b", np.int64(2**50)), constant("d", np.int64(1))],
    ),
    "Pad": ([helper.make_node("Pad", ["o", "p"], ["c"])], [constant("o", [1.0]), constant("p", [2**40, 0])]),
    "Resize": (
        [helper.make_node("Resize", ["o", "", "s"], ["c"])],
        [constant("o", np.ones((1, 1), np.float32)), constant("s", np.array([2.0**20, 2.0**20], np.float32))],
    ),
    "OneHot": (
        [helper.make_node("OneHot", ["i", "d", "v"], ["c"])],
        [constant("i", [1]), constant("d", [2**40]), constant("v", np.array([0, 1], np.float32))],
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_does_not_ask_for_all_the_memory(name: str) -> None:
    nodes, tensors = BOMBS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OnnxError):
        load(relu_model(nodes=[*nodes, helper.make_node("Mul", ["x", "c"], ["y"])], initializers=tensors))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def test_a_product_that_grows_is_not_folded() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Mul", ["x", "c"], ["y"])]
    tensors = [constant("a", np.ones((30000, 1), np.float32)), constant("b", np.ones((1, 30000), np.float32))]
    graph = load(relu_model(nodes=nodes, initializers=tensors))
    assert max(tensor.numel() for tensor in graph.state_dict().values()) == 30000


def test_constants_that_double_are_folded_up_to_a_bound() -> None:
    names = [f"c{index}" for index in range(41)]
    nodes = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in itertools.pairwise(names)]
    nodes += [helper.make_node("Shape", ["c40"], ["s"]), helper.make_node("Reshape", ["x", "s"], ["y"])]
    graph = load(relu_model(nodes=nodes, initializers=[constant("c0", np.ones(8, np.float32))]))
    assert sum(tensor.numel() for tensor in graph.state_dict().values()) < 2**25


def test_many_large_constants_are_not_all_folded() -> None:
    nodes, names = [], []
    for index in range(20):
        names.append(f"c{index}")
        nodes.append(helper.make_node("ConstantOfShape", ["s"], [names[-1]]))
    nodes.append(helper.make_node("Concat", names, ["c"], axis=0))
    nodes += [helper.make_node("ReduceSum", ["c"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    graph = load(relu_model(nodes=nodes, initializers=[constant("s", [2**23])]))
    assert sum(tensor.numel() for tensor in graph.state_dict().values()) < 2**28
    assert any(node.op == "call_module" for node in graph.graph.nodes)


# --- external data ------------------------------------------------------------------------------------------


def external(location: str, **entries: str) -> ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return relu_model(initializers=[tensor])


def test_external_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 4 + np.array([3, 4], np.float32).tobytes())
    graph = load(saved(external("weights.bin", offset="4", length="8"), tmp_path))
    assert graph(torch.tensor([1.0, 1.0])).tolist() == [4.0, 5.0]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that a model in `tmp_path / "model"` must not read."""
    (tmp_path / "model").mkdir()
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.array([3, 4], np.float32).tobytes())
    return secret


PATHS: dict[str, Callable[[Path], str]] = {
    "parent": lambda _: "../secret.bin",
    "hidden-parent": lambda _: "inner/../../secret.bin",
    "absolute": lambda secret: str(secret),
    "empty": lambda _: "",
    "folder": lambda _: ".",
    "zero-byte": lambda _: "a\0b",
    "absent": lambda _: "absent.bin",
    "device": lambda _: "/dev/zero",
}


@pytest.mark.parametrize("name", PATHS)
def test_external_data_outside_the_folder_is_not_read(name: str, outside: Path) -> None:
    folder = outside.parent / "model"
    (folder / "inner").mkdir()
    with pytest.raises(OnnxError, match="'w'"):
        load(saved(external(PATHS[name](outside)), folder))


@pytest.mark.parametrize("link", ["file", "folder"])
def test_symbolic_links_out_of_the_folder_are_not_followed(link: str, outside: Path) -> None:
    folder = outside.parent / "model"
    os.symlink(outside if link == "file" else outside.parent, folder / "link")
    with pytest.raises(OnnxError, match="leads out"):
        load(saved(external("link" if link == "file" else "link/secret.bin"), folder))


@pytest.mark.parametrize("entries", [{"offset": "-4"}, {"length": "99"}, {"offset": "x"}, {"offset": str(2**70)}])
def test_external_data_beyond_the_file(entries: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 8)
    with pytest.raises(OnnxError):
        load(saved(external("weights.bin", **entries), tmp_path))


def test_external_data_without_a_length_is_as_long_as_its_tensor(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    graph = load(saved(external("weights.bin", offset="8"), tmp_path))
    assert graph(torch.zeros(2)).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_external_data_that_is_no_plain_file_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "weights.bin"
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    with pytest.raises(OnnxError, match="not a plain file"):
        load(saved(external("weights.bin"), tmp_path))


def test_a_link_that_takes_the_place_of_a_checked_file_is_not_followed(outside: Path) -> None:
    (outside.parent / "model" / "weights.bin").symlink_to(outside)
    with pytest.raises(OnnxError, match="cannot be read"):
        _opened(outside.parent / "model" / "weights.bin", "read it")


def test_tensors_that_all_read_one_file_are_bounded(tmp_path: Path) -> None:
    """4 kB of names would be 40 MB of weights, and 400 kB 4 GB."""
    with (tmp_path / "weights.bin").open("wb") as stream:
        stream.truncate(2**20)
    model = external("weights.bin")
    tensor = model.graph.initializer[0]
    tensor.dims[0] = 2**18
    for index in range(40):
        model.graph.initializer.add().CopyFrom(tensor)
        model.graph.initializer[-1].name = f"w{index}"
    with pytest.raises(OnnxError, match="again and again"):
        load(saved(model, tmp_path))


def test_a_model_in_memory_has_no_folder() -> None:
    with pytest.raises(OnnxError, match="another file"):
        load(external("weights.bin"))


# --- fuzzing ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_files(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    contents = []
    for name in ("mobile_cnn", "transformer_block", "lstm_tagger"):
        torch.manual_seed(0)
        file = tmp_path_factory.mktemp("real") / f"{name}.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about itself
            torch.onnx.export(MODELS[name].build().eval(), MODELS[name].inputs(), file, dynamo=False, opset_version=17)
        contents.append(file.read_bytes())
    return contents


def mutated_bytes(content: bytes, dice: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(dice.randint(1, 8)):
        at = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[at] = dice.randrange(256)
            case 1:
                del data[at + 1 : at + dice.randint(2, 200)]
            case 2:
                data[at:at] = bytes(dice.randrange(256) for _ in range(dice.randint(1, 20)))
            case _:
                data = data[:at] or bytearray(b"\0")
    return bytes(data)


def number(value: int) -> bytes:
    """As protobuf writes it."""
    value &= 2**64 - 1
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def mutated_fields(content: bytes, dice: random.Random) -> bytes:
    """Fields of the wire format that come in between, are repeated, are far too long or lie inside each other."""
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(data))
        match dice.randrange(5):
            case 0:
                data[at:at] = number(dice.choice([-1, 2**31, 2**40, 2**63]))
            case 1:
                data[at:at] = bytes([dice.randrange(1, 16) << 3 | dice.randrange(6)]) + number(dice.randrange(300))
            case 2:
                begin = dice.randrange(len(data))
                data[at:at] = data[begin : begin + dice.randint(1, 400)]
            case 3:
                data[at] ^= 1 << dice.randrange(8)
            case _:
                data[at:at] = (b"\x0a" + number(4)) * dice.randint(1, 300)
    return bytes(data)


def mutated_operators(content: bytes, dice: random.Random) -> bytes:
    """Any operator in any place, with inputs and outputs that are missing, too many or of others."""
    model = onnx.load_from_string(content)
    graph = model.graph
    names = [name for node in graph.node for name in node.output] + [tensor.name for tensor in graph.initializer]
    for _ in range(dice.randint(1, 5)):
        node = dice.choice(graph.node)
        match dice.randrange(6):
            case 0:
                node.op_type = dice.choice(OPERATORS)
            case 1:
                node.input.append(dice.choice(names))
            case 2:
                del node.output[:]
            case 3:
                del node.input[:]
            case 4:
                other = dice.choice(graph.node)
                node.CopyFrom(other)
            case _:
                values = np.array([dice.choice([-(2**63), -1, 0, 2**20, 2**40]) for _ in range(dice.randint(0, 4))])
                graph.initializer.append(numpy_helper.from_array(values, "numbers"))
                if node.input:
                    node.input[dice.randrange(len(node.input))] = "numbers"
    return model.SerializeToString()


def mutated_model(content: bytes, dice: random.Random) -> bytes:
    """A file that parses, with numbers, names or parts changed."""
    model = onnx.load_from_string(content)
    graph = model.graph
    absurd = [-(2**63), -1, 0, 1, 2, 3, 2**31, 2**63 - 1]
    for _ in range(dice.randint(1, 3)):
        node = dice.choice(graph.node)
        match dice.randrange(8):
            case 0 if node.input:
                node.input[dice.randrange(len(node.input))] = dice.choice(["", "x", dice.choice(graph.node).output[0]])
            case 1 if node.attribute:
                attribute = dice.choice(node.attribute)
                attribute.i = dice.choice(absurd)
                for index in range(len(attribute.ints)):
                    attribute.ints[index] = dice.choice(absurd)
            case 2:
                node.op_type = dice.choice(
                    ["Reshape", "Conv", "Resize", "Gather", "LSTM", "Split", "Nothing", "Expand"]
                )
            case 3 if graph.initializer:
                tensor = dice.choice(graph.initializer)
                if tensor.dims:
                    tensor.dims[dice.randrange(len(tensor.dims))] = dice.choice(absurd)
            case 4 if graph.initializer:
                dice.choice(graph.initializer).data_type = dice.randrange(30)
            case 5 if graph.initializer:
                del graph.initializer[dice.randrange(len(graph.initializer))]
            case 6:
                del graph.node[dice.randrange(len(graph.node))]
            case _:
                model.opset_import[0].version = dice.choice([-1, 1, 9, 12, 13, 23, 99])
    return model.SerializeToString()


@pytest.mark.parametrize("name", ["y\nPASS: all outputs are equal", "y\x1b[2J", "y\u2028z"])
def test_names_that_command_a_terminal(name: str) -> None:
    """They are printed by commands, where a line of the file must not look like one of Detent's."""
    ports = [helper.make_tensor_value_info(port, 1, [2]) for port in ("x", name)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], [name])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(OnnxError, match="has a control character"):
        load(model)


@pytest.mark.parametrize("where", ["name", "size"])
def test_names_that_are_no_text(where: str) -> None:
    """protobuf hands them out as bytes, which have no place among the others."""
    ports = [helper.make_tensor_value_info(name, 1, [f"size of {name}", 2]) for name in ("x", "QQQQ")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "QQQQ"], ["y"])], "g", ports, [helper.make_tensor_value_info("y", 1, None)]
    )
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    old, new = (b"QQQQ", b"Q\xff\xfeQ") if where == "name" else (b"size of QQQQ", b"size of Q\xff\xfeQ")
    with pytest.raises(OnnxError, match="is not text"):
        load(onnx.load_from_string(content.replace(old, new)))


MUTATORS = (mutated_bytes, mutated_model, mutated_fields, mutated_operators)


@pytest.mark.parametrize("mutants", [300, pytest.param(800, marks=pytest.mark.full)])
def test_mutants_load_or_are_refused(mutants: int, real_files: list[bytes], tmp_path: Path) -> None:
    dice = random.Random(0)
    file, refused = tmp_path / "mutant.onnx", 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for count in range(mutants):
        mutate = MUTATORS[count % len(MUTATORS)]
        file.write_bytes(mutate(dice.choice(real_files), dice))
        try:
            assert isinstance(load(file), fx.GraphModule)
        except OnnxError:
            refused += 1
    assert 0.3 * mutants < refused < mutants
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


# --- names, shapes and functions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["torch", "math", "inf", "nan", "device", "self", "operator"])
def test_an_input_may_be_called_as_what_the_code_calls(name: str) -> None:
    nodes = [helper.make_node("Relu", [name], ["r"]), helper.make_node("Add", ["r", "w"], ["y"])]
    made = relu_model(nodes=nodes)
    made.graph.input[0].name = name
    assert load(made)(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 4.0]


@pytest.mark.parametrize("shape", [[2**62, 4], [10**9, 10**9], [4] * 200], ids=["huge", "large", "many axes"])
def test_an_example_of_an_odd_shape_is_refused(shape: list[int]) -> None:
    made = relu_model(nodes=[helper.make_node("Relu", ["x"], ["y"])])
    made.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    with pytest.raises(OnnxError):
        example_inputs(load(made))


def test_functions_that_call_each_other_twice_are_refused_before_they_are_written_out() -> None:
    """18 levels are 131,072 nodes, in a file of a kilobyte."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [helper.make_function("own", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opset)]
    for level in range(1, 18):
        calls = [helper.make_node(f"f{level - 1}", [x], [y], domain="own") for x, y in (("a", "m"), ("m", "b"))]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], calls, opset))
    made = relu_model(nodes=[helper.make_node("f17", ["x"], ["y"], domain="own")])
    made.opset_import.append(opset[1])
    made.functions.extend(functions)
    with pytest.raises(OnnxError, match="more than 32768 nodes"):
        load(made)


@pytest.mark.parametrize("held", ["initializer", "attribute"])
def test_a_model_in_memory_has_all_of_its_numbers(held: str) -> None:
    """Those in a file would be read from the current folder."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="beside.bin")
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, [2]) for port in "xy"]
    constant = [helper.make_node("Constant", [], ["w"], value=tensor)] if held == "attribute" else []
    nodes = [*constant, helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [tensor] if held == "initializer" else [])
    with pytest.raises(OnnxError, match="its weights are in another file"):
        load(helper.make_model(graph))
