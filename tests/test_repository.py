"""What the repository says about itself: workflows, templates, how to cite it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import detent

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_the_workflows_are_there():
    assert {path.stem for path in WORKFLOWS} >= {"check", "tests", "engines", "cpus", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version_beside(path):
    lines = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.fullmatch(r"- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_one_version():
    used = {match for path in WORKFLOWS for match in re.findall(r"uses: (\S+)@(\S+)", path.read_text())}
    assert len(used) == len({name for name, _ in used})


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_may_read_and_end(path):
    """What a job may do beyond reading is said in the job, and no job goes on for hours unnoticed."""
    said = yaml.safe_load(path.read_text())
    assert said["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in said["jobs"].values())
    allowed = {name: job["permissions"] for name, job in said["jobs"].items() if "permissions" in job}
    assert allowed == (
        {"publish": {"id-token": "write"}, "announce": {"contents": "write"}} if path.stem == "release" else {}
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_are_those_of_the_makefile(path):
    called = {word for step in steps(path) for word in re.findall(r"^make ([a-z-]+)", step.get("run", ""))}
    assert called <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_checkout_keeps_no_credentials(path):
    found = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in found)


def test_what_is_shown_to_contributors_is_valid():
    for name in ("bug", "feature"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        ids = [part["id"] for part in form["body"]]
        assert form["name"]
        assert form["description"]
        assert len(ids) == len(set(ids))
        assert all(part["attributes"]["label"] for part in form["body"])
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert [update["package-ecosystem"] for update in updates] == ["github-actions", "pip"]


def test_the_citation_is_of_this_version():
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (said["title"], said["license"], said["cff-version"]) == ("Detent", "Apache-2.0", "1.2.0")
    assert str(said["version"]) == detent.__version__


def test_the_tests_that_security_names_are_there():
    """A name without a folder is in that of the name before."""
    folder, found = "", []
    for name in re.findall(r"`((?:tests/[\w/]+/|tests/)?test_\w+\.py)`", (ROOT / "SECURITY.md").read_text()):
        folder = name.rpartition("/")[0] or folder
        found.append(f"{folder}/{name.rpartition('/')[2]}")
    assert len(found) > 40
    assert [name for name in found if not (ROOT / name).is_file()] == []
