"""A checkpoint that is quantized a layer at a time, killed where anything on disk changes: the same call goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.killing import printed
from tests.layerwise.models import saved

PROGRAM = """
import json, sys
from pathlib import Path
import torch
import detent.files
from detent.algorithms import Change
from detent.layerwise import journal, quantize as module, quantize_checkpoint
from tests.killing import Saving
from tests.layerwise.models import batches

torch.set_num_threads(1)
saving = Saving(detent.files, journal)
model, folder, recipe, undone = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "undone"
known, plain = {}, module.quantize_part

def remembered(part, recipe, backend, calls, example, run, **options):
    # What a part makes of its hidden states, bit for bit, so that only the first run computes.
    key = (part.name, len(recipe.algorithms), None if run is None else tuple(
        tensor.numpy().tobytes() for tensor in run.tensors().values()))
    if key not in known:
        assert not done, "a run that goes on gets the hidden states of the first"
        found = plain(part, recipe, backend, calls, example, run, **options)
        known[key] = found, None if run is None else (run.wanted, run.got, run.before)
    found, states = known[key]
    if states is not None:
        run.wanted, run.got, run.before = (list(held) for held in states)
    return found

module.quantize_part = remembered
if undone:
    module.verdict = lambda *_: ((), Change(place="outputs", before=0.1, after=0.2, kept=False))
done = False
folder.mkdir()  # the lines are counted, and are others where it is not there

def run(where):
    data = None if recipe == "w4g32" else batches()
    quantize_checkpoint(model, data, backend="compressed_tensors", recipe=recipe, folder=where)

def content(where):
    files = {str(p.relative_to(where)): p.read_bytes() for p in where.rglob("*")}
    assert not [name for name in files if "hidden_states" in name]
    said = json.loads(files.pop("layers.json"))
    assert (said["undone"] is not None) == undone
    return files, [{**part, "cpu_seconds": 0} for part in said["parts"]]

run(folder / "first")  # with what a process does once, as compiling kernels
done = True
lines = saving.lines(lambda: run(folder / "whole"), folder / "whole")
whole = content(folder / "whole")
assert whole == content(folder / "first")
kept = []
for line in lines:
    where = folder / str(line)
    saving.kill(lambda: run(where), line)
    held_now = where / "layers.json"
    kept.append(len(json.loads(held_now.read_text())["parts"]) if held_now.exists() else 0)
    assert (where / "config.json").exists() <= (kept[-1] == 3), "nobody loads half a model"
    run(where)
    now = content(where)
    assert now == whole, (line, now[0].keys() ^ whole[0].keys(), [n for n in whole[0] if now[0].get(n) != whole[0][n]])
    assert not list(folder.glob(".detent-*")), "no lock is left"
print(json.dumps(kept))
"""


@pytest.mark.slow  # some forty runs, of which the first computes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")
@pytest.mark.parametrize(
    ("recipe", "way"),
    [
        pytest.param("w4g32_gptq", "kept", id="gptq"),
        pytest.param("w4g32_gptq", "undone", id="gptq-undone", marks=pytest.mark.full),
        pytest.param("w4g32", "kept", id="no-data", marks=pytest.mark.full),
    ],
)
def test_what_is_killed_goes_on_behind_the_last_layer_that_is_done(tmp_path: Path, recipe: str, way: str) -> None:
    pytest.importorskip("transformers")
    model = saved(tmp_path / "llama")
    (model / "tokenizer.json").write_text("{}")  # copied
    job = ("-c", PROGRAM, model, tmp_path / "runs", recipe, way)
    kept = json.loads(printed(tmp_path / "temporary", *job).splitlines()[-1])
    assert len(kept) > 15
    assert set(kept) == {0, 1, 2, 3}, "killed before, between and after"
    assert (sorted(kept) != kept) == (way == "undone"), "one that is undone begins again"
