"""Every reader of every file that Detent reads, with a file of its kind that is whole."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from PIL import Image
from safetensors.torch import save as save_tensors
from torch import nn

import detent
from detent.bench import Results, Todo, load_grid, write_leaderboard
from detent.compat.mmrazor.checkpoint import load_float_checkpoint
from detent.compat.mmrazor.config import Config as MMRazorConfig
from detent.compat.vitis import VitisConfig
from detent.data import Folder, Preprocessing
from detent.ir.package import MANIFEST, digest
from detent.layerwise import quantize_checkpoint
from detent.layerwise.journal import JOURNAL
from detent.recipes import Recipe
from detent.report.curves import read_curves
from detent.targets import BACKENDS
from detent.targets.formats import find_format
from detent.targets.gguf import container as gguf
from detent.targets.gguf.file import PARAMETERS, read_gguf
from detent.targets.gguf.tokenizer import NoTokenizer, tokenizer_values
from detent.training import Log, checkpoint
from detent.training.config_files import load_config
from detent.training.datasets import ListedImages, Npz, cifar10, read_idx
from detent.twin.interpreter import graph_of
from detent.zoo.pretrained import read_weights
from tests.frontends.caffe.test_caffe import layer, numbers, save
from tests.fuzz.harness import Reader
from tests.targets.gguf.test_tokenizer import model_of_sentencepiece, spoken
from tests.targets.language_models import LANGUAGE_MODELS, saved
from tests.targets.weights_in_blocks import TOKENS, deployed

__all__ = ["ARTIFACTS", "installed", "readers"]

ARTIFACTS = ("onnxruntime", "openvino", "litert", "ncnn", "torch_x86")
"""Backends whose files an engine runs here."""

IN_BLOCKS = (("onnxruntime_genai", "w4g32"), ("onnxruntime_genai", "w8"), ("openvino_llm", "w4g32"))
"""Backends of language models, with recipes whose files hold weights in blocks."""

_ROOT = Path(__file__).resolve().parents[2]
_X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def readers(folder: Path, *, every_backend: bool) -> Iterator[Reader]:
    """Those of each kind of file, in folders of their own below `folder`."""
    yield from _of_text(folder)
    yield from _of_models(folder)
    yield from _of_data(folder)
    yield from _of_training(folder)
    yield from _of_tokenizers(folder)
    for backend in sorted(set(BACKENDS) - {"gguf", "compressed_tensors"}) if every_backend else ARTIFACTS:
        yield from _of_artifact(folder / backend, backend)
    if every_backend:
        yield from _of_hugging_face(folder)
        for backend, recipe in IN_BLOCKS:
            yield from _of_blocks(folder / f"{backend} {recipe}", backend, recipe)
        yield from _of_language_model(folder / "language model")


def _placed(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def _reader(
    folder: Path,
    name: str,
    content: bytes,
    read: Callable[[Path], object],
    title: str = "",
    *,
    isolated: bool = False,
) -> Reader:
    title = title or name
    return Reader(title, _placed(folder / title.replace("/", "_"), name, content), content, read, isolated)


def _of_text(folder: Path) -> Iterator[Reader]:
    for path in (_ROOT / "examples" / "recipes").iterdir():
        yield _reader(folder, path.name, path.read_bytes(), Recipe.load, f"recipe {path.suffix}")
    config = {
        "name": "t",
        "model": {"name": "resnet20", "options": {"classes": 3, "width": 0.25}},
        "data": {"name": "made_up", "options": {"count": 8, "size": 8}, "batch_size": 4},
        "backend": "onnxruntime",
        "recipe": {"name": "mine", "weight": {"quantizer": "lsq", "bits": 4}},
        "train": {"loop": "lsq", "epochs": 2, "ema": 0.9},
        "loss": {"label_smoothing": 0.1},
        "deploy": {"verify_batches": 1},
    }
    yield _reader(folder, "c.json", json.dumps(config).encode(), load_config, "config .json")
    example = _ROOT / "examples" / "configs" / "vitis_pof2_tqt.yaml"
    text = example.read_bytes().replace(
        b"_base_: bases/resnet18_cifar10.yaml", b"model: {name: resnet20}\ndata: {name: mnist}"
    )
    yield _reader(folder, "c.yaml", text, load_config, "config .yaml")
    grid = (_ROOT / "benchmarks" / "leaderboard" / "ptq8.yaml").read_bytes()
    yield _reader(folder, "grid.yaml", grid, load_grid, "bench grid")
    result = sorted((_ROOT / "docs" / "leaderboard" / "cells").iterdir())[0]
    yield _reader(folder / "bench", result.name, result.read_bytes(), _show_results, "cells")
    vitis = next((_ROOT / "examples" / "vitis" / "configs").glob("*.json"))
    yield _reader(folder, vitis.name, vitis.read_bytes(), VitisConfig.load, "Vitis AI config")
    code = b"model = dict(type='ResNet', depth=18)\nlr = 0.1 * 2\nsteps = [1, 2]\nmodel['depth'] = 34\n"
    yield _reader(folder, "c.py", code, MMRazorConfig.fromfile, "MMRazor config")


def _show_results(path: Path) -> object:
    """As a page, and as an estimate of what it would take to compute them again."""
    found = tuple(Results(path.parents[1]))
    return write_leaderboard(found, path.parents[1]), Todo(tuple(one.task for one in found), found).seconds()


def _of_models(folder: Path) -> Iterator[Reader]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3))
    prepared = detent.prepare(net, (_X,), backend="onnxruntime", recipe="ptq")
    detent.calibrate(prepared, [_X])
    quantized = detent.deploy(prepared, folder / "seed").model.SerializeToString()
    yield _reader(folder, "model.onnx", quantized, detent.load, "quantized .onnx")
    for title, made in (("integers .onnx", _INTEGERS), ("control flow .onnx", _CONTROL_FLOW), ("float .onnx", _FLOAT)):
        yield _reader(folder, "model.onnx", onnx.parser.parse_model(made).SerializeToString(), detent.load, title)
    for path in ("onnx_tools/tiny_cnn.onnx", "torch_tools/brevitas-0.13.4-4bits.onnx"):
        content = (_ROOT / "tests" / "frontends" / "onnx" / path).read_bytes()
        yield _reader(folder, "model.onnx", content, detent.load, Path(path).name)

    def quantize(path: Path) -> object:
        return detent.quantize(path, [_X.numpy()], backend="onnxruntime", folder=path.parent / "out")

    content = onnx.parser.parse_model(_FLOAT).SerializeToString()
    yield _reader(folder, "model.onnx", content, quantize, "quantize .onnx", isolated=True)
    rows = gguf.GgufTensor((2, 32), 2, bytes(36))
    values = {"general.architecture": "llama", "llama.attention.head_count": 1, PARAMETERS: ["layers.0.q.weight"]}
    content = gguf.write(gguf.Container(values, {"blk.0.attn_q.weight": rows}))
    yield _reader(folder, "model.gguf", content, lambda path: list(read_gguf(path.read_bytes())))
    for name in ("net.prototxt", "net.caffemodel"):
        where = folder / f"caffe {name}"
        where.mkdir(parents=True)
        text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 4 dim: 7 dim: 7 } } }'
        text += layer("Convolution", "convolution_param { num_output: 6 kernel_size: 3 group: 2 }")
        both = save(where, text, {"l": [numbers(6, 2, 3, 3), numbers(6)]})
        seed = (where / name).read_bytes()
        yield Reader(f"caffe {name}", where / name, seed, lambda _, both=both: detent.load(*both))  # type: ignore[misc]


_HEAD = '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 3, 6, 6] x) => '
_INTEGERS = (  # sizes that are computed: what is folded while a file is read
    _HEAD
    + """(float[N, K] y)
    <int64 zero = {0}, int64[1] z = {0}, int64[1] two = {2}, int64[1] one = {-1}, int64[1] many = {9}>
    { s = Shape(x) n = Gather<axis=0>(s, zero) m = Unsqueeze(n, z) d = Div(many, two) p = Mul(d, two)
      q = Mod(p, many) r = Concat<axis=0>(m, one) y = Reshape(x, r) }"""
)
_CONTROL_FLOW = (
    _HEAD
    + """(float[N, 3, 6, 6] y)
    <int64 three = {3}, bool true = {1}, int64[1] first = {0}, int64[1] last = {6}, int64[1] step = {1}>
    { a = Loop (three, true, x) <body = each (int64 i, bool go, float[N, 3, 6, 6] held)
          => (bool on, float[N, 3, 6, 6] made) { on = Identity(go) made = Add(held, held) }>
      b = Slice(a, first, last, last_axis, step)
      y = If (true) <then_branch = then () => (float[N, 3, 6, 6] t) { t = Relu(b) },
                     else_branch = other () => (float[N, 3, 6, 6] e) { e = Neg(b) }> }""".replace(
        "int64[1] step", "int64[1] last_axis = {3}, int64[1] step"
    )
)
_FLOAT = (
    _HEAD
    + """(float[N, 2] y)
    <float[2, 3, 1, 1] w = {0.5, -0.25, 1, 0.1, 0.2, -0.3}, float[2] b = {0.5, 0.25}, float[1] scale = {2},
     float[2, 2] v = {1, 2, 3, 4}>
    { c = Conv<kernel_shape=[1, 1], strides=[2, 2]>(x, w, b) r = Relu(c) m = MaxPool<kernel_shape=[2, 2]>(r)
      d = Mul(m, scale) g = GlobalAveragePool(d) f = Flatten(g) h = Gemm<transB=1>(f, v) y = Softmax<axis=-1>(h) }"""
)


def _of_data(folder: Path) -> Iterator[Reader]:
    inputs: dict[str, tuple[int | str, ...]] = {"x": ("N", 3, 4, 4)}
    arrays = np.zeros((4, 3, 4, 4), np.float32)

    def batches(path: Path) -> object:
        how = Preprocessing(resize=None, crop=(4, 4)) if path.suffix == ".png" else None
        return list(Folder(path, inputs, batch_size=2, preprocessing=how))

    for name, into in (("a.npy", np.save), ("a.npz", lambda file, x: np.savez(file, x=x, labels=np.zeros(4, int)))):
        stream = io.BytesIO()
        into(stream, arrays)
        yield _reader(folder, name, stream.getvalue(), batches, f"data {name[1:]}")
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (9, 99, 200)).save(stream, "PNG")
    yield _reader(folder, "a.png", stream.getvalue(), batches, "data .png")
    idx = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 3)) + bytes(18)
    yield _reader(folder, "images", idx, read_idx, "idx")
    yield _reader(folder, "images.gz", gzip.compress(idx), read_idx, "idx .gz")
    rows = np.zeros((2, 3073), np.uint8)
    for number in range(2, 6):
        _placed(folder / "cifar binary", f"data_batch_{number}.bin", rows.tobytes())
    yield _reader(
        folder, "data_batch_1.bin", rows.tobytes(), lambda path: cifar10(path.parent, "train"), "cifar binary"
    )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as packed:
        member = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
        member.size = rows.nbytes
        packed.addfile(member, io.BytesIO(rows.tobytes()))
    read: Callable[[Path], object] = lambda path: cifar10(path.parent, "test")  # noqa: E731
    yield _reader(folder, "cifar-10-binary.tar.gz", archive.getvalue(), read, "cifar archive")
    held = pickle.dumps({b"data": rows[:, 1:].copy(), b"labels": [0, 1]}, protocol=2)
    yield _reader(folder, "test_batch", held, read, "cifar python")

    read_sheet: Callable[[Path], object] = lambda path: cifar10(path.parent, "test")  # noqa: E731
    stream = io.BytesIO()
    Image.new("RGB", (1024, 2), (9, 99, 200)).save(stream, "PNG")
    for title, name, content in (
        ("sheet", "test.png", stream.getvalue()),
        ("labels of a sheet", "test_labels.json", b"[0, 1]"),
    ):
        _placed(folder / title, "test.png", stream.getvalue())
        _placed(folder / title, "test_labels.json", b"[0, 1]")
        yield _reader(folder, name, content, read_sheet, title)
    packed_arrays = io.BytesIO()
    np.savez(packed_arrays, x=arrays, labels=np.zeros(4, int))
    samples = lambda path: [Npz(path.parent, "train")[0]]  # noqa: E731
    yield _reader(folder, "train.npz", packed_arrays.getvalue(), samples, "data set npz")

    def listed(path: Path) -> object:
        files = {
            f"{split}_{what}": str(at)
            for split in ("train", "test")
            for what, at in (("root", path.parent), ("list", path))
        }
        return ListedImages(None, "train", **files)

    yield _reader(folder, "list.txt", b"a.png 0\nb/c.png 12\n", listed, "list of images")


def _of_training(folder: Path) -> Iterator[Reader]:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU())
    prepared = detent.prepare(net, (_X,), backend="onnxruntime", recipe="ptq")
    detent.calibrate(prepared, [_X])
    path = folder / "seed.safetensors"
    checkpoint.save(path, prepared, training={"progress": {"epoch": 1}, "ema": {}})
    read: Callable[[Path], object] = lambda at: checkpoint.load_model(at, prepared)  # noqa: E731
    yield _reader(folder, "last.safetensors", path.read_bytes(), read, "checkpoint")
    stream = io.BytesIO()
    torch.save(net.state_dict(), stream)
    yield _reader(folder, "w.pth", stream.getvalue(), read_weights, "weights .pth")
    torch.save(net.state_dict(), stream := io.BytesIO(), _use_new_zipfile_serialization=False)
    yield _reader(folder, "w.pt", stream.getvalue(), read_weights, "weights .pt")
    yield _reader(folder, "w.safetensors", save_tensors(net.state_dict()), read_weights, "weights .safetensors")
    torch.save({"state_dict": net.state_dict()}, stream := io.BytesIO())
    read = lambda at: load_float_checkpoint(net, at)  # noqa: E731
    yield _reader(folder, "w.pth", stream.getvalue(), read, "MMRazor checkpoint")
    rows = b'step,epoch,name,value\r\n1,1,loss,0.5\r\n2,1,"a,b",0.25\r\n'
    yield _reader(folder, "log.csv", rows, lambda at: Log(at.parent, resume_step=3, resume_rows=9).close(), "log")
    yield _reader(folder, "curves.csv", rows, read_curves, "curves")


def installed(name: str) -> bool:
    needed = find_format(name).requires
    return needed is None or find_spec(needed[0]) is not None


def _of_hugging_face(folder: Path) -> Iterator[Reader]:
    """Of a folder of `save_pretrained`, in two files of weights with an index."""
    if find_spec("transformers") is None:
        return
    from transformers import LlamaConfig, LlamaForCausalLM

    from detent.frontends.hugging_face import load_checkpoint

    sizes = {"vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    saved = folder / "hugging face"
    LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4)).save_pretrained(saved, max_shard_size="20KB")
    for path in sorted(saved.iterdir()):
        where = folder / f"hugging face {path.name}"
        for other in saved.iterdir():
            _placed(where, other.name, other.read_bytes())
        read = lambda at: load_checkpoint(at.parent)  # noqa: E731
        yield Reader(f"hugging face {path.name}", where / path.name, path.read_bytes(), read, isolated=True)
    out = folder / "layer by layer"
    again = partial(quantize_checkpoint, saved, backend="compressed_tensors", recipe="w4g32", folder=out)
    again()
    for name in (JOURNAL, "model-00002-of-00002.safetensors"):
        yield Reader(f"layers {name}", out / name, (out / name).read_bytes(), lambda _: str(again()), isolated=True)


def _of_tokenizers(folder: Path) -> Iterator[Reader]:
    """What becomes of one in a .gguf file, or the answer that nothing does."""

    whole = json.dumps(spoken()).encode()

    def read(path: Path, **beside: bytes) -> object:
        with suppress(NoTokenizer):
            return gguf.write(gguf.Container(tokenizer_values({**beside, path.name: path.read_bytes()}, 300)))
        return None

    said = json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ x }}"}).encode()
    yield _reader(folder, "tokenizer.json", whole, read)
    yield _reader(folder, "tokenizer_config.json", said, partial(read, **{"tokenizer.json": whole}))
    pieces = model_of_sentencepiece([("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("a", -0.5, 1)])
    yield _reader(folder, "tokenizer.model", pieces, read)


def _of_artifact(folder: Path, backend: str) -> Iterator[Reader]:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    prepared = detent.prepare(net, (_X,), backend=backend, recipe="ptq")
    detent.calibrate(prepared, [_X])
    files = [name for name in BACKENDS[backend].files if installed(name)]
    out = detent.deploy(prepared, folder, files=files).folder
    yield from _of_files(out, backend, [_X])


def _of_language_model(folder: Path) -> Iterator[Reader]:
    """For the targets that write more of one than of other networks, or nothing else."""
    if find_spec("transformers") is None:
        return
    from detent.frontends.hugging_face import load_checkpoint

    model = load_checkpoint(saved(folder / "saved"))
    example = model.example(1, 8)
    for backend, (recipe, _) in LANGUAGE_MODELS.items():
        prepared = detent.prepare(deepcopy(model), example, backend=backend, recipe=recipe)
        detent.calibrate(prepared, [example])
        out = detent.deploy(prepared, folder / backend).folder
        yield from _of_files(out, f"language model {backend}", example)


def _of_blocks(folder: Path, backend: str, recipe: str) -> Iterator[Reader]:
    yield from _of_files(deployed(folder, backend, recipe).folder, f"{backend} {recipe}", [TOKENS])


def _of_files(out: Path, backend: str, given: Sequence[torch.Tensor]) -> Iterator[Reader]:
    """The manifest, and each file with a manifest that knows its hash."""
    contents = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    def verify(path: Path) -> object:
        """With every other file as it was, and a manifest that has the hash of this one."""
        for name, content in contents.items():
            if name != path.name:
                (out / name).write_bytes(content)
        if path.name != MANIFEST:
            manifest: dict[str, Any] = json.loads(contents[MANIFEST])
            manifest["files"][path.name] = digest(path.read_bytes())
            (out / MANIFEST).write_text(json.dumps(manifest))
        return detent.Artifact.load(out).verify([tuple(one.numpy() for one in given)], isolate=False, latency=False)

    for name, content in contents.items():
        yield Reader(f"{backend} {name}", out / name, content, verify, isolated=True)
    if backend == "litert":
        for name in ("model.tflite", "model.onnx"):
            yield _reader(out.parent, name, contents[name], graph_of, f"twin of {name}")
    if backend == "onnxruntime":
        path = _placed(out.parent / "retarget", MANIFEST, contents[MANIFEST])
        for name, content in contents.items():
            _placed(path.parent, name, content)
        move = lambda at: detent.Artifact.load(at.parent).retarget("litert")  # noqa: E731
        yield Reader("retarget manifest.json", path, contents[MANIFEST], move, isolated=True)
