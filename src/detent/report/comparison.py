"""One page for several artifacts of one network: side by side, and layer by layer."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from detent.markup import Html, row, table, tag
from detent.report.facts import Facts, Node
from detent.report.page import shell
from detent.report.sections import code
from detent.report.summary import accuracies, hint, on_cpus
from detent.report.text import Scale, bits_class, byte_size, decibels, percent, width_text

__all__ = ["comparison_of"]

_DASH = "\N{EN DASH}"


def comparison_of(artifacts: Sequence[Facts]) -> str:
    """The page; layers are aligned by their names."""
    names = _short_names([facts.folder for facts in artifacts])
    title = " \N{MIDDLE DOT} ".join(names) if len(names) < 4 else f"{len(names)} artifacts"
    about = f"side by side: {', '.join(dict.fromkeys(facts.backend for facts in artifacts))}"
    return shell(title, about, {"Summary": _summary(artifacts, names), "Layers": _layers(artifacts, names)})


def _short_names(folders: Sequence[str]) -> list[str]:
    """What tells the folders apart.

    >>> _short_names(["runs/a/out", "runs/b/out"]), _short_names(["a", "b"])
    (['a/out', 'b/out'], ['a', 'b'])
    """
    parts = [Path(os.path.normpath(folder)).parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        found = ["/".join(one[-count:]) for one in parts]
        if len(set(found)) == len(found):
            return found
    return list(folders)


def _summary(artifacts: Sequence[Facts], names: Sequence[str]) -> Html:
    shares = [dict(accuracies(facts)) for facts in artifacts]
    rows: list[tuple[str, list[object]]] = [("verdict", [_verdict(facts) for facts in artifacts])]
    rows.append(("target", [facts.backend for facts in artifacts]))
    for who in dict.fromkeys(name for held in shares for name in held):
        rows.append((f"top-1, {who}", _marked([held.get(who) for held in shares], percent, max)))
    worst = [min(facts.output_sqnr.values(), default=None) for facts in artifacts]
    rows.append(("SQNR of the outputs", _marked(worst, decibels, max)))
    rows.append(("size", _marked([float(facts.size) for facts in artifacts], _bytes, min)))
    speeds = [None if facts.verdict is None else facts.verdict.speed for facts in artifacts]
    rows.append(
        ("latency", _marked([None if one is None else one.int8_median_ms for one in speeds], _milliseconds, min))
    )
    rows.append(("latency, quantized : float", [_DASH if s is None else f"{s.median_ratio:.2f} : 1" for s in speeds]))
    rows.append(("bits", [facts.bits or "float" for facts in artifacts]))
    rows.append(("operations in float", [str(len(facts.in_float)) for facts in artifacts]))
    rows.append(("exact on", [", ".join(c for c, yes in on_cpus(f).items() if yes) or _DASH for f in artifacts]))
    missing = dict.fromkeys(sentence for facts in artifacts for sentence in facts.missing)
    return tag(
        "div",
        tag("h2", "Side by side"),
        table(("", *names), [(tag("b", name), *cells) for name, cells in rows], class_="compared"),
        *(hint(sentence) for sentence in missing),
    )


def _verdict(facts: Facts) -> Html:
    if facts.verdict is None:
        return tag("span", "not verified", class_="muted")
    word = facts.verdict.line.partition(":")[0]
    kind = "no" if not facts.verdict.holds else "yes" if facts.verdict.engine else "but"
    return tag("span", word, class_=f"tag {kind}", title=facts.verdict.line)


def _marked(
    values: Sequence[float | None], text: Callable[[float | None], str], best: Callable[[list[float]], float]
) -> list[object]:
    """The numbers as text, the best one bold."""
    known = [value for value in values if value is not None and not math.isnan(value)]
    top = best(known) if len(set(known)) > 1 else None
    return [tag("span", text(value), class_="best" if value is not None and value == top else None) for value in values]


def _bytes(value: float | None) -> str:
    return _DASH if value is None else byte_size(value)


def _milliseconds(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f} ms"


def _layers(artifacts: Sequence[Facts], names: Sequence[str]) -> Html:
    held = [{node.name: node for node in facts.nodes} for facts in artifacts]
    order = dict.fromkeys(name for facts in artifacts for name in (node.name for node in facts.nodes if node.tensors))
    head = ("layer", "operation", *(title for name in names for title in (name, "SQNR")))
    rows = []
    for layer in order:
        nodes = [nodes.get(layer) for nodes in held]
        kind = next(node.op for node in nodes if node is not None)
        cells = [cell for node in nodes for cell in (_width(node), _loss(node))]
        rows.append(row(head, (code(layer), kind, *cells), data_text=f"{layer} {kind}".lower()))
    about = (
        "Layers with the same name: their bits in each artifact, and the SQNR of their results against the float "
        "network."
    )
    return tag(
        "div", tag("h2", "Layers"), tag("p", about, class_="about"), table(head, rows, class_="sortable compared")
    )


def _width(node: Node | None) -> Html:
    if node is None:
        return tag("span", _DASH, class_="muted")
    return Html(f"{tag('i', class_=f'dot-key b{bits_class(node.bits)}')}{width_text(node)}")


def _loss(node: Node | None) -> Html:
    if node is None or node.sqnr is None:
        return tag("span", _DASH, class_="muted")
    return Html(f"{tag('i', class_=f'dot-key c{Scale.SQNR.class_of(node.sqnr)}')}{decibels(node.sqnr)}")
