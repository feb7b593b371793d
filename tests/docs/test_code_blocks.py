"""The Python of the documents: every block of a page runs, in order, with what the page leaves open filled in.

A block behind `<!-- not run: reason -->` is left out. `tests/compat/test_pages.py` runs the pages "coming from X",
`tests/test_examples.py` the README.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import detent
from detent.targets.engines import ENGINES
from tests.compat.ppq_nets import save_net
from tests.frontends.caffe.test_caffe import INPUT, B, W, layer, save

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(<!-- not run: [^>]+ -->\n+)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(conv=nn.Conv2d(3, 4, 3, padding=1), norm=nn.BatchNorm2d(4), act=nn.ReLU())
        )
        self.fc = nn.Linear(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).flatten(1))


def common() -> dict[str, Any]:
    """What a reader has: a model, data, and a training loop."""
    torch.manual_seed(0)
    batches = [torch.randn(4, 3, 8, 8) for _ in range(4)]
    return {
        "detent": detent,
        "torch": torch,
        "json": json,
        "model": Net().eval(),
        "batches": batches,
        "test_batches": batches[:1],
        "images": batches[0],
        "image": batches[0],
        "inputs": (batches[0],),
        "example_inputs": (batches[0],),
        "example": (batches[0],),
        "train": lambda model: model.train()(batches[0]).sum().backward(),
    }


def of_onnx() -> dict[str, Any]:
    save_net(Path("model.onnx"))
    convolution = layer("Convolution", "convolution_param { num_output: 6 kernel_size: 3 pad: 1 stride: 2 group: 2 }")
    save(Path(), INPUT + convolution, {"l": [W, B]})
    return common()


def of_quickstart() -> dict[str, Any]:
    save_net(Path("model.onnx"))
    Path("calibration").mkdir()
    np.save("calibration/0.npy", torch.randn(8, 3, 8, 8).numpy())
    return {}


def of_recipes() -> dict[str, Any]:
    shutil.copy(ROOT / "examples" / "recipes" / "w4a8_lsq.yaml", ".")
    return common()


def of_language_models() -> dict[str, Any]:
    model = nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 50)).eval()
    tokens = torch.arange(28).reshape(4, 7)
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_attention_heads=4, **small)).eval()
    return {"detent": detent, "model": model, "tokens": tokens, "llama": llama, "ids": tokens}


def of_training() -> dict[str, Any]:
    samples = [(torch.randn(3, 8, 8), index % 2) for index in range(128)]
    return {**common(), "train": samples, "test": samples}


def of_tuning() -> dict[str, Any]:
    found = common()
    model, batches = found["model"], found["batches"]
    prepared = detent.prepare(model, (batches[0],), backend="academic", recipe="ptq")
    detent.calibrate(prepared, batches)
    return {
        **found,
        "validation": [(x, model(x).argmax(1)) for x in batches],
        "prepared": prepared,
        "base": prepared.recipe,
        "measure": lambda _: 95.0,
    }


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {
    "algorithms": common,
    "backends": common,
    "deploying": common,
    "extending": common,
    "language_models": of_language_models,
    "onnx": of_onnx,
    "preparing": common,
    "quickstart": of_quickstart,
    "recipes": of_recipes,
    "training": of_training,
    "tuning": of_tuning,
}
ENGINE = {"deploying": "openvino", "tuning": "openvino"}
LONG = ("algorithms",)


def blocks(page: Path) -> list[tuple[str, bool]]:
    """The Python blocks of a page, and whether each is left out."""
    return [(code, bool(left_out)) for left_out, code in BLOCK.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in LONG else []) for name in GIVEN]
)
def test_every_block_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ENGINE and ENGINES[ENGINE[name]].version() is None:
        pytest.skip(f"{ENGINE[name]} is not installed")
    monkeypatch.chdir(tmp_path)
    names = GIVEN[name]()
    run = [code for code, left_out in blocks(ROOT / "docs" / f"{name}.md") if not left_out]
    assert run
    for code in run:
        exec(compile(code, f"{name}.md", "exec"), names)


def test_every_page_with_code_is_run() -> None:
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not page.stem.startswith("coming_from_")]
    assert {page.stem for page in pages if blocks(page)} == set(GIVEN)


def test_a_block_is_left_out_only_with_a_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: it has gaps -->\n```python\na\n```\n\n<!-- not run -->\n```python\nb\n```\n")
    assert blocks(page) == [("a\n", True), ("b\n", False)]
