"""Leaderboards: rows over seeds, what they show side by side, and the page in a real browser."""

from __future__ import annotations

import json

import pytest

from detent.bench import Cell, Result, Task, rows_of, write_leaderboard
from detent.bench.leaderboard import ablation, academic_against_hardware
from tests.bench.jobs import trivial

SHOWN = "return [...document.querySelectorAll('#leaderboard tbody tr')].filter(one => one.checkVisibility()).length"
FIRST = "return document.querySelector('#leaderboard tbody tr').innerText"
MACHINE = {"versions": {"torch": "2.13"}, "cpu": "<b>a CPU</b>", "cpu_kind": "vnni"}


def result(seed=0, *, error=None, epochs=1, simulated=None, **axes) -> Result:
    told = {
        "network": "resnet20", "algorithm": "lsq", "target": "academic", "bits": "W4A4", "batch_norm": None,
        "initialization": None, "seed": seed, **axes,
    }  # fmt: skip
    config = {
        "model": {"name": "resnet20"},
        "data": {"name": "made_up", "batch_size": 8},
        "train": {"seed": seed, "loop": "qat", "epochs": epochs},
        "optimizer": {"name": "sgd", "lr": 0.01},
    }
    cell = Cell(told, config, {"verified": 2})
    figures = {} if error else trivial(cell.to_dict(), allow_imports=False)
    if simulated is not None:
        figures["accuracy"]["simulated"] = simulated
    return Result(Task(cell.key({}), cell), figures, error, MACHINE, "2026-01-02T03:04:05Z", 1.0)


def test_seeds_are_one_row_with_mean_and_spread():
    (row,) = rows_of([result(0), result(1), result(2)])
    assert row.seeds == (0, 1, 2)
    assert (row.simulated.mean, row.simulated.deviation, row.simulated.count) == (91.0, 1.0, 3)
    assert str(row.simulated) == "91.00 ± 1.00"
    assert row.lost == 1.0
    assert row.size == 0.125


def test_another_budget_is_another_row():
    assert len(rows_of([result(0), result(1, epochs=2)])) == 2


def test_failures_are_rows_and_say_why():
    good, bad = rows_of([result(algorithm="qil", error="line\nit has no such scale"), result()])
    assert good.axes["algorithm"] == "lsq"
    assert (bad.simulated, bad.errors) == (None, ("it has no such scale",))


def test_academic_stands_beside_hardware():
    found = academic_against_hardware(rows_of([result(), result(target="tensorrt", simulated=80.0)]))
    assert [entry["by_target"] for entry in found] == [{"academic": 90.0, "tensorrt": 80.0}]
    assert academic_against_hardware(rows_of([result()])) == []


def test_ablations_differ_in_one_axis():
    rows = rows_of([result(batch_norm=0), result(batch_norm=4, simulated=70.0), result(algorithm="dsq", batch_norm=4)])
    (found,) = ablation(rows, "batch_norm")
    assert (found["algorithm"], found["by"]) == ("lsq", {"0": 90.0, "4": 70.0})


def test_hardware_stands_there_with_the_strategy_that_most_of_its_rows_have():
    rows = rows_of(
        [
            result(),
            result(algorithm="dsq", simulated=88.0),
            result(target="tensorrt", batch_norm=4, simulated=80.0),
            result(target="tensorrt", batch_norm=0, simulated=10.0),
            result(algorithm="dsq", target="tensorrt", batch_norm=4, simulated=81.0),
        ]
    )
    found = {entry["algorithm"]: entry["by_target"] for entry in academic_against_hardware(rows)}
    assert found == {
        "lsq": {"academic": 90.0, "tensorrt": 80.0},
        "dsq": {"academic": 88.0, "tensorrt": 81.0},
    }


def test_graphs_are_told_apart_from_targets():
    graphs = [result(target=f"detent.compat.mqbench.hardware:GRAPH_{n}", simulated=80.0 + n) for n in (2, 3)]
    rows = rows_of([result(), result(target="tensorrt", simulated=70.0), *graphs])
    (found,) = ablation(rows, "graph")
    assert (found["target"], found["by"]) == ("", {"1": 90.0, "2": 82.0, "3": 83.0})
    (against,) = academic_against_hardware(rows)
    assert against["by_target"] == {"academic": 90.0, "tensorrt": 70.0}


RESULTS = [
    result(target="detent.compat.mqbench.hardware:GRAPH_2", simulated=83.0),
    result(0), result(1), result(target="tensorrt", simulated=80.0), result(algorithm="dsq", simulated=85.0),
    result(algorithm="<script>alert(1)</script>", error="refused"),
    result(batch_norm=0), result(batch_norm=4, simulated=70.0),
    result(initialization="mse"), result(initialization="minmax", simulated=60.0),
]  # fmt: skip


def test_markdown_and_json(tmp_path):
    _, markdown, data = write_leaderboard(RESULTS, tmp_path, title="Mine")
    text = markdown.read_text()
    assert (
        "| resnet20 | lsq | academic | W4A4 | \N{EN DASH} | \N{EN DASH} | 2 | 92.00 ± 0.00 | 90.50 ± 0.71 | 1.50 |"
        in text
    )
    for title in (
        "# Mine",
        "## Not there",
        "## Academic and hardware",
        "## Batch norm",
        "## Initialization",
        "## Graphs",
    ):
        assert f"{title}\n" in text
    assert len(json.loads(data.read_text())["rows"]) == 9
    assert "<script>" not in text


@pytest.mark.slow
def test_the_page_is_sorted_filtered_and_linked(browser, tmp_path):
    page, *_ = write_leaderboard(RESULTS, tmp_path)
    browser.open(page)
    assert browser.run(SHOWN) == 9
    assert browser.run("return document.querySelectorAll('main section').length") == 6
    browser.press("/", "tensorrt")
    assert browser.run(SHOWN) == 1
    browser.press("Escape")
    browser.click("#leaderboard th:nth-child(9)")
    assert "60.00" in browser.run(FIRST)
    browser.click("#leaderboard th:nth-child(9)")
    assert browser.run("return document.querySelector('#leaderboard th[aria-sort]').textContent") == "simulated"
    browser.press("/", "dsq")
    assert browser.run("return new Promise(done => setTimeout(() => done(location.hash)))") == (
        "#filter=dsq&sort=-simulated"
    )
    link = browser.run("return location.href")
    browser.open(page)
    assert browser.run(SHOWN) == 9
    browser.run("location.href = arguments[0]; location.reload()", link)
    browser.run("return new Promise(d => document.readyState === 'complete' ? d() : addEventListener('load', d))")
    assert browser.run(SHOWN) == 1
    assert browser.run("return document.querySelector('#filter').value") == "dsq"
    assert browser.run("return document.querySelectorAll('main script, main b b').length") == 0
    assert not browser.log()
