"""Progress: what is shown on a terminal, in a notebook and in a log, and what is not shown."""

from __future__ import annotations

import logging
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import detent
from detent import progress as module
from detent.progress import AtMost, Bar, count_of, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, in place of those that pass."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_bar_says_how_far_it_is_and_what_is_left(clock: list[float]) -> None:
    bar = Bar("calibrating", 64)
    assert str(bar) == "calibrating: 0/64, 0:00:00 elapsed"
    clock[0] = 30
    bar.advance(16)
    assert str(bar) == "calibrating: 16/64, 0:00:30 elapsed, 0:01:30 left"
    bar.advance(facts="conv1")
    assert (bar.done, bar.facts) == (17, "conv1")


def test_what_was_done_before_has_no_say_in_the_time_left(clock: list[float]) -> None:
    bar = Bar("epoch 2/3", 100, done=50)
    clock[0] = 10
    bar.advance(75, facts="loss 0.5")
    assert str(bar) == "epoch 2/3: 75/100, loss 0.5, 0:00:10 elapsed, 0:00:10 left"


def test_without_a_total_it_counts(clock: list[float]) -> None:
    bar = Bar("preparing")
    clock[0] = 4000
    assert str(bar) == "preparing, 1:06:40 elapsed"
    bar.advance()
    assert (str(bar), bar.left) == ("preparing: 1, 1:06:40 elapsed", "-:--:--")


def test_counts() -> None:
    assert (count_of([1, 2]), count_of([1, 2], 1), count_of(iter([])), count_of([], 3)) == (2, 1, None, None)
    some = AtMost((x for x in range(5)), 3)
    assert (count_of(some), list(some)) == (3, [0, 1, 2])
    assert count_of(AtMost([1, 2], 3)) == 2


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Lines without a delay, for a program that has asked for them."""
    monkeypatch.setattr(module._Lines, "delay", 0.0)
    monkeypatch.setattr(module._Lines, "interval", 0.001)
    caplog.set_level(logging.INFO, "detent")


def wait_until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not met():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.usefixtures("at_once")
def test_lines_of_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with progress("working", 2) as bar:
        wait_until(lambda: bool(caplog.messages))
        bar.advance()
        wait_until(lambda: caplog.messages[-1].startswith("working: 1/2, "))
        bar.advance(facts="last")
    assert caplog.messages[-1].startswith("working: 2/2, last, ")
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert {record.name for record in caplog.records} == {"detent"}


@pytest.mark.usefixtures("at_once")
def test_only_the_outermost_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    with progress("outer"):
        wait_until(lambda: bool(caplog.messages))
        with progress("inner", 3) as bar:
            bar.advance()
    assert not [message for message in caplog.messages if "inner" in message]
    with progress("after"):
        wait_until(lambda: caplog.messages[-1].startswith("after"))


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("why", ["environment", "asked", "level"])
def test_what_is_not_shown(why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    if why == "environment":
        monkeypatch.setenv("DETENT_PROGRESS", "0")
    if why == "level":
        caplog.set_level(logging.WARNING, "detent")
    monkeypatch.setattr(module.threading, "Thread", None)  # there is no use for one
    with progress("working", 1, shown=why != "asked") as bar:
        bar.advance()
    assert (bar.done, caplog.messages) == (1, [])


def test_work_of_a_moment_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "detent")
    with progress("working", 1) as bar:
        bar.advance()
    assert caplog.messages == []


@pytest.mark.usefixtures("at_once")
def test_an_error_passes_and_ends_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="mine"), progress("working"):  # noqa: PT012
        wait_until(lambda: bool(caplog.messages))
        raise RuntimeError("mine")
    assert threading.active_count() == before


def test_in_a_notebook_it_is_html_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda page: shown.append(page))
    fake, display = ModuleType("IPython"), ModuleType("IPython.display")
    fake.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda page, **_: shown.append(page) or handle  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(module._Notebook, "delay", 0.0)
    monkeypatch.setattr(module._Notebook, "interval", 0.001)
    with progress("<b>", 2) as bar:
        wait_until(lambda: bool(shown))
        bar.advance()
    assert shown[0].startswith('<progress value="0" max="2"></progress> &lt;b&gt;: 0/2, ')
    assert shown[-1].startswith('<progress value="1" max="2"></progress> &lt;b&gt;: 1/2, ')


ON_A_TERMINAL = """
import sys, time
from detent import progress as module
module._Terminal.delay, module._Terminal.interval = 0.0, 0.01
shown, show = [], module._Terminal.show
def note(display, bar):
    done = bar.done
    show(display, bar)
    shown.append(done)
module._Terminal.show = note
with module.progress("work [1]", 4) as bar:
    for index in range(4):
        bar.advance(facts=f"layer {index}")
        print("for a program to read")
        while shown.count(bar.done) < 2:  # the second began when the facts were there
            time.sleep(0.001)
module._Terminal.delay = 60.0
with module.progress("soon over"):
    pass
print("end", file=sys.stderr)
"""


def on_a_terminal(code: str) -> tuple[str, str]:
    """What a program prints, and what it writes to stderr, which is a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # Linux: the other end is closed
                    break
        out = process.communicate()[0].decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 0, shown.decode()
    return out, shown.decode()


def test_on_a_terminal_it_is_a_bar_that_is_gone_at_the_end() -> None:
    out, shown = on_a_terminal(ON_A_TERMINAL)
    assert out == "for a program to read\n" * 4
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("work [1]")]
    assert [line for line in lines if re.search(r"━ +2/4 layer 1 +\d:\d\d:\d\d *$", line)], lines
    assert "soon over" not in plain
    assert shown.rstrip().endswith("end")
    assert "\x1b[2K" in shown, "the line of the bar is erased"


NOTHING_INSTALLED = """
import logging
import detent, detent.algorithms, detent.training, detent.cli
for name in ("", "detent"):
    assert not logging.getLogger(name).handlers, name
assert logging.getLogger("detent").level == logging.NOTSET
"""


def test_importing_installs_no_handler() -> None:
    subprocess.run([sys.executable, "-c", NOTHING_INSTALLED], check=True, timeout=300)


# ---- the work that shows it ----


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None, int]]:
    """(title, total, done) of each bar that would have been shown, as it ended."""
    found: list[tuple[str, int | None, int]] = []

    def watch(bar: Bar, _: object, over: threading.Event) -> None:
        over.wait()
        found.append((bar.title, bar.total, bar.done))

    monkeypatch.setattr(module, "_display", object)
    monkeypatch.setattr(module, "_watch", watch)
    return found


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


X = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_the_whole_way_shows_each_part_of_it(titles, tmp_path) -> None:
    artifact = detent.quantize(net(), [X, X, X], backend="onnxruntime", folder=tmp_path / "out")
    assert titles == [
        ("preparing", None, 0),
        ("calibrating", 64, 3),
        ("comparing with float", None, 0),
        ("deploying", None, 0),
    ]
    titles.clear()
    artifact.verify([X, X], latency=False)
    assert titles[0] == ("verifying", 2, 2)


@pytest.mark.parametrize("recipe", ["adaround", "brecq", "qdrop", "gptq"])
def test_algorithms_show_how_far_they_are(recipe: str, titles) -> None:
    named = detent.Recipe.named(recipe)
    if recipe != "gptq":
        request = named.algorithms[0].replace(options={"steps": 2})
        named = named.replace(algorithms=(request,))
    prepared = detent.prepare(net(), (X,), backend="onnxruntime", recipe=named)
    titles.clear()
    detent.calibrate(prepared, [X, X])
    (first, second) = titles
    assert first == ("calibrating", 2, 2)
    title, total, done = second
    nodes = sum(len(graph.nodes) for graph in prepared.graphs.values())
    assert (title, total) == (recipe, nodes)
    assert 0 < done <= nodes


def test_sensitivity_counts_layers(titles) -> None:
    prepared = detent.prepare(net(), (X,), backend="onnxruntime")
    detent.calibrate(prepared, [X])
    titles.clear()
    detent.algorithms.sensitivity(prepared, [X], bits=(4, 8))
    assert titles == [("sensitivity", 2, 2)]
