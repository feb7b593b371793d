"""What `detent train` shows while it trains: a bar on a real terminal, lines where there is none."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from detent import progress

CONFIG = {
    "name": "bar",
    "model": {"name": "resnet20", "options": {"classes": 3, "depth": 1, "width": 0.25}},
    "data": {"name": "made_up", "options": {"count": 64, "size": 8, "classes": 3}, "batch_size": 4},
    "backend": "tensorrt",
    "recipe": "lsq",
    "train": {"loop": "lsq", "epochs": 2},
    "deploy": {"enabled": False},
}


AT_ONCE = """
from detent import progress
from detent.cli import main
progress._Terminal.delay, progress._Terminal.interval = 0.0, 0.01
main()
"""


def words(folder: Path) -> list[str]:
    (folder / "c.yaml").write_text(yaml.safe_dump(CONFIG))
    return ["train", str(folder / "c.yaml"), "-o", str(folder / "run")]


def on_a_terminal(command: list[str]) -> tuple[str, str]:
    """What a program prints, and what it writes to stderr, which is a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    assert process.stdout is not None
    shown, begun = b"", time.monotonic()
    try:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < begun + 300, shown.decode()
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # Linux: the other end is closed
                    break
        out = process.stdout.read().decode()
        assert process.wait(300) == 0, shown.decode()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(ours)
    return out, shown.decode()


def test_on_a_terminal_it_shows_loss_accuracy_and_time_left(tmp_path: Path) -> None:
    out, shown = on_a_terminal([sys.executable, "-c", AT_ONCE, *words(tmp_path)])
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    for epoch in ("epoch 1/2", "epoch 2/2"):
        lines = [line for line in re.split(r"[\r\n]+", plain) if line.startswith(epoch)]
        facts = [re.search(r"(\d+)/16 loss (\d\.\d{4})  top-1 (\d+\.\d) % +(\S+)", line) for line in lines]
        seen = [found for found in facts if found]
        assert seen, f"{epoch}: {lines[-3:]}"
        assert all(float(found[2]) > 0 and 0 <= float(found[3]) <= 100 for found in seen)
        assert any(re.fullmatch(r"0:00:\d\d", found[4]) for found in seen), "time left"
    assert "\x1b[" not in out, "what a program reads holds no bars"
    assert "quantized.top1" in out


def test_elsewhere_it_is_a_line_at_a_time(
    tmp_path: Path, command: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress._Lines, "delay", 0.0)
    done = command(*words(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "epoch" not in done.stdout
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in done.stderr.splitlines()]
    assert lines[0] == f"training bar for tensorrt in {tmp_path / 'run'}, 2 epochs"
    shown = [line for line in lines if re.match(r"epoch 1/2: \d+/16, loss \d\.\d{4}  top-1 \d+\.\d %, ", line)]
    assert shown, lines
    for epoch in (1, 2):
        (told,) = [line for line in lines if line.startswith(f"epoch {epoch}/2: train.loss ")]
        assert re.search(r"train.top1 0\.\d{4}, quantized.top1 \d\.\d{4}, ", told)
    assert "\x1b" not in done.stderr
