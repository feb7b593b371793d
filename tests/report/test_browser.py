"""The page in a real browser: clicks, keys, filters, light and dark, hostile names, 500 nodes."""

from __future__ import annotations

import pytest

from detent.report import comparison_of, page_of, write_page
from tests.report.made import HOSTILE, chain, hostile

CHOSEN = "return document.querySelector('.node.chosen')?.id"
PANEL = "return document.querySelector('#panel').innerText"
SHOWN = "return [...document.querySelectorAll(arguments[0])].filter(one => one.checkVisibility()).length"


@pytest.fixture(scope="module")
def page(facts, tmp_path_factory):
    return write_page(page_of(facts), tmp_path_factory.mktemp("pages") / "report.html")


def test_an_operation_is_chosen_by_a_click(browser, page):
    browser.open(page)
    assert "Click an operation" in browser.run(PANEL)
    browser.click("#node-0")
    told = browser.run(PANEL)
    assert browser.run(CHOSEN) == "node-0"
    assert told.split()[:2] == ["Conv", "stem_0"]
    assert "W8 A8" in told
    assert "on integers" in told
    assert browser.run(SHOWN, "#panel figure svg") == 2  # of its input and of its weight
    assert browser.run("return document.querySelectorAll('.edge.near').length") == 2
    browser.press("Escape")
    assert browser.run(CHOSEN) is None
    assert "Click an operation" in browser.run(PANEL)
    assert not browser.log()


def test_arrow_keys_follow_the_edges(browser, page):
    browser.open(page)
    browser.click("#input-0")
    browser.press("Down")
    assert browser.run(CHOSEN) == "node-0"
    browser.press("Down", "Down", "Up")
    assert browser.run(CHOSEN) == "node-1"
    assert browser.run("return document.activeElement.id") == "node-1"


def test_nodes_are_colored_by_what_is_asked_for(browser, page):
    fill = "return getComputedStyle(document.querySelector('#node-0 .strip')).fill"
    browser.open(page)
    by_bits = browser.run(fill)
    assert browser.run("return document.querySelector('.legend.by-bits').checkVisibility()")
    browser.click("#colorings [data-by=alone]")
    assert browser.run(fill) != by_bits
    assert not browser.run("return document.querySelector('.legend.by-bits').checkVisibility()")
    assert (
        browser.run("return document.querySelector('#colorings [data-by=alone]').getAttribute('aria-pressed')")
        == "true"
    )


def test_the_filter_is_reached_and_left_by_keys(browser, page):
    browser.open(page)
    rows = browser.run(SHOWN, "#plan tbody tr")
    browser.press("/", "block")
    assert browser.run("return document.activeElement.id") == "filter"
    assert 0 < browser.run(SHOWN, "#plan tbody tr") < rows
    assert browser.run("return document.querySelector('#node-0').classList.contains('dim')")
    browser.press("Enter")
    assert browser.run(CHOSEN) == "node-5"  # block_0_0
    browser.press("/", "Escape")
    assert browser.run(SHOWN, "#plan tbody tr") == rows
    assert browser.run("return document.querySelector('#filter').value") == ""


def test_the_plan_is_filtered_by_role_and_tables_are_sorted(browser, page):
    browser.open(page)
    browser.click("#roles [data-role=weight]")
    assert browser.run(SHOWN, "#plan tbody tr") == 7
    first = "return document.querySelector('#sensitivity tbody tr').innerText"
    costliest = browser.run(first)
    browser.click("#sensitivity th:nth-child(6)")
    assert browser.run(first) == costliest  # it begins with the least SQNR
    browser.click("#sensitivity th:nth-child(6)")
    assert browser.run(first) != costliest
    browser.click("#sensitivity tbody tr a")
    assert browser.run(CHOSEN).startswith("node-")


def test_it_is_dark_where_the_system_is_and_when_asked(browser, page):
    back = "return getComputedStyle(document.body).backgroundColor"
    browser.open(page, dark=True)
    dark = browser.run(back)
    browser.click("#theme")
    light = browser.run(back)
    assert dark != light
    browser.open(page)
    assert browser.run(back) == light
    browser.click("#theme")
    assert browser.run(back) == dark


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_nothing_is_wider_than_the_window(browser, page, width):
    browser.open(page, width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width


def test_printed_it_is_light_and_whole(browser, page):
    browser.open(page, dark=True, media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run(SHOWN, "nav a") == 0
    assert browser.devtools("Page.printToPDF", {"printBackground": True})["data"]


def test_a_hostile_name_is_text(browser, tmp_path):
    browser.open(write_page(page_of(hostile()), tmp_path / "hostile.html"))
    assert browser.run("return document.querySelector('h1').textContent") == HOSTILE
    assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
    # What the name does to the direction of text ends with it.
    note = (
        "const text = [...document.querySelectorAll('.tile .note')].find(one => one.querySelector('code')).lastChild;"
    )
    note += (
        "const range = document.createRange(); const x = at => (range.setStart(text, at), range.setEnd(text, at + 1),"
    )
    assert browser.run(f"{note} range.getBoundingClientRect().left); return x(1) < x(2)")
    browser.click("#node-0")
    assert browser.run("return document.querySelector('#panel h3').textContent") == HOSTILE
    browser.press("/", "alert(1)", "Enter")
    assert browser.run("return document.querySelectorAll('script').length") == 1
    assert not browser.log()


def test_500_nodes_are_drawn_and_answer_at_once(browser, tmp_path):
    path = write_page(page_of(chain(500)), tmp_path / "large.html")
    assert path.stat().st_size < 5_000_000
    browser.open(path)
    assert browser.run("return document.querySelectorAll('.node').length") == 502
    browser.click("#zoom [data-zoom=fit]")
    browser.click("#node-250")
    assert browser.run(CHOSEN) == "node-250"
    click = "document.querySelector('#node-400').dispatchEvent(new MouseEvent('click', {bubbles: true}));"
    assert browser.run(f"{click} {CHOSEN}") == "node-400"
    assert not browser.log()


def test_several_are_compared_in_one_table(browser, facts, tmp_path):
    browser.open(write_page(comparison_of([facts, chain(8, "other")]), tmp_path / "compared.html"))
    assert browser.run(SHOWN, "#layers tbody tr") == 20
    browser.press("/", "stem")
    assert browser.run(SHOWN, "#layers tbody tr") == 1
    assert not browser.log()
