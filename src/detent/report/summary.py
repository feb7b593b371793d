"""The first section: the verdict, and the figures one asks for first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from detent.cpus import CPUS
from detent.markup import Html, tag
from detent.report.charts import bar
from detent.report.facts import Facts
from detent.report.text import bits_class, byte_size, decibels, percent
from detent.verification import Verdict

__all__ = ["accuracies", "hint", "on_cpus", "summary", "verdict_banner"]


def summary(facts: Facts) -> Html:
    tiles = [tile for tile in (_accuracy(facts), _sqnr(facts), _size(facts), _latency(facts)) if tile is not None]
    tiles += [_cpus(facts), _widths(facts)]
    causes = () if facts.verdict is None else facts.verdict.causes
    return tag(
        "div",
        verdict_banner(facts),
        tag("div", *tiles, class_={4: "tiles four", 5: "tiles five"}.get(len(tiles), "tiles")),
        *(
            tag(
                "div", tag("h3", cause.what), tag("p", cause.why), tag("p", "What to do: ", cause.to_do), class_="cause"
            )
            for cause in causes
        ),
        _problems(facts.verdict),
        *(hint(sentence) for sentence in facts.missing),
    )


def hint(sentence: str) -> Html:
    """A sentence; what stands between two backticks in it is code."""
    parts = [tag("code", part) if number % 2 else part for number, part in enumerate(sentence.split("`"))]
    return tag("p", *parts, class_="hint")


def verdict_banner(facts: Facts) -> Html:
    verdict = facts.verdict
    if verdict is None:
        kind, word, line = (
            "unknown",
            "Not verified",
            "Nothing was run. Give data to compare simulation, twin and engine.",
        )
    else:
        word, _, line = verdict.line.partition(": ")
        kind = "fail" if not verdict.holds else "but" if verdict.engine is None or verdict.unlike else "pass"
        kind = "but" if verdict.holds and verdict.saturating else kind
    sign = {"pass": "\N{CHECK MARK}", "fail": "\N{MULTIPLICATION X}", "but": "!", "unknown": "?"}[kind]
    return tag(
        "div",
        tag("span", sign, class_="sign", aria_hidden="true"),
        tag("div", tag("strong", word.replace("PASS", "Pass").replace("FAIL", "Fail")), tag("p", line)),
        class_=f"verdict {kind}",
        role="status",
    )


def _tile(title: str, *children: object, wide: bool = False) -> Html:
    return tag("div", tag("h3", title), *children, class_="tile wide" if wide else "tile")


def accuracies(facts: Facts) -> Iterator[tuple[str, float]]:
    """Top-1 in percent by who computed it."""
    found = None if facts.verdict is None else facts.verdict.accuracy
    if found is None:
        return
    simulated = "simulated" if facts.verdict is not None and facts.verdict.simulated else "model.onnx"
    shares = (("float", facts.float_accuracy), (simulated, found.simulation), ("twin", found.twin))
    yield from ((who, value) for who, value in (*shares, ("engine", found.engine)) if value is not None)


def _accuracy(facts: Facts) -> Html | None:
    shown = list(accuracies(facts))
    if not shown or facts.verdict is None or facts.verdict.accuracy is None:
        return None
    rows = [
        tag("div", tag("span", who), bar(value, 100), tag("b", percent(value)), class_="measure")
        for who, value in shown
    ]
    return _tile("Accuracy", *rows, tag("p", f"top-1 of {facts.verdict.accuracy.samples:,} samples", class_="note"))


def _sqnr(facts: Facts) -> Html | None:
    if not facts.output_sqnr:
        return None
    worst = min(facts.output_sqnr, key=lambda name: facts.output_sqnr[name])
    of = f", the worst of {len(facts.output_sqnr)} outputs," if len(facts.output_sqnr) > 1 else ""
    big = tag("p", decibels(facts.output_sqnr[worst]), class_="big")
    rest = f"{of} against the float network, on {facts.sqnr_of}"
    return _tile("SQNR", big, tag("p", "of ", tag("code", worst), rest, class_="note"))


def _size(facts: Facts) -> Html:
    ratio = facts.float_size / facts.size if facts.size else 0.0
    times = f"{ratio:.1f}\N{MULTIPLICATION SIGN} smaller than " if ratio >= 1 else ""
    note = f"{times}{byte_size(facts.float_size)} in float32; {facts.parameters:,} parameters"
    return _tile("Size", tag("p", byte_size(facts.size), class_="big"), tag("p", note, class_="note"))


def _latency(facts: Facts) -> Html | None:
    speed = None if facts.verdict is None else facts.verdict.speed
    if speed is None:
        return None
    most = max(speed.int8_median_ms, speed.float_median_ms)
    rows = [
        tag("div", tag("span", who), bar(value, most), tag("b", f"{value:.2f} ms"), class_="measure")
        for who, value in (("quantized", speed.int8_median_ms), ("float", speed.float_median_ms))
    ]
    note = "median time of a run, one thread; the two alternate"
    ratio = tag("p", f"{speed.median_ratio:.2f} : 1", class_="big")
    return _tile("Latency, quantized : float", ratio, *rows, tag("p", note, class_="note"))


def on_cpus(facts: Facts) -> dict[str, bool | None]:
    """For each kind of CPU whether the file computes the same integers there; None if nobody knows."""
    found: dict[str, bool | None] = dict.fromkeys(CPUS)
    found.update(dict.fromkeys(facts.manifest.get("cpus", ()), True))
    if facts.verdict is not None and facts.verdict.cpu is not None:
        for row in facts.verdict.others:
            found.update(dict.fromkeys(row.alike, not row.differing and not row.saturating))
    return found


def _cpus(facts: Facts) -> Html:
    here = None if facts.verdict is None else facts.verdict.cpu
    words = {True: "the same integers", False: "other integers", None: "not known"}
    signs = {True: "\N{CHECK MARK}", False: "\N{MULTIPLICATION X}", None: "?"}
    known = on_cpus(facts)
    chips = [
        tag(
            "li",
            tag("span", signs[exact], class_="sign", aria_hidden="true"),
            name,
            tag("small", "here") if name == here else None,
            class_=f"chip {'yes' if exact else 'no' if exact is False else 'unknown'}",
            title=f"{CPUS[name].about}: {words[exact]}",
        )
        for name, exact in known.items()
    ]
    note = "CPUs that compute the same integers, according to manifest and twin"
    if all(exact is None for exact in known.values()):
        note = "not known: the engine does not depend on the CPU, or it was not run"
    return _tile("Exact on", tag("ul", *chips, class_="chips"), tag("p", note, class_="note"))


def _widths(facts: Facts) -> Html:
    """How many operations have which width, as one line of segments."""
    counts = Counter(bits_class(node.bits) for node in facts.nodes)
    order = [name for name in ("2", "4", "6", "8", "16", "float") if counts[name]]
    at, parts, keys = 0.0, [], []
    for name in order:
        width = 100 * counts[name] / max(len(facts.nodes), 1)
        parts.append(tag("rect", class_=f"b{name}", x=f"{at:.2f}", width=f"{width:.2f}", height=8))
        label = "float" if name == "float" else f"{name} bits"
        keys.append(tag("li", tag("i", class_=f"b{name}"), f"{counts[name]} \N{MULTIPLICATION SIGN} {label}"))
        at += width
    line = tag("svg", *parts, class_="bar", viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")
    big = tag("p", facts.bits or "float", class_="big")
    return _tile("Bits", big, line, tag("ul", *keys, class_="keys"))


def _problems(verdict: Verdict | None) -> Html | None:
    if verdict is None or not (verdict.problems or verdict.notes):
        return None
    found = [tag("li", text, class_="problem") for text in verdict.problems]
    return tag("ul", *found, *(tag("li", note) for note in verdict.notes), class_="notes")
