"""The Python of the pages "coming from X": every block runs, in order, with what its page leaves open filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import detent
from detent.compat import mmrazor, mqbench, ppq, vitis
from tests.compat.mmrazor_document import DOCUMENT, GAPS
from tests.compat.mmrazor_nets import BASE, ClsHead, ImageClassifier, Pictures
from tests.compat.mqbench_code import ExampleFakeQuantize, ExampleMod, ExampleObserver
from tests.compat.ppq_nets import batches, save_net
from tests.compat.registering import Registered

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs").glob("coming_from_*.md"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.gate, self.fc = nn.Sigmoid(), nn.Linear(256, 2)

    def forward(self, x):
        return self.fc(self.gate(self.act(self.bn(self.conv(x)))).flatten(1))


def images() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model.train()
    model(images()).square().mean().backward()
    optimizer.step()
    model.eval()


def of_vitis() -> dict[str, Any]:
    Path("int_pof2_tqt.json").write_text(json.dumps({"overall_quantize_config": {"scale_type": "poweroftwo"}}))
    return {**vars(vitis), "model": Net().eval(), "inputs": images(), "train": train}


def of_mqbench() -> dict[str, Any]:
    parts = (ExampleFakeQuantize, ExampleMod, ExampleObserver)
    examples: dict[str, Any] = {part.__name__: part for part in parts}
    loader = [(images(), None)]
    return {**vars(mqbench), **examples, "net": Net().eval(), "images": images(), "loader": loader, "train": train}


def of_ppq() -> dict[str, Any]:
    save_net(Path("model.onnx"))
    setting = ppq.QuantizationSettingFactory.default_setting()
    return {**vars(ppq), "x": batches()[0], "batches": batches(2), "setting": setting}


def of_mmrazor() -> dict[str, Any]:
    mmrazor.MODELS.register_module("ImageClassifier", force=True)(ImageClassifier)
    torch.save(ImageClassifier().state_dict(), "float.pth")
    base = Path("mmpretrain/configs/resnet/resnet18_8xb16_cifar10.py")
    base.parent.mkdir(parents=True)
    base.write_text(BASE.replace("max_epochs=200", "max_epochs=1"))
    text = DOCUMENT.replace("mmcls.models.heads.ClsHead", f"{ClsHead.__module__}.ClsHead")
    text = text.replace("type='MMArchitectureQuant',", "type='MMArchitectureQuant', input_shapes=(2, 3, 8, 8),")
    first = "_base_ = ['mmcls::resnet/resnet18_8xb16_cifar10.py']"
    Path("lsq_openvino.py").write_text(first + GAPS.format(checkpoint="float.pth") + text)
    data = {"dataset": Pictures(16), "batch_size": 8}
    samples = [(image / 128 - 1, label) for image, label in (Pictures(16)[index] for index in range(16))]
    inputs = torch.stack([image for image, _ in samples])
    return {**vars(mmrazor), "train": data, "val": data, "samples": samples, "model": ImageClassifier(), "x": inputs}


SETUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "coming_from_mmrazor": of_mmrazor,
    "coming_from_mqbench": of_mqbench,
    "coming_from_ppq": of_ppq,
    "coming_from_vitis": of_vitis,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_every_block_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmrazor.MODELS, "_own", {})
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2, "theirs and ours"
    names = {**SETUPS[page.stem](), "detent": detent, "torch": torch, "nn": nn}
    registered = Registered()
    try:
        for block in blocks:
            exec(compile(block, page.name, "exec"), names)
    finally:
        registered.withdraw()
    assert isinstance(names["artifact"], detent.Artifact)
    if page.stem == "coming_from_mqbench":
        assert (tmp_path / "mine_clip_ranges.json").is_file()


def test_every_page_has_its_gaps_filled():
    assert {page.stem for page in PAGES} == set(SETUPS)
