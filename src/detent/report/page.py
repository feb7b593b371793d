"""One HTML page that stands alone: no request leaves it, and nothing in it runs but its own script."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from detent.files import write_bytes
from detent.markup import Html, tag
from detent.report import sections
from detent.report.details import details
from detent.report.facts import Facts
from detent.report.graph import COLORINGS, draw_graph
from detent.report.summary import summary
from detent.report.text import Scale

__all__ = ["page_of", "shell", "write_page"]

_MARK = Html(
    '<svg class="mark" viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="9.5"/>'
    '<path d="M12 2.5v5M4 7.2l4 2.6M20 7.2l-4 2.6M12 12l0 6"/></svg>'
)


def page_of(facts: Facts) -> str:
    """The report of one artifact."""
    network = tag(
        "div",
        tag("h2", "Network"),
        _toolbar(facts),
        tag(
            "div",
            tag("div", draw_graph(facts), id="canvas"),
            tag(
                "aside",
                tag("p", "Click an operation, or use Tab and the arrow keys.", class_="hint"),
                tag("p", "Drag to move; zoom with Ctrl and the mouse wheel.", class_="hint"),
                id="panel",
                aria_live="polite",
            ),
            class_="network",
        ),
        details(facts),
    )
    parts = {
        "Summary": summary(facts),
        "Network": network,
        "Sensitivity": sections.sensitivity(facts),
        "Distributions": sections.distributions(facts),
        "Plan": sections.plan(facts),
        "Differences": sections.differences(facts),
        "In float": sections.in_float(facts),
        "Training": sections.training(facts),
        "Manifest": sections.manifest(facts),
    }
    engine = None if facts.verdict is None else facts.verdict.engine
    about = f"for {facts.backend}" + (f", run on {engine}" if engine else "")
    return shell(facts.name, about, {name: part for name, part in parts.items() if part is not None})


def write_page(page: str, path: str | Path) -> Path:
    """The page under `path`, which is returned."""
    write_bytes(path, page.encode("utf-8", "backslashreplace"))
    return Path(path)


def shell(
    title: str,
    about: str,
    parts: dict[str, Html],
    *,
    search: str = "Filter layers and tensors  ( / )",
    more: str | None = None,
) -> str:
    """A page of sections, each with a link in the bar at its side; `more` is a script of its own kind of page."""
    style, script = (files("detent.report").joinpath(name).read_text("utf-8") for name in ("report.css", "report.js"))
    scripts = " ".join(f"'{_hash(one)}'" for one in (script, more) if one is not None)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src {scripts}; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"detent {metadata.version('detent')}"),
        tag("title", f"{title} \N{MIDDLE DOT} Detent"),
        tag("style", Html(style)),
    )
    links = [tag("a", name, href=f"#{_anchor(name)}") for name in parts]
    held = [tag("section", part, id=_anchor(name)) for name, part in parts.items()]
    top = tag(
        "header",
        tag("div", _MARK, tag("div", tag("h1", title), tag("p", about)), class_="title"),
        tag("input", type="search", id="filter", placeholder=search, aria_label="filter"),
        tag("button", "Dark", type="button", id="theme", title="light or dark"),
    )
    body = tag(
        "body",
        top,
        tag("nav", *links, aria_label="sections"),
        tag("main", *held),
        tag("script", Html(script)),
        None if more is None else tag("script", Html(more)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _hash(text: str) -> str:
    """As a content security policy names the one inline text that it lets in."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _toolbar(facts: Facts) -> Html:
    measured = {by for by in ("sqnr", "alone", "lsb") if any(getattr(node, by) is not None for node in facts.nodes)}
    choices = [
        tag("button", title, type="button", data_by=by, aria_pressed="true" if by == "bits" else "false")
        for by, title in COLORINGS.items()
        if by in measured | {"bits", "runs"}
    ]
    zoom = [
        tag("button", sign, type="button", data_zoom=way, title=title)
        for way, sign, title in (
            ("in", "+", "zoom in"),
            ("out", "\N{MINUS SIGN}", "zoom out"),
            ("fit", "Fit", "show all"),
        )
    ]
    return tag(
        "div",
        tag("div", *choices, class_="segments", id="colorings", role="group", aria_label="color by"),
        *_legends(),
        tag("div", *zoom, class_="segments", id="zoom", role="group", aria_label="zoom"),
        class_="toolbar",
    )


def _legends() -> list[Html]:
    widths = [(f"b{name}", "float" if name == "float" else name) for name in ("2", "4", "6", "8", "16", "float")]
    placements = [("r-integer", "integers"), ("r-float", "float"), ("r-folded", "fused"), ("r-unknown", "not known")]
    held: dict[str, list[tuple[str, str]]] = {"bits": widths, "runs": placements}
    for by, scale in (("sqnr", Scale.SQNR), ("alone", Scale.ALONE), ("lsb", Scale.LSB)):
        held[by] = [(f"c{number}", label) for number, label in enumerate(scale.labels)]
        held[by].append(("cnone", "not measured"))
    return [
        tag("ul", *(tag("li", tag("i", class_=kind), label) for kind, label in keys), class_=f"keys legend by-{by}")
        for by, keys in held.items()
    ]
