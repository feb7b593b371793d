"""A model card: `README.md` with the front matter that Hugging Face reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from detent.report.facts import Facts
from detent.report.summary import accuracies, on_cpus
from detent.report.text import byte_size, decibels, percent
from detent.targets import TARGETS

__all__ = ["model_card"]


def model_card(facts: Facts) -> str:
    """Markdown. Names from the model stand in it as code, in one line."""
    return "\n".join([*_front(facts), "", *_body(facts)]) + "\n"


def _front(facts: Facts) -> Iterator[str]:
    """YAML, of which JSON is a part: every text is quoted."""
    yield "---"
    yield f"library_name: {TARGETS[facts.backend].library if facts.backend in TARGETS else 'onnx'}"
    yield "tags:"
    yield from (f"- {json.dumps(tag)}" for tag in ("quantized", "detent", facts.backend, *facts.bits.lower().split()))
    accuracy = dict(accuracies(facts))
    best = accuracy.get("engine", accuracy.get("twin"))
    if best is not None:
        yield "model-index:"
        yield f"- name: {json.dumps(facts.name)}"
        yield "  results:"
        yield "  - task:\n      type: image-classification"
        yield "    dataset:\n      name: the data that the report was made with\n      type: custom"
        yield "    metrics:"
        yield f"    - type: accuracy\n      value: {best:.2f}"
    yield "---"


def _body(facts: Facts) -> Iterator[str]:
    yield f"# {_code(facts.name)} for {_plain(facts.backend)}"
    yield ""
    yield f"Quantized with Detent ({facts.bits or 'float'})."
    yield "" if facts.verdict is None else f"\n> {_plain(facts.verdict.line)}\n"
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in _rows(facts))
    yield ""
    yield "## Files"
    yield ""
    yield from (f"- {_code(name)}, {byte_size(size)}" for name, size in facts.files.items())
    if facts.in_float:
        yield ""
        yield "## Operations in float"
        yield ""
        yield from (
            f"- {_code(node.name)} ({_code(node.op)}): {_plain(node.why or node.planned)}" for node in facts.in_float
        )
    notes = facts.manifest["notes"]
    if notes:
        yield ""
        yield "## Notes"
        yield ""
        yield from (f"- {_plain(str(note))}" for note in notes)


def _rows(facts: Facts) -> Iterator[tuple[str, str]]:
    yield from ((f"top-1, {who}", percent(value)) for who, value in accuracies(facts))
    for name, value in facts.output_sqnr.items():
        yield f"SQNR of {_code(name)} against float, on {facts.sqnr_of}", decibels(value)
    yield "size", f"{byte_size(facts.size)}, {facts.parameters:,} parameters"
    speed = None if facts.verdict is None else facts.verdict.speed
    if speed is not None:
        figures = f"{speed.int8_median_ms:.2f} ms quantized, {speed.float_median_ms:.2f} ms float"
        yield "latency, one thread, median", f"{figures}, ratio {speed.median_ratio:.2f}"
    yield "the same integers on", ", ".join(name for name, yes in on_cpus(facts).items() if yes) or "not known"
    yield "recipe", _code(str(facts.manifest.get("plan", {}).get("recipe", "")))
    yield (
        "made with",
        _plain(", ".join(f"{name} {version}" for name, version in facts.manifest.get("versions", {}).items())),
    )


def _code(text: str) -> str:
    """
    >>> _code("a`|b")
    '`` a`&#124;b ``'
    """
    plain = " ".join(text.split()).replace("|", "&#124;")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if "`" in plain else f"{fence}{plain}{fence}"


def _plain(text: str) -> str:
    """A sentence in which nothing is markup.

    >>> _plain("a *b* <c>")
    'a \\\\*b\\\\* &lt;c&gt;'
    """
    plain = (
        " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
    )
    for sign in "\\`*_[]":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
