"""JSON that comes from a stranger's folder, and JSON that is written with what such a folder says."""

import pytest

from detent.errors import ArtifactError, DeployError
from detent.targets.base.content import as_json, parse_json


def test_numbers_that_json_does_not_have_are_refused():
    with pytest.raises(DeployError, match="Out of range float"):
        as_json({"temperature": float("nan")})


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"a":' * 100_000], ids=["half", "a list", "deep"])
def test_what_is_no_object_is_refused(content):
    with pytest.raises(ArtifactError, match=r"it is not JSON|it holds a list"):
        parse_json(content, "sample")
