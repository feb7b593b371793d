"""Deploying for a target and tuning, killed where anything on disk changes: the folder is the old artifact or the new
one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from detent.targets import BACKENDS
from tests.killing import printed
from tests.targets.language_models import LANGUAGE_MODELS, saved

PROGRAM = """
import json, sys, tempfile, warnings
from pathlib import Path
import torch
from torch import nn
import detent
import detent.files
from detent.deployment import atomic_folder, write
from detent.frontends.hugging_face import load_checkpoint
from detent.targets import BACKENDS
from tests.fuzz.readers import installed
from tests.killing import Saving

warnings.simplefilter("ignore")
torch.set_num_threads(1)
saving = Saving(detent.files, atomic_folder, write)
folder, backend, job, recipe = Path(sys.argv[1]), *sys.argv[2:]
temporary = Path(tempfile.gettempdir())
x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))

def prepared(seed):
    torch.manual_seed(seed)
    if job == "words":
        net = load_checkpoint(folder / "words")
        net.model.lm_head.weight.data.normal_()
        example = net.example(1, 8)
    else:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
        example = (x,)
    if job == "tune":
        return net.eval()
    made = detent.prepare(net, example, backend=backend, recipe=recipe)
    detent.calibrate(made, [example])
    return made

def held(where):
    return {str(path.relative_to(where)): path.read_bytes() for path in where.rglob("*") if path.is_file()}

old, new = prepared(0), prepared(1)
files = [name for name in BACKENDS[backend].files if installed(name)]
def deploy(made, where):
    if job == "tune":
        return detent.tune(made, [x], backend=backend, metric=lambda run: 1.0, drop=0.0, folder=where)
    return detent.deploy(made, where, files=files)

deploy(new, folder / "new" / "out")
after = held(folder / "new" / "out")
deploy(old, folder / "whole" / "out")
before = held(folder / "whole" / "out")
assert before != after
watched = [folder / "whole", *([temporary] if job == "tune" else [])]
lines = saving.lines(lambda: deploy(new, folder / "whole" / "out"), *watched)
seen = {"old": 0, "new": 0}
for line in lines:
    where = folder / str(line) / "out"
    deploy(old, where)
    saving.kill(lambda: deploy(new, where), line)
    found = held(where)
    assert found in (before, after), line
    seen["old" if found == before else "new"] += 1
    deploy(new, where)
    assert held(where) == after
    assert [path.name for path in where.parent.iterdir()] == ["out"], "what was left over is swept"
    assert not list(temporary.glob("detent-*")), "here too"
print(json.dumps({**seen, "files": sorted(after)}))
"""


def killed(tmp_path: Path, *arguments: str) -> dict[str, int | list[str]]:
    said = json.loads(printed(tmp_path / "temporary", "-c", PROGRAM, tmp_path, *arguments, seconds=3000))
    print(said)
    assert min(said["old"], said["new"]) > 0, "killed before it and after"
    return said


pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="folders change places in one step on Linux"),
]


@pytest.mark.parametrize("backend", sorted({*BACKENDS} - {"compressed_tensors", "gguf"}))
def test_a_deploy_that_is_killed_leaves_a_whole_artifact(backend: str, tmp_path: Path) -> None:
    killed(tmp_path, backend, "deploy", "ptq")


@pytest.mark.parametrize("backend", LANGUAGE_MODELS)
def test_one_of_a_language_model(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    recipe, file = LANGUAGE_MODELS[backend]
    saved(tmp_path / "words")
    said = killed(tmp_path, backend, "words", recipe)
    assert file in said["files"]


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_tuning_that_is_killed(backend: str, tmp_path: Path) -> None:
    killed(tmp_path, backend, "tune", "ptq")
