"""The notes of a release are the section of its version in CHANGELOG.md."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import detent

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "release_notes.py"

CHANGELOG = """# Changelog

## [Unreleased]

- Not yet.

## [0.2.0] - 2026-12-01

### Added

- `a` and [b](docs/b.md).

## 0.1.0

- First.

## [0.0.1]
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_notes", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_section_of_a_version(tool):
    assert tool.notes_of(CHANGELOG, "0.2.0") == "### Added\n\n- `a` and [b](docs/b.md)."
    assert tool.notes_of(CHANGELOG, "0.1.0") == "- First."


@pytest.mark.parametrize("version", ["0.3.0", "0.2", "0.0.1"], ids=["absent", "part-of-a-name", "empty"])
def test_a_version_without_changes_is_refused(tool, version):
    with pytest.raises(ValueError, match=f"no section of {version}"):
        tool.notes_of(CHANGELOG, version)


def test_the_version_is_that_of_the_package(tool):
    assert tool.version_of((ROOT / "src" / "detent" / "__init__.py").read_text()) == detent.__version__
    with pytest.raises(ValueError, match="no __version__"):
        tool.version_of("version = 1")


def test_another_tag_than_that_of_the_version_is_refused():
    done = subprocess.run([sys.executable, TOOL, "v9.9.9"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == f"the tag v9.9.9 is not that of the version {detent.__version__}\n"
