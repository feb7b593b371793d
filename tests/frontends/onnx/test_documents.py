"""docs/onnx.md lists what is imported and what is not."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from detent.frontends.caffe.layers import CONVERTERS as LAYERS
from detent.frontends.onnx.reading.opsets import OLDEST
from detent.frontends.onnx.table import CONVERTERS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "onnx.md").read_text()


def listed(name: str) -> set[str]:
    found = re.search(rf"<!-- {name} -->(.*?)<!-- end -->", PAGE, re.S)
    assert found
    return set(found[1].split())


def test_imported_operators() -> None:
    assert listed("imported") == set(CONVERTERS) | {"If"}


def test_every_operator_of_the_standard_is_in_a_list_or_defined_by_others() -> None:
    rest = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and OLDEST <= schema.since_version <= 23 and not schema.deprecated:
            rest.add(schema.name)
    named = {word for line in PAGE.splitlines() for word in line.replace(":", " ").split()}
    assert rest - named == set()
    assert not listed("refused") & listed("imported")


def test_caffe_layers() -> None:
    section = PAGE[PAGE.index("## Caffe") :]
    assert set(LAYERS) <= set(re.findall(r"\w+", section))
