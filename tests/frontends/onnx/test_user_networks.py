"""Files as users have them: loaded, quantized for a target, run on its engine, or refused in a known sentence.

Each network is exported at another opset, because exporters take the same functions apart differently at each.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import detent
from detent import load
from detent.targets.engines import ENGINES
from tests.frontends.onnx.user_networks import USER_NETWORKS
from tests.models import MODELS

OPSETS = {
    "activations": 11,
    "bert_encoder": 13,
    "convnext": 13,
    "efficientnet": 17,
    "embedder": 11,
    "gru_tagger": 17,
    "lstm_tagger": 11,
    "mobilevit": 17,
    "padded": 20,
    "reused_module": 17,
    "resize_unet": 13,
    "rotary": 17,
    "speech": 11,
    "swin": 20,
    "vit_block": 11,
    "yolov8": 13,
}
# float32 through a few layers: 3e-6 is the largest seen.
RELATIVE = 1e-4


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, tuple[Tensor, ...]]]:
    """Every network with a free batch, as `torch.onnx.export` writes it."""
    folder, files = tmp_path_factory.mktemp("files"), {}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    for name, opset in OPSETS.items():
        torch.manual_seed(0)
        entry = USER_NETWORKS[name] if name in USER_NETWORKS else MODELS[name]
        network, inputs = entry.build().eval(), entry.inputs()
        names = [f"in{index}" for index in range(len(inputs))]
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of the exporter, about itself
            torch.onnx.export(
                network,
                inputs,
                folder / f"{name}.onnx",
                dynamo=False,
                opset_version=opset,
                input_names=names,
                dynamic_axes={port: {0: "batch"} for port in names},
            )
        files[name] = folder / f"{name}.onnx", inputs
    return files


def runtime(file: Path, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, {f"in{index}": x.numpy() for index, x in enumerate(inputs)})
    return found


@pytest.mark.parametrize("name", OPSETS)
def test_it_computes_what_onnxruntime_computes(name: str, exported: dict[str, tuple[Path, tuple[Tensor, ...]]]) -> None:
    file, inputs = exported[name]
    given = load(file)(*inputs)
    for tensor, wanted in zip(given if isinstance(given, tuple) else (given,), runtime(file, inputs), strict=True):
        assert np.abs(tensor.detach().numpy() - wanted).max() <= RELATIVE * np.abs(wanted).max()


# The others take what is theirs in `tests/deploy`; these have functions in steps, sizes that are computed, or masks.
ELSEWHERE = {
    "onnxruntime": ("bert_encoder", "mobilevit", "resize_unet", "reused_module", "rotary", "vit_block"),
    "openvino": ("convnext", "resize_unet"),
}
PAIRS = [
    *((backend, name) for backend in ("litert", "ncnn") for name in OPSETS),
    *((backend, name) for backend, names in ELSEWHERE.items() for name in names),
]


def goals(backend: str, name: str) -> list[tuple[str, ...]]:
    """Each network in one engine, and each engine."""
    return [(backend,), (name,)]


@pytest.mark.pairwise(goals=goals)
@pytest.mark.parametrize(("backend", "name"), PAIRS)
def test_the_engine_runs_what_was_simulated(
    backend: str, name: str, exported: dict[str, tuple[Path, tuple[Tensor, ...]]], tmp_path: Path
) -> None:
    if ENGINES[backend].version() is None:
        pytest.skip(f"needs the extra `{ENGINES[backend].extra}`")
    file, inputs = exported[name]
    artifact = detent.quantize(file, [inputs], backend=backend, folder=tmp_path / "out")
    verdict = artifact.verify([inputs], latency=False)
    assert verdict.holds, str(verdict)
    session = ENGINES[backend].load(artifact).run({f"in{index}": x.numpy() for index, x in enumerate(inputs)})
    for found, wanted in zip(session.values(), runtime(file, inputs), strict=True):
        # 8 bits: 20 dB is far below what was seen of any of them (25 to 50), and far above a wrong one.
        error = float(((found.reshape(wanted.shape) - wanted) ** 2).sum())
        assert error < 1e-2 * float((wanted**2).sum())


STEPS = ("Erf", "Pow", "Sqrt", "Where", "Softmax", "Conv")


@pytest.mark.pairwise(strength=1)
@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt", "mnn", "vitis"])
@pytest.mark.parametrize("name", ["convnext", "rotary"])
def test_the_files_own_nodes_are_deployed(
    backend: str, name: str, exported: dict[str, tuple[Path, tuple[Tensor, ...]]], tmp_path: Path
) -> None:
    """Functions and norms that are one operation in the plan have their steps there, under their names."""
    file, inputs = exported[name]
    artifact = detent.quantize(file, [inputs], backend=backend, folder=tmp_path / "out")
    assert artifact.verify([inputs], latency=False).holds
    before = {node.name: node.op_type for node in onnx.load(file).graph.node if node.op_type in STEPS}
    after = {node.name: node.op_type for node in artifact.model.graph.node if node.op_type in STEPS}
    assert before.keys() - after.keys() == set()
