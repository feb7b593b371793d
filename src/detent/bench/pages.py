"""The leaderboard as a page that stands alone, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from detent.bench.leaderboard import ACADEMIC, Row, Spread, ablation, academic_against_hardware
from detent.bench.results import Result
from detent.markup import Html, row, table, tag
from detent.report.page import shell

__all__ = ["html_page", "markdown_page"]

_DASH = "\N{EN DASH}"
_HEAD = (
    "network", "algorithm", "target", "bits", "batch norm", "start", "seeds#", "float#", "simulated#", "lost#",
    "twin#", "engine#", "latency#", "size#", "seconds#", "verdict",
)  # fmt: skip
_ABLATIONS = {
    "batch_norm": ("Batch norm", "The strategy, -1 to 4, with all else the same."),
    "initialization": ("Initialization", "The observer that training or deployment begins with."),
    "graph": (
        "Graphs",
        "MQBench's graphs with one kind of numbers: 1 quantizes what convolutions and linear layers take in, 3 "
        "additions and all results too, 2 as 3 but not the result of a convolution that ends in an addition.",
    ),
}


def html_page(rows: Sequence[Row], results: Sequence[Result], title: str) -> str:
    """The page; the filter and the order are in its address, so that a view can be linked."""
    parts = {"Leaderboard": _board(rows)}
    against = academic_against_hardware(rows)
    if against:
        parts["Academic and hardware"] = _against(rows)
    for axis, (name, about) in _ABLATIONS.items():
        found = ablation(rows, axis)
        if found:
            head, lines = _ablation_table(rows, axis)
            cells = table([*head[:4], *(f"{one}#" for one in head[4:])], lines, class_="sortable compared")
            parts[name] = tag("div", tag("h2", name), tag("p", about, class_="about"), cells)
    parts["Setting"] = tag("div", tag("h2", "Setting"), *(tag("p", line, class_="about") for line in _setting(results)))
    script = files("detent.bench").joinpath("leaderboard.js").read_text("utf-8")
    return shell(title, f"{len(results)} cells", parts, search="Filter rows  ( / )", more=script)


def markdown_page(rows: Sequence[Row], results: Sequence[Result], title: str) -> str:
    """The same tables, for a repository."""
    lines = [f"# {title}", "", *map(_plain, _setting(results)), "", *_markdown(_HEAD, [_cells(one) for one in rows])]
    failed = [one for one in rows if one.errors]
    if failed:
        lines += ["", "## Not there", ""]
        lines += [f"- {_plain(_words(one))}: {_plain('; '.join(one.errors))}" for one in failed]
    if academic_against_hardware(rows):
        lines += ["", "## Academic and hardware", "", *_markdown(*_against_table(rows))]
    for axis, (name, _) in _ABLATIONS.items():
        if ablation(rows, axis):
            lines += ["", f"## {name}", "", *_markdown(*_ablation_table(rows, axis))]
    return "\n".join(lines) + "\n"


def _board(rows: Sequence[Row]) -> Html:
    about = (
        "Means over seeds, with the standard deviation if there are several. Twin and engine are measured on the "
        "verified samples only. Latency and size are relative to the float network; latency is that of the engine. "
        "Seconds are for calibration and training."
    )
    cells = [[*_cells(one)[:-1], _verdict(one)] for one in rows]
    optional = ("batch norm", "start")  # axes that many grids leave to the target and the recipe
    columns = [
        number
        for number, title in enumerate(_HEAD)
        if title not in optional or any(line[number] != _DASH for line in cells)
    ]
    head = [_HEAD[number] for number in columns]
    lines = [
        row(
            head,
            [line[number] for number in columns],
            data_text=_words(one).lower(),
            title="; ".join(one.errors) or None,
        )
        for one, line in zip(rows, cells, strict=True)
    ]
    return tag(
        "div",
        tag("h2", "Leaderboard"),
        tag("p", about, class_="about"),
        table(head, lines, class_="sortable compared"),
    )


def _cells(one: Row) -> list[str]:
    axes = one.axes
    return [
        _short(axes["network"]),
        axes["algorithm"],
        _short(axes["target"]),
        axes["bits"],
        _DASH if axes["batch_norm"] is None else str(axes["batch_norm"]),
        axes["initialization"] or _DASH,
        str(len(one.seeds)),
        _text(one.exact),
        _text(one.simulated),
        _DASH if one.lost is None else f"{one.lost:.2f}",
        _text(one.verified["twin"]),
        _text(one.verified["engine"]),
        _DASH if one.latency is None else f"{one.latency.mean:.2f}",
        _DASH if one.size is None else f"{one.size:.3f}",
        _DASH if one.cost is None else f"{one.cost.mean:.0f}",
        _DASH if one.holds is None else "holds" if one.holds else "fails",
    ]


def _verdict(one: Row) -> Html:
    if one.simulated is None:
        return tag("span", "failed", class_="tag no", title="; ".join(one.errors))
    if one.holds is None:
        return tag("span", "not deployed", class_="muted", title="; ".join(one.errors))
    kind = "no" if not one.holds else "yes" if one.on else "but"
    return tag("span", "holds" if one.holds else "fails", class_=f"tag {kind}", title=one.on or "no engine")


def _against(rows: Sequence[Row]) -> Html:
    about = "Simulated accuracy of an algorithm by target: academic beside hardware."
    head, lines = _against_table(rows)
    cells = table([*head[:3], *(f"{one}#" for one in head[3:])], lines, class_="sortable compared")
    return tag("div", tag("h2", "Academic and hardware"), tag("p", about, class_="about"), cells)


def _against_table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    found = academic_against_hardware(rows)
    targets = list(dict.fromkeys(target for entry in found for target in entry["by_target"]))
    targets.sort(key=lambda name: (name != ACADEMIC, name))
    lines = []
    for entry in found:
        figures = [_number(entry["by_target"].get(target)) for target in targets]
        lines.append([_short(entry["network"]), entry["bits"], entry["algorithm"], *figures])
    return ["network", "bits", "algorithm", *map(_short, targets)], lines


def _ablation_table(rows: Sequence[Row], axis: str) -> tuple[list[str], list[list[str]]]:
    found = ablation(rows, axis)
    values = sorted({value for entry in found for value in entry["by"]})
    lines = [
        [
            _short(entry["network"]),
            entry["algorithm"],
            _short(entry["target"]),
            entry["bits"],
            *(_number(entry["by"].get(value)) for value in values),
        ]
        for entry in found
    ]
    return ["network", "algorithm", "target", "bits", *values], lines


def _setting(results: Sequence[Result]) -> list[str]:
    """In sentences, what all cells have in common, or what there is of each."""
    good = [result for result in results if result.error is None]
    if not good:
        return ["No cell is done."]
    cpus = dict.fromkeys(f"{one.machine['cpu']} ({one.machine['cpu_kind']})" for one in good)
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in sorted(one.machine["versions"].items())) for one in good
    )
    data = dict.fromkeys(str(one.task.cell.config["data"]["name"]) for one in good)
    began = sorted(one.began for one in good)
    first = good[0].task.cell
    setting = first.config["data"]
    trained = next((one.task.cell.config for one in good if one.task.cell.config["train"]["loop"] != "ptq"), None)
    lines = [
        f"{len(good)} cells, {began[0][:10]} to {began[-1][:10]}. Data: {', '.join(data)}, batches of "
        f"{setting.get('batch_size')}, calibrated on {setting.get('calibration_batches')} of them; accuracy on "
        f"{first.measure.get('batches', 'all')} batches of the test split, of twin and engine on "
        f"{first.measure['verified']}."
    ]
    if trained is not None:
        told = trained["optimizer"]
        lines.append(
            f"Training: {trained['train'].get('epochs', 1)} epochs of "
            f"{trained['data'].get('train_batches', 'all')} batches, {told['name']} with learning rate {told['lr']}."
        )
    return [*lines, f"CPU: {'; '.join(cpus)}.", f"Versions: {'; '.join(versions)}."]


def _words(one: Row) -> str:
    return " ".join(_cells(one)[:6])


def _short(name: str) -> str:
    """
    >>> _short("my.nets:Tiny"), _short("resnet20")
    ('Tiny', 'resnet20')
    """
    return name.rpartition(":")[2]


def _text(spread: Spread | None) -> str:
    return _DASH if spread is None else str(spread)


def _number(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _plain(text: str) -> str:
    """A name from a file of results as one line of plain text.

    >>> _plain("a | b <script>")
    'a / b &lt;script>'
    """
    return " ".join(text.split()).replace("|", "/").replace("<", "&lt;")


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(_plain, cells))} |"

    rule = "|" + "|".join("---:" if title.endswith("#") else "---" for title in head) + "|"
    return [line([title.rstrip("#") for title in head]), rule, *map(line, lines)]
