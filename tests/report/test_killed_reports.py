"""Pages and files for viewers, killed where anything on disk changes: each is the old one or the new one, whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.killing import printed

PROGRAM = """
import json, shutil, sys
from pathlib import Path
import numpy as np
import detent.files
from detent.bench import Results, write_leaderboard
from detent.cli import main
from tests.killing import Saving
from tests.targets.weights_in_blocks import TOKENS, deployed

saving = Saving(detent.files)
folder, job = Path(sys.argv[1]), sys.argv[2]
folder.mkdir()
artifact = deployed(folder / "artifact", "onnxruntime", "ptq")
np.save(folder / "data.npy", TOKENS.numpy())
cells = tuple(Results(Path("docs/leaderboard")))

def report(where, which):
    if not where.exists():
        shutil.copytree(artifact.folder, where)
    data = [] if which == "old" else ["--data", str(folder / "data.npy"), "--no-latency"]
    more = ["--card", "--annotate", "--model-explorer", str(where / "nodes.json")]
    sys.argv[1:] = ["report", str(where), *data, *more]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, ended.code

def leaderboard(where, which):
    write_leaderboard(cells, where, title=which)

def held(where):
    found = {path.name: path.read_bytes() for path in where.iterdir()}
    return {name: content.replace(where.name.encode(), b"X") for name, content in found.items()}

write = {"report": report, "leaderboard": leaderboard}[job]
write(folder / "_w_", "new")
after = held(folder / "_w_")
shutil.rmtree(folder / "_w_")
write(folder / "_w_", "old")
before = held(folder / "_w_")
assert sum(before.get(name) != after[name] for name in after) > 2
lines = saving.lines(lambda: write(folder / "_w_", "new"), folder / "_w_")
assert held(folder / "_w_") == {**before, **after}
seen = []
for line in lines:
    where = folder / f"_{line}_"
    write(where, "old")
    saving.kill(lambda: write(where, "new"), line)
    found = {name: content for name, content in held(where).items() if not name.endswith(".partial")}
    for name in found.keys() | before.keys():
        assert found[name] in (before.get(name), after.get(name)), (line, name)
    seen.append(sum(found[name] != before.get(name) for name in found))
    write(where, "new")
    assert held(where) == {**before, **after}, (line, "and what was left over is swept")
print(json.dumps(seen))
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")
@pytest.mark.parametrize("job", ["report", "leaderboard"])
def test_what_is_killed_leaves_whole_files(job: str, tmp_path: Path) -> None:
    done = printed(tmp_path / "temporary", "-c", PROGRAM, tmp_path / "pages", job, seconds=900)
    seen = json.loads(done.splitlines()[-1])
    assert seen[0] == 0, "killed before the first"
    assert max(seen) > 2, "and after the last"
