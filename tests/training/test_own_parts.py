"""Observer, quantizer, backend, model, data set, loss and metric of a user's own, named in a config."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from detent.errors import DetentError
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS
from detent.training import checkpoint
from detent.training.config_files import load_config
from detent.training.session import train

Command = Callable[..., CompletedProcess[str]]

MODULE = '''
from collections import OrderedDict
from pathlib import Path
import torch
import torch.nn.functional as F
from torch import nn
from detent.planning import FUSED, Backend, SupportedSchemes, quantize_io
from detent.numerics import QParams, choose_qparams
from detent.observers import Observer
from detent.quantizers import Quantizer, on_grid

(Path(__file__).parent / "imported").touch()

class Halved(Observer):
    """Half of the range, times a factor."""
    def __init__(self, scheme, *, name="tensor", factor: float = 1.0):
        super().__init__(scheme, name=name)
        self.factor = factor
    def _observe(self, x, low, high):
        pass
    def _qparams(self, low, high):
        return choose_qparams(self.factor * low / 2, self.factor * high / 2, self.scheme)

class Plain(Quantizer):
    def __init__(self, scheme, shape, *, role="activation", name="tensor"):
        super().__init__(scheme, shape, role=role, name=name)
        self.register_buffer("own_scale", self._unset())
    def _initialize(self, observed):
        self.own_scale.copy_(observed.scale)
    def qparams(self):
        return QParams.symmetric(self.own_scale)
    def _fake_quantize(self, x):
        return on_grid(x, self.own_scale, torch.tensor(0), self.scheme)

CHIP = Backend(
    name="my_chip", about="made up", weight=SupportedSchemes(), activation=SupportedSchemes(), bias="float",
    rules=quantize_io("conv", "linear"), fusions=FUSED, quantize_outputs=True, arithmetic="onnx_spec",
)

class Tiny(nn.Sequential):
    def __init__(self, *, width: int):
        torch.manual_seed(0)
        conv, fc = nn.Conv2d(1, width, 3), nn.Linear(16 * width, 2)
        super().__init__(OrderedDict(conv=conv, relu=nn.ReLU(), flat=nn.Flatten(), fc=fc))

class Stripes(torch.utils.data.Dataset):
    def __init__(self, folder, split, *, count: int):
        draw = torch.Generator().manual_seed(len(split))
        self.labels = torch.arange(count) % 2
        self.images = 0.3 * torch.randn(count, 1, 6, 6, generator=draw)
        self.images[self.labels == 1, :, ::2] += 1
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        return self.images[index], self.labels[index]

def hinge(outputs, batch):
    return F.multi_margin_loss(outputs, batch[1])

def margin(outputs, batch):
    top = outputs.topk(2).values
    return (top[:, 0] - top[:, 1]).mean()
'''

CONFIG: dict[str, Any] = {
    "name": "own",
    "imports": {"observers": {"halved": "mine:Halved"}, "quantizers": {"plain": "mine:Plain"}},
    "model": {"name": "mine:Tiny", "options": {"width": 4}},
    "data": {"name": "mine:Stripes", "options": {"count": 32}, "batch_size": 8, "calibration_batches": 2},
    "backend": "mine:CHIP",
    "recipe": {
        "name": "own",
        "weight": {"quantizer": "plain", "observer": "minmax"},
        "activation": {"quantizer": "plain", "observer": "halved", "observer_options": {"factor": 1.5}},
    },
    "train": {"loop": "qat", "epochs": 3, "stop_observing_begin": 3},
    "loss": {"function": "mine:hinge"},
    "metrics": {"margin": "mine:margin"},
    "optimizer": {"lr": 0.05},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    tables: list[dict[str, Any]] = [OBSERVERS._table, QUANTIZERS._table]
    known = [dict(table) for table in tables]
    yield tmp_path
    sys.modules.pop("mine", None)
    for table, names in zip(tables, known, strict=True):
        table.clear()
        table.update(names)


def test_the_whole_way(folder: Path, command: Command) -> None:
    done = command("train", "c.yaml", "-o", "run", "--allow-imports", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["verdict"]["holds"]
    assert list(said["metrics"]) == [
        "quantized.margin",
        "quantized.loss",
        "float.margin",
        "float.loss",
        "agreement",
    ]
    assert said["metrics"]["quantized.loss"] < 0.3, "a margin loss of 0.5 is chance"
    state = checkpoint.read(folder / "run" / "last.safetensors")
    assert state["backend"] == "my_chip"
    assert state["recipe"]["activation"]["observer"] == "halved"
    assert any(name.endswith("own_scale") for name in state["state"]["model"])
    manifest = json.loads((folder / "run" / "artifact" / "manifest.json").read_text())
    assert manifest["backend"] == "my_chip"

    again = command(
        *("deploy", "--checkpoint", "run/last.safetensors", "--config", "run/config.yaml", "-o", "again"),
        *("--allow-imports", "--json"),
    )
    assert again.returncode == 0, again.stderr
    other = json.loads((folder / "again" / "manifest.json").read_text())
    assert other["tensors"] == manifest["tensors"]


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("backend", "mine:Tiny", "name a Backend"),
        ("model", {"name": "mine:Tinny"}, "did you mean 'Tiny'?"),
        ("imports", {"observers": {"halved": "mine:Plain"}}, "not a subclass of Observer"),
        ("imports", {"observers": {"minmax": "mine:Halved"}}, "the name is taken"),
        ("imports", {"algorithms": {"better": "mine:Plain"}}, "give an Algorithm(run, phase, about)"),
        ("imports", {"quantisers": {"plain": "mine:Plain"}}, "did you mean 'quantizers'?"),
    ],
    ids=["backend", "typo", "another kind", "taken", "no algorithm", "key"],
)
def test_mistakes_are_told(folder: Path, section: str, value: Any, said: str) -> None:
    (folder / "c.yaml").write_text(yaml.safe_dump({**CONFIG, section: value}))
    with pytest.raises(DetentError) as error:
        train(load_config("c.yaml", allow_imports=True), folder / "run", allow_imports=True)
    assert said in str(error.value)


def test_text_that_is_no_path_is_one_clear_message_and_is_not_run(folder: Path, command: Command) -> None:
    changed = {**CONFIG, "imports": {"observers": {"halved": "mine:Halved; import os"}}}
    (folder / "c.yaml").write_text(yaml.safe_dump(changed))
    done = command("train", "c.yaml", "-o", "run", "--allow-imports")
    assert done.returncode == 2
    assert "package.module:Name" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "imported").exists(), "the module was not touched"
