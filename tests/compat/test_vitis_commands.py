"""The commands of the quick start, as a user types them: weights in torchvision's names, pictures in folders."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from detent.zoo import mobilenet_v2, resnet18

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "vitis"
SIZE = ("--batch_size=4", "--batches=2", "--image_size=32", "--classes=3", "--width=0.125", "--epochs=1")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Two folders of pictures that are brighter from class to class."""
    image = pytest.importorskip("PIL.Image", reason="pictures are read by Pillow")
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in range(3):
            place = folder / split / f"class{label}"
            place.mkdir(parents=True)
            for number in range(3):
                pixels = draw.integers(80 * label, 80 * label + 90, (40, 48, 3), dtype=np.uint8)
                image.fromarray(pixels).save(place / f"{number}.png")
    return folder


@pytest.fixture
def called(monkeypatch, capsys):
    """`python main.py ...`, in this process, which has imported everything already."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.chdir(FOLDER)
    main = runpy.run_path(str(FOLDER / "main.py"))["main"]

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        code = main([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return call


@pytest.mark.full
def test_train_and_deploy(pictures, called, tmp_path):
    torch.manual_seed(1)
    weights = resnet18(classes=3, width=0.125).state_dict()
    save_file(weights, tmp_path / "float.safetensors")
    common = (
        "--model_name=resnet18",
        "--config_file=configs/int_pof2_tqt.json",
        f"--data_dir={pictures}",
        f"--qat_ckpt={tmp_path / 'qat.pth'}",
        f"--output_dir={tmp_path / 'out'}",
        *SIZE,
    )
    trained = called("--mode=train", f"--pretrained={tmp_path / 'float.safetensors'}", *common)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.startswith("epoch 1: loss ")
    state = torch.load(tmp_path / "qat.pth", weights_only=True)
    first = next(name for name in weights if weights[name].ndim == 4)
    kept = next(value for name, value in state.items() if value.shape == weights[first].shape)
    # Two steps of Adam at 1e-5: it began with the given weights.
    assert 0 < (kept - weights[first]).abs().max() < 1e-4

    deployed = called("--mode=deploy", *common)
    assert deployed.returncode == 0, deployed.stderr
    simulated, in_integers = deployed.stdout.splitlines()[0].removeprefix("accuracy simulated ").split(", deployed ")
    assert simulated == in_integers
    assert (tmp_path / "out" / "ModelWithQuantStub.onnx").is_file()
    assert (tmp_path / "out" / "xmodel" / "quant_info.json").is_file()


def test_a_mistake_is_a_message_and_no_traceback(pictures, called, tmp_path):
    torch.save(mobilenet_v2(classes=3, width=0.125).state_dict(), tmp_path / "other.pth")
    answer = called("--mode=train", f"--pretrained={tmp_path / 'other.pth'}", f"--data_dir={pictures}", *SIZE)
    assert answer.returncode == 2
    assert "conv1.weight is missing" in answer.stderr
