"""Pages and files made of facts: nothing leaves them, and no name breaks them."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import replace

import onnx
import yaml

from detent.artifact import Artifact
from detent.report import annotated_model, comparison_of, model_card, node_data, page_of
from detent.report.facts import Curve
from tests.report.made import HOSTILE, chain, hostile


class Tags(html.parser.HTMLParser):
    """The names of all tags, and those attributes that may fetch or run something."""

    def __init__(self, page: str):
        super().__init__()
        self.names: list[str] = []
        self.risky: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.risky += [(n, v) for n, v in attrs if n in ("src", "style") or n.startswith("on")]
        self.risky += [(n, v) for n, v in attrs if n in ("href", "action") and not str(v).startswith("#")]


def test_a_page_asks_for_nothing_and_runs_its_own_script_alone(facts):
    page = page_of(facts)
    found = Tags(page)
    assert not found.risky
    assert found.names.count("script") == 1
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"https?://", page)


def test_hostile_names_are_escaped_in_every_page():
    for page in (page_of(hostile()), comparison_of([hostile(), hostile()])):
        found = Tags(page)
        assert not found.risky
        assert "img" not in found.names
        assert found.names.count("script") == 1
        assert page.count("<!--") == 0


def test_sections_are_there_if_there_is_something_to_show(facts):
    titles = re.compile(r'<section id="([a-z-]+)"')
    assert titles.findall(page_of(facts)) == [
        "summary", "network", "sensitivity", "distributions", "plan", "differences", "manifest",
    ]  # fmt: skip
    curve = Curve("loss", ((0.0, 2.0), (1.0, 1.0)))
    assert "training" in titles.findall(page_of(replace(facts, curves=(curve,))))
    assert "in-float" in titles.findall(page_of(hostile()))


def test_nodes_are_colored_by_what_was_measured(facts):
    def offered(page):
        return re.findall(r'<button type="button" data-by="([a-z]+)"', page)

    assert offered(page_of(facts)) == ["bits", "runs", "sqnr", "alone", "lsb"]
    plain = tuple(replace(node, sqnr=None, alone=None, differences={}) for node in facts.nodes)
    assert offered(page_of(replace(facts, nodes=plain))) == ["bits", "runs"]


def test_a_comparison_aligns_layers_by_name(facts):
    narrow = replace(facts, folder="b", nodes=tuple(replace(node, weight_bits=4, sqnr=12.0) for node in facts.nodes))
    page = comparison_of([replace(facts, folder="a"), narrow])
    row = re.search(r'<tr data-text="stem_0 conv">(.*?)</tr>', page)[1]
    assert re.sub(r"<[^>]+>", " ", row).split()[:4] == ["stem_0", "Conv", "W8", "A8"]
    assert "W4 A8" in re.sub(r"<[^>]+>", "", row)
    assert "12.0 dB" in row


def test_node_data_are_as_model_explorer_reads_them(facts):
    found = node_data(facts)
    assert set(found) == {"bits", "sqnr", "alone", "lsb"}
    assert found["bits"]["results"]["stem_0"] == {"value": 8}
    assert found["lsb"]["results"]["relu"] == {"value": facts.nodes[1].lsb}
    assert [item["stop"] for item in found["sqnr"]["gradient"]] == [0, 1]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(node_data(chain(3))) == {"bits", "sqnr", "alone"}  # nothing was compared


def test_an_annotated_model_computes_the_same_and_says_more(artifact, facts):
    model = onnx.load_model_from_string(annotated_model(artifact, facts))
    onnx.checker.check_model(model)
    node = next(node for node in model.graph.node if node.op_type == "Conv")
    said = {entry.key: entry.value for entry in node.metadata_props}
    assert said["detent.bits"] == "W8 A8"
    assert said["detent.runs"] == "integer"
    assert said["detent.scale.image"] == f"{facts.tensors['image'].scale[0]:.6g}"
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if entry.key.split(".")[1] in ("role", "original")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    assert model.graph == artifact.model.graph


def test_a_model_card_has_front_matter_and_figures(facts):
    _, front, body = model_card(facts).split("---\n", 2)
    told = yaml.safe_load(front)
    assert told["tags"] == ["quantized", "detent", "onnxruntime", "w8", "a8"]
    assert told["model-index"][0]["results"][0]["metrics"][0] == {"type": "accuracy", "value": 92.19}
    assert "| top-1, engine | 92.19 % |" in body
    assert "> PASS: onnxruntime" in body


def test_a_model_card_survives_hostile_names():
    _, front, body = model_card(hostile()).split("---\n", 2)
    assert yaml.safe_load(front)["tags"][2] == HOSTILE
    title = next(line for line in body.splitlines() if line.startswith("# "))
    assert title.startswith("# `` ")  # more backticks than the name has in a row
    assert "&lt;img" in title
    assert len([line for line in body.splitlines() if line.startswith("# ")]) == 1


def test_files_beside_an_artifact_do_not_disturb_it(artifact):
    for name in ("README.md", "report.html", "model.annotated.onnx"):
        (artifact.folder / name).write_text("anything")
    assert Artifact.load(artifact.folder).manifest == artifact.manifest


def test_notebooks_show_plans_verdicts_and_artifacts(artifact, facts):
    plan, verdict = artifact.prepared.plan, facts.verdict
    assert "<td>stem.0.weight</td>" in plan._repr_html_()
    assert f"<b>{verdict.line}</b>" in verdict._repr_html_()
    assert verdict.line in repr(verdict)
    assert max(len(repr(one)) for one in (plan, verdict, artifact)) < 300
    assert '<td>model.onnx</td><td class="number">' in artifact._repr_html_()
    assert plan._repr_html_().startswith(
        '<div class="detent" style="max-height: 32em; overflow: auto"><style>div.detent '
    )
    strange = replace(verdict, problems=(HOSTILE,))
    assert not set(Tags(strange._repr_html_()).names) & {"img", "script"}


def test_a_report_is_written_from_python(artifact, labeled, tmp_path):
    path = artifact.report(tmp_path / "page.html", data=labeled[:1], latency=False)
    assert path == tmp_path / "page.html"
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert artifact.report() == artifact.folder / "report.html"
