"""A target of another package is installed, deployed to, run and verified, without a line in Detent that knows it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

DEPLOY = """
import json, sys
import torch
from torch import nn
import detent

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second, self.norm = nn.Conv2d(4, 4, 3, stride=1, padding=1), nn.BatchNorm2d(4)
        self.third = nn.Conv2d(4, 6, 3, stride=2, bias=False)
        self.fc = nn.Linear(24, 5)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.norm(self.second(x)))
        return self.fc(torch.relu(self.third(x).flatten(1)))

torch.manual_seed(0)
batch = torch.randn(8, 3, 6, 6)
prepared = detent.prepare(Net().eval(), (batch,), backend="imaginary")
detent.calibrate(prepared, [batch])
verdict = detent.deploy(prepared, sys.argv[1]).verify([batch]).to_dict()

pool = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)).eval()  # which the chip lacks
prepared = detent.prepare(pool, (batch,), backend="imaginary")
detent.calibrate(prepared, [batch])
try:
    detent.deploy(prepared, sys.argv[1] + "-pool")
except detent.errors.DeployError as error:
    print(json.dumps([verdict, error.asked]))
"""

VERIFY = """
import json, sys
import torch
import detent

torch.manual_seed(1)
batch = torch.randn(8, 3, 6, 6)
verify = lambda folder, isolate: detent.Artifact.load(folder).verify([batch], isolate=isolate).to_dict()
whole, *changed = sys.argv[1:]
print(json.dumps([verify(whole, None), *(verify(folder, False) for folder in changed)]))  # the first one in a child

from detent.cli import main
sys.argv = ["detent", "backends", "--json"]
main()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs code where the package is installed."""
    source, site = tmp_path_factory.mktemp("source") / "chip", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "examples" / "imaginary_chip", source)
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", site, source], timeout=300, check=True
    )
    paths = [str(site), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def run(*arguments: str | Path) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def deployed(python, tmp_path_factory):
    """The folder, the verdict of the process that wrote it, and what it was refused."""
    folder = tmp_path_factory.mktemp("deployed") / "out"
    return folder, *json.loads(python("-c", DEPLOY, folder))


def changed(folder: Path, to: Path, change) -> Path:
    """The folder with another `imaginary.json`, and with its hash, as if it had been written so."""
    shutil.copytree(folder, to)
    file, manifest = to / "imaginary.json", to / "manifest.json"
    held = json.loads(file.read_text())
    change(held)
    file.write_text(json.dumps(held))
    said = json.loads(manifest.read_text())
    said["files"]["imaginary.json"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(said))
    return to


def change_weight(held):
    codes = held["tensors"]["first.weight"]["codes"]
    codes[0] = 3 if codes[0] != 3 else 4


def change_exponent(held):
    held["tensors"]["relu"]["exponent"] += 1


@pytest.fixture(scope="module")
def another(python, deployed, tmp_path_factory):
    """What another process says of the folder and of two that were changed, and what `detent backends` prints there."""
    folder, to = deployed[0], tmp_path_factory.mktemp("changed")
    others = [changed(folder, to / change.__name__, change) for change in (change_weight, change_exponent)]
    found, _, rows = python("-c", VERIFY, folder, *others).partition("\n")
    return dict(zip(("whole", "weight", "exponent"), json.loads(found), strict=True)), json.loads(rows)


@pytest.fixture
def verdicts(another):
    return another[0]


def test_it_is_equal_bit_for_bit(deployed):
    folder, verdict, _ = deployed
    assert {file.name for file in folder.iterdir()} >= {"model.onnx", "imaginary.json", "manifest.json"}
    assert (verdict["backend"], verdict["engine"], verdict["arithmetic"]) == ("imaginary", "imaginary 1.0", "imaginary")
    assert verdict["holds"]
    assert verdict["problems"] == []
    rows = [*verdict["outputs"], *verdict["tensors"]]
    assert any(row["what"] == "twin vs engine" for row in rows)
    assert sum(row["differing"] for row in rows) == 0
    assert {placed["ran_as"] for placed in verdict["placements"]} == {"integer", "folded"}


def test_another_process_needs_only_the_folder(verdicts):
    verdict = verdicts["whole"]
    assert verdict["holds"]
    assert verdict["engine"] == "imaginary 1.0"
    assert not [note for note in verdict["notes"] if "not checked" in note]


@pytest.mark.parametrize("part", ["weight", "exponent"])
def test_a_file_that_says_something_else_is_caught(verdicts, part):
    verdict = verdicts[part]
    assert not verdict["holds"]
    assert any("imaginary.json has" in problem for problem in verdict["problems"])
    assert any(row["differing"] for row in verdict["outputs"] if row["what"] == "twin vs engine")


def test_it_is_in_the_list(another):
    rows = another[1]
    assert rows["imaginary"]["installed"] == "1.0"
    assert rows["imaginary"]["weight bits"] == [4]


def test_what_the_chip_lacks_is_refused(deployed):
    assert deployed[2] == "write MaxPool '_1' as imaginary_json"
