"""Deploying for a target and tuning, killed where anything on disk changes: the folder is the old artifact or the new
one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detent.targets import BACKENDS

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import json, os, signal, sys, tempfile, warnings
from pathlib import Path
import torch
from torch import nn
import detent
import detent.files
from detent.deployment import atomic_folder, write
from detent.targets import BACKENDS
from tests.fuzz.readers import installed
from tests.line_tracer import at_each_line, kill_at
from tests.targets.gguf.llama import TOKENS, Llama

warnings.simplefilter("ignore")
torch.set_num_threads(1)
SAVING = {str(module.__file__) for module in (detent.files, atomic_folder)} | {write.__code__.co_filename}
folder, backend, tunes = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "tune"
temporary = Path(tempfile.gettempdir())
watched = (folder / "whole", temporary) if tunes else (folder / "whole",)
x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))

def prepared(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    if backend in ("gguf", "compressed_tensors"):  # they hold language models alone
        recipe = "q4_0" if backend == "gguf" else "w4g32"
        made = detent.prepare(Llama(num_hidden_layers=1).eval(), (TOKENS,), backend=backend, recipe=recipe)
        detent.calibrate(made, [TOKENS])
        return made
    if tunes:
        return net.eval()
    made = detent.prepare(net, (x,), backend=backend, recipe="ptq")
    detent.calibrate(made, [x])
    return made

def held(where):
    return {str(path.relative_to(where)): path.read_bytes() for path in where.rglob("*") if path.is_file()}

old, new = prepared(0), prepared(1)
files = [name for name in BACKENDS[backend].files if installed(name)]
def deploy(made, where):
    if tunes:
        return detent.tune(made, [x], backend=backend, metric=lambda run: 1.0, drop=0.0, folder=where)
    return detent.deploy(made, where, files=files)

deploy(new, folder / "new" / "out")
after = held(folder / "new" / "out")
deploy(old, folder / "whole" / "out")
before = held(folder / "whole" / "out")
assert before != after
lines, last = [], None

def look(line):
    global last
    now = []
    for path in sorted(path for place in watched for path in place.rglob("*")):
        state = path.lstat()
        now.append((str(path), state.st_size, state.st_mtime_ns))
    if now != last:
        lines.append(line)
    last = now

with at_each_line(SAVING, look):
    deploy(new, folder / "whole" / "out")
seen = {"old": 0, "new": 0}
for line in lines:
    where = folder / str(line) / "out"
    deploy(old, where)
    child = os.fork()
    if not child:
        with at_each_line(SAVING, kill_at(line)):
            deploy(new, where)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = held(where)
    assert found in (before, after), line
    seen["old" if found == before else "new"] += 1
    deploy(new, where)
    assert held(where) == after
    assert [path.name for path in where.parent.iterdir()] == ["out"], "what was left over is swept"
    assert not list(temporary.glob("detent-*")), "here too"
print(json.dumps({"lines": len(lines), **seen}))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="folders change places in one step on Linux")
@pytest.mark.parametrize(
    ("backend", "job"),
    [*((name, "deploy") for name in sorted(BACKENDS)), ("onnxruntime", "tune"), ("openvino", "tune")],
)
def test_what_is_killed_leaves_a_whole_artifact(backend: str, job: str, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()  # for this process alone: what it sweeps counts as lines
    ours = {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), backend, job]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **ours}, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
    assert '"old": 0' not in done.stdout
    assert '"new": 0' not in done.stdout
