"""The networks have the names and shapes of published weights, and load them from files without running code."""

from __future__ import annotations

import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import detent
from detent.errors import DataError
from detent.zoo import ZOO, load_pretrained, mobilenet_v2, regnetx_200mf, resnet20
from detent.zoo.timm_names import from_timm
from tests import models

THEIRS = {
    "resnet18": models.resnet18,
    "resnet20": models.resnet20,
    "resnet50": models.resnet50,
    "mobilenet_v2": models.mobilenet_v2,
    "efficientnet_lite0": models.efficientnet_lite0,
    "regnetx_200mf": models.regnetx,
    "regnetx_600mf": partial(models.regnetx, depths=(1, 3, 5, 7), widths=(48, 96, 240, 528), group_width=24),
    "vit_small": models.vit_small,
}
SMALL: dict[str, dict[str, Any]] = {"vit_small": {"dim": 32, "depth": 2, "heads": 2, "image": 32}}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ZOO)
def test_published_weights_load_and_compute_the_same(name: str, tmp_path: Path) -> None:
    options = {"classes": 7, **SMALL.get(name, {"width": 0.25})}
    theirs, ours = THEIRS[name](**options).eval(), ZOO[name](**options)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    load_pretrained(ours, tmp_path / "w.pth")
    inputs = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        # The same operations; q * scale is the only one that is written another way.
        torch.testing.assert_close(ours.eval()(inputs), theirs(inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ZOO)
def test_it_can_be_prepared(name: str) -> None:
    model = ZOO[name](classes=3, **SMALL.get(name, {"width": 0.125}))
    prepared = detent.prepare(model, (torch.randn(1, 3, 32, 32),), backend="onnxruntime")
    assert any(True for _ in prepared.plan.to_dict())


TIMM = {
    "mobilenet_v2": [
        ("conv_stem.weight", "features.0.0.weight"),
        ("bn1.bias", "features.0.1.bias"),
        ("blocks.0.0.conv_dw.weight", "features.1.conv.0.0.weight"),
        ("blocks.0.0.bn2.weight", "features.1.conv.2.weight"),
        ("blocks.1.0.conv_pw.weight", "features.2.conv.0.0.weight"),
        ("blocks.1.1.bn3.running_var", "features.3.conv.3.running_var"),
        ("conv_head.weight", "features.18.0.weight"),
        ("classifier.weight", "classifier.1.weight"),
    ],
    "efficientnet_lite0": [
        ("conv_stem.weight", "_conv_stem.weight"),
        ("blocks.0.0.conv_pw.weight", "_blocks.0._project_conv.weight"),
        ("blocks.1.1.conv_pwl.weight", "_blocks.2._project_conv.weight"),
        ("classifier.bias", "_fc.bias"),
    ],
    "regnetx_200mf": [
        ("stem.conv.weight", "stem.0.weight"),
        ("s1.b1.downsample.bn.weight", "trunk_output.block1.block1-0.proj.1.weight"),
        ("s3.b4.conv2.conv.weight", "trunk_output.block3.block3-3.f.b.0.weight"),
        ("head.fc.bias", "fc.bias"),
    ],
}


@pytest.mark.parametrize("name", TIMM)
def test_names_of_timm(name: str) -> None:
    model = ZOO[name](classes=3, width=0.25)
    # Blocks that expand are told from those that do not by a name of theirs.
    marks = ["blocks.1.0.conv_pwl.weight", "blocks.1.1.conv_pwl.weight"] if name != "regnetx_200mf" else []
    found = from_timm(model, [theirs for theirs, _ in TIMM[name]] + marks)
    assert [found[theirs] for theirs, _ in TIMM[name]] == [ours for _, ours in TIMM[name]]
    assert {ours for _, ours in TIMM[name]} <= set(model.state_dict())


def lite_of_timm(model: nn.Module) -> dict[str, torch.Tensor]:
    """Its tensors under the names timm has for them."""
    norms = ("weight", "bias", "running_mean", "running_var")
    names = ["conv_stem.weight", "conv_head.weight", "classifier.weight", "classifier.bias"]
    names += [f"{bn}.{kind}" for bn in ("bn1", "bn2") for kind in norms]
    for stage, depth in enumerate((1, 2, 2, 3, 3, 4, 1)):
        layers = ("conv_dw", "conv_pw") if stage == 0 else ("conv_pw", "conv_dw", "conv_pwl")
        for block in (f"blocks.{stage}.{i}" for i in range(depth)):
            names += [f"{block}.{layer}.weight" for layer in layers]
            names += [f"{block}.bn{i + 1}.{kind}" for i in range(len(layers)) for kind in norms]
    return {theirs: model.state_dict()[ours] for theirs, ours in from_timm(model, names).items()}


@pytest.mark.parametrize("options", [{"tf_padding": True}, {"norm_eps": 1e-5}], ids=["tf", "not tf"])
def test_timms_two_forms_of_a_network_must_be_named(tmp_path: Path, options: dict[str, Any]) -> None:
    """Seen with timm 1.0 itself: loaded into the other form, outputs are off by a tenth."""
    model = ZOO["efficientnet_lite0"](classes=3, width=0.25, **options)
    torch.save(lite_of_timm(model), tmp_path / "w.pth")
    other = ZOO["efficientnet_lite0"](classes=3, width=0.25, **options)
    load_pretrained(other, tmp_path / "w.pth")
    inputs = torch.randn(1, 3, 32, 32)
    assert torch.equal(other.eval()(inputs), model.eval()(inputs))
    with pytest.raises(DataError, match=r"tf_padding: false, norm_eps: 1e-05 for efficientnet_lite0"):
        load_pretrained(ZOO["efficientnet_lite0"](classes=3, width=0.25), tmp_path / "w.pth")


def test_wrappers_prefixes_and_formats(tmp_path: Path) -> None:
    model = resnet20(width=0.25)
    state = {f"module.{name}": value for name, value in model.state_dict().items() if "num_batches" not in name}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "w.pth")
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    for file in ("w.pth", "w.safetensors"):
        other = resnet20(width=0.25)
        load_pretrained(other, tmp_path / file)
        assert torch.equal(other.conv1.weight, model.conv1.weight)


def test_what_does_not_fit_is_listed(tmp_path: Path) -> None:
    torch.save(mobilenet_v2(width=0.25, classes=5).state_dict(), tmp_path / "w.pth")
    with pytest.raises(DataError, match=r"classifier.1.weight is \[5, 1280\], not \[6, 1280\]"):
        load_pretrained(mobilenet_v2(width=0.25, classes=6), tmp_path / "w.pth")
    with pytest.raises(DataError, match="more"):
        load_pretrained(regnetx_200mf(width=0.25), tmp_path / "w.pth")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    torch.save({"w": Trap()}, tmp_path / "w.pth")
    (tmp_path / "v.pth").write_bytes(pickle.dumps(Trap(), protocol=2))
    for file in ("w.pth", "v.pth"):
        with pytest.raises(DataError, match="no plain tensors"):
            load_pretrained(nn.Linear(1, 1), tmp_path / file)
    assert not (tmp_path / "trapped").exists()
