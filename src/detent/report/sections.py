"""The sections of a page behind the summary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detent.markup import Html, row, table, tag
from detent.numerics import Scheme
from detent.report.charts import bar, draw_curve, draw_depth, draw_histogram
from detent.report.facts import Facts, Node, TensorSummary
from detent.report.text import Scale, byte_size, decibels, share, width_text
from detent.verification import Difference

__all__ = ["code", "differences", "distributions", "in_float", "manifest", "plan", "sensitivity", "training"]

_SHOWN = 12
"""Histograms that are open at first."""


def code(text: object) -> Html:
    return tag("code", text)


def _section(title: str, about: object, *children: object) -> Html:
    return tag("div", tag("h2", title), tag("p", about, class_="about"), *children)


def _node_link(number: int, node: Node) -> Html:
    return tag("a", code(node.name), href="#network", data_node=f"node-{number}")


def sensitivity(facts: Facts) -> Html | None:
    """What each layer costs, the costliest first."""
    numbered = list(enumerate(facts.nodes))
    measured = [(number, node) for number, node in numbered if node.alone is not None]
    if not measured:
        return None
    head = (
        "layer",
        "operation",
        "bits",
        "SQNR of the result#",
        "",
        "SQNR of the outputs, alone#",
        "",
    )
    ranked = sorted(measured, key=lambda pair: pair[1].alone if pair[1].alone is not None else 0.0)
    rows = [
        row(
            head,
            (
                _node_link(number, node),
                node.op,
                tag("span", width_text(node), class_="nowrap"),
                decibels(node.sqnr),
                _loss_bar(node.sqnr, Scale.SQNR),
                decibels(node.alone),
                _loss_bar(node.alone, Scale.ALONE),
            ),
            data_text=f"{node.name} {node.op}".lower(),
        )
        for number, node in ranked
    ]
    left_out = sum(bool(node.tensors) for _, node in numbered) - len(measured)
    more = f" {left_out} layers that quantization changes least were not measured alone." if left_out > 0 else ""
    about = (
        f"Measured on {facts.samples} samples. The first SQNR compares the result of a layer with the float network, "
        "with all layers quantized. The second compares the outputs, with only the operands of this layer quantized. "
        f"A longer bar means more noise.{more}"
    )
    return _section(
        "Sensitivity",
        about,
        _wide(draw_depth([(number, node) for number, node in numbered if node.result in node.outputs])),
        table(head, rows, class_="sortable"),
    )


def _wide(drawing: Html | None) -> Html | None:
    """In a narrow window it is scrolled, not made too small to read."""
    return None if drawing is None else tag("div", drawing, class_="wide")


def _loss_bar(value: float | None, scale: Scale) -> Html:
    """The noise: long is bad."""
    if value is None:
        return Html("")
    return bar(60 - min(value, 60.0), 60, f"c{scale.class_of(value)}")


def distributions(facts: Facts) -> Html | None:
    """A histogram a tensor, those that lose most first."""
    held = [tensor for tensor in facts.tensors.values() if tensor.histogram is not None]
    if not held:
        return None
    ordered = sorted(held, key=lambda tensor: (tensor.sqnr is None, tensor.sqnr or 0.0))
    figures = [_figure(tensor, number >= _SHOWN) for number, tensor in enumerate(ordered)]
    more = len(figures) - _SHOWN
    about = (
        "Values in steps of their grid; the height is the square root of the count. The grid is between the two lines; "
        "values in the shaded zones are clipped to its ends. A red bar at a line is the share of codes at that end."
    )
    return _section(
        "Distributions",
        about,
        tag("div", *figures, class_="figures"),
        tag("button", f"Show {more} more", type="button", id="more") if more > 0 else None,
    )


def _figure(tensor: TensorSummary, late: bool) -> Html:
    held = tensor.histogram
    assert held is not None
    clipped, ends = held.below + held.above, held.at_least + held.at_most
    kind = tensor.dtype if tensor.dtype.endswith(f"int{tensor.bits}") else f"{tensor.dtype}, {tensor.bits} bits"
    facts = [kind, f"{share(ends)} at the ends", f"{share(clipped)} clipped"]
    if tensor.sqnr is not None:
        facts.insert(1, decibels(tensor.sqnr))
    return tag(
        "figure",
        tag("figcaption", code(tensor.name), tag("span", tensor.role, class_=f"role {tensor.role}")),
        draw_histogram(tensor),
        tag(
            "div",
            tag("span", tensor.qmin),
            tag("span", f"{held.of}, in steps"),
            tag("span", tensor.qmax),
            class_="axis",
        ),
        tag("p", *_joined(facts), class_="note"),
        tag("p", _scale_text(tensor), class_="note"),
        class_="late" if late else None,
        data_tensor=tensor.name,
        data_text=f"{tensor.name} {tensor.role}".lower(),
    )


def _joined(facts: Sequence[str]) -> Iterator[object]:
    """With dots between them; a line breaks only there."""
    for number, fact in enumerate(facts):
        yield " \N{MIDDLE DOT} " if number else ""
        yield tag("span", fact, class_="nowrap")


def _scale_text(tensor: TensorSummary) -> str:
    low, high = tensor.scale
    if tensor.channels == 1:
        zero = f", zero point {tensor.zero_point[0]}" if any(tensor.zero_point) else ""
        reach = (tensor.qmin - tensor.zero_point[0]) * low, (tensor.qmax - tensor.zero_point[0]) * low
        return f"scale {low:.4g}{zero}: {reach[0]:.4g} to {reach[1]:.4g}"
    return f"{tensor.channels:,} scales, {low:.3g} to {high:.3g}"


def plan(facts: Facts) -> Html | None:
    held: Mapping[str, Any] = facts.manifest.get("plan", {})
    if not held.get("tensors"):
        return None
    head = ("tensor", "kind", "as", "by", "why")
    rows = [
        row(head, cells, data_role=role, data_text=" ".join(map(str, plain)).lower())
        for role, plain in _planned(held["tensors"])
        for cells in [(code(plain[0]), *plain[1:])]
    ]
    roles = {"all": "All", "weight": "Weights", "activation": "Activations", "bias": "Biases", "float": "Float"}
    there = {role for role, _ in _planned(held["tensors"])}
    buttons = [
        tag("button", title, type="button", data_role=role, aria_pressed="true" if role == "all" else "false")
        for role, title in roles.items()
        if role == "all" or role in there
    ]
    notes = [tag("li", note) for note in held.get("notes", ())]
    about = (
        f"What {facts.backend} quantizes with the recipe {held.get('recipe', '')}, how, and why. "
        "By: the quantizer and, after <, the observer that measured the range."
    )
    if any(entry.get("widened") for entry in held["tensors"]):
        about += (
            " Steps \N{MULTIPLICATION SIGN}1.25: the scale is 1.25 times larger than the range needs, so that no CPU "
            "saturates where it adds products in pairs."
        )
    return _section(
        "Plan",
        about,
        tag("div", *buttons, class_="segments", id="roles", role="group", aria_label="which tensors"),
        table(head, rows, class_="sortable", id="planned"),
        tag("ul", *notes, class_="notes") if notes else None,
    )


def _planned(tensors: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The role of each, and what the row says."""
    for entry in tensors:
        if "scheme" not in entry:
            yield "float", (entry["tensor"], entry["kind"], "float", "", entry.get("float", ""))
            continue
        by = entry["quantizer"] if not entry["observer"] else f"{entry['quantizer']} < {entry['observer']}"
        widened = "" if entry.get("widened") is None else f"; steps \N{MULTIPLICATION SIGN}{entry['widened']:.2f}"
        scheme = str(Scheme.from_dict(entry["scheme"]))
        shown = f"= {entry['shares']}" if entry.get("shares") else by
        yield entry["role"], (entry["tensor"], entry["kind"], scheme, shown, f"{entry['why']}{widened}")


def differences(facts: Facts) -> Html | None:
    verdict = facts.verdict
    if verdict is None or not verdict.outputs:
        return None
    ends = table(
        ("output", "compared", "differing#", "of#", "largest difference#"),
        [(code(d.tensor), d.what, f"{d.differing:,}", f"{d.elements:,}", _most(d)) for d in verdict.outputs],
    )
    kinds = list(dict.fromkeys(found.what for found in verdict.tensors))
    by_tensor: dict[str, dict[str, Difference]] = {}
    for found in verdict.tensors:
        by_tensor.setdefault(found.tensor, {})[found.what] = found
    head = ("tensor", *kinds)
    rows = [
        row(head, (code(name), *(_cell(held.get(kind)) for kind in kinds)), data_text=name.lower())
        for name, held in by_tensor.items()
    ]
    about = (
        "Outputs are compared end to end. Operation by operation, both sides get the same inputs, so differences do "
        "not accumulate. LSB: one step of the tensor's grid. "
        f"The twin computes as {verdict.arithmetic}; guarantee: {verdict.claim}."
    )
    if not verdict.simulated:
        about += " File: model.onnx computed in float, as ONNX defines it, in place of the simulation."
    inside = (tag("h3", "Operation by operation"), table(head, rows, class_="sortable")) if rows else ()
    return _section("Simulation, twin, engine", about, ends, *inside)


def _most(found: Difference) -> str:
    return "" if found.equal else f"{found.most:.3g} {found.unit}"


def _cell(found: Difference | None) -> Html:
    if found is None:
        return tag("span", "\N{EN DASH}", class_="muted")
    if found.equal:
        return tag("span", "equal", class_="tag yes", title=f"all {found.elements:,}")
    kind = "no" if found.impossible else "but"
    title = f"{found.differing:,} of {found.elements:,} differ"
    return tag("span", f"{_most(found)} in {share(found.rate)}", class_=f"tag {kind}", title=title)


def in_float(facts: Facts) -> Html | None:
    if not facts.in_float:
        return None
    engine = facts.manifest["engine"] or "the target"
    head = ("operation", "kind", "why")
    rows = [
        row(
            head,
            (_node_link(number, node), node.op, node.why or node.planned or "the engine does not say why"),
            data_text=f"{node.name} {node.op} {node.why}".lower(),
        )
        for number, node in enumerate(facts.nodes)
        if node.runs == "float"
    ]
    return _section("In float", f"Operations that {engine} computes in float.", table(head, rows))


def training(facts: Facts) -> Html | None:
    if not facts.curves:
        return None
    figures = [
        tag("figure", tag("figcaption", code(curve.name), tag("span", f"{curve.points[-1][1]:.4g}")), draw_curve(curve))
        for curve in facts.curves
    ]
    return _section("Training", "The curves in the log of the run.", tag("div", *figures, class_="figures"))


def manifest(facts: Facts) -> Html:
    held = facts.manifest
    hashes: Mapping[str, str] = held["files"]
    files = table(
        ("file", "size#", "SHA-256"),
        [(code(name), byte_size(size), code(hashes[name])) for name, size in facts.files.items()],
    )
    made = {"target": held["backend"], "recipe": held.get("plan", {}).get("recipe"), "twin": held.get("arithmetic")}
    made["made with"] = ", ".join(f"{name} {version}" for name, version in held.get("versions", {}).items())
    rest = {key: value for key, value in held.items() if key not in ("tensors", "ranges", "plan", "names", "files")}
    text = json.dumps(rest, indent=2, ensure_ascii=False)
    about = f"The files in {facts.folder}, and how they were made."
    raw = tag("details", tag("summary", "manifest.json without its tensors and its Plan"), tag("pre", text))
    rows = table(("property", "value"), [(name, value) for name, value in made.items() if value])
    return _section("Manifest", about, files, rows, raw)
