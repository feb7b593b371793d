"""What is built and what its documents say of it: versions, classifiers, and the files in the distributions."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import detent
from detent.errors import install_hint

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ["3.11", "3.12", "3.13"]


def test_the_version_has_one_place():
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", detent.__version__)
    found = [path for path in (ROOT / "src").rglob("*.py") if "__version__ =" in path.read_text()]
    assert found == [ROOT / "src" / "detent" / "__init__.py"]


def test_the_pythons_that_are_named_agree():
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(f"{prefix}3.")]
    assert named == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert not [line for line in PROJECT["dependencies"] if "python_version" in line]


def test_every_extra_that_a_message_names_exists():
    text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'install_hint\(["\'](\w+)["\']\)', text)) | set(
        re.findall(r'extra(?:: \w+)? = "(\w+)"', text)
    )
    assert {"images", "train", "openvino"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_what_to_install_is_worded_in_one_place():
    places = [path for path in (ROOT / "src").rglob("*.py") if "pip install 'detent[" in path.read_text()]
    assert [path.name for path in places] == ["errors.py"]
    assert install_hint("train") == "pip install 'detent[train]', or in a checkout pip install -e '.[train]'"


@pytest.mark.parametrize("python", PYTHONS)
def test_the_source_is_that_of_each_python(python):
    """The grammar alone, where the interpreter itself is not at hand."""
    import ast

    version = (3, int(python.partition(".")[2]))
    for path in (ROOT / "src").rglob("*.py"):
        ast.parse(path.read_text(), feature_version=version)


# ---- the distributions ----


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, set[str]]:
    """The names of the files in the sdist, and in the wheel that is made of the sdist."""
    pytest.importorskip("setuptools", minversion="77", reason="pip install setuptools")
    folder = tmp_path_factory.mktemp("built")
    code = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
    subprocess.run(["git", "archive", "--output", folder / "source.tar", "HEAD"], cwd=ROOT, check=True, timeout=300)
    with tarfile.open(folder / "source.tar") as archive:
        archive.extractall(folder / "source", filter="data")
    run = [sys.executable, "-c", code]
    subprocess.run([*run, "build_sdist", folder], cwd=folder / "source", check=True, capture_output=True, timeout=300)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
        names = {name.partition("/")[2] for name in archive.getnames()}
    (unpacked,) = [path for path in folder.glob("detent-*") if path.is_dir()]
    subprocess.run([*run, "build_wheel", folder], cwd=unpacked, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"detent-{detent.__version__}-py3-none-any.whl"
    return {"sdist": names, "wheel": set(zipfile.ZipFile(wheel).namelist())}


def tracked(*folders: str) -> set[str]:
    said = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True, timeout=300
    )
    return set(said.stdout.splitlines())


@pytest.mark.full
def test_the_sdist_has_all_that_its_documents_name(built):
    files = tracked("src", "tests", "docs", "examples", "tools", "benchmarks", "*.md", "Makefile", "constraints.txt")
    assert files - built["sdist"] == set()
    for document in sorted(name for name in built["sdist"] if name.endswith(".md")):
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", (ROOT / document).read_text()):
            named = (ROOT / document).parent.joinpath(link).resolve().relative_to(ROOT).as_posix()
            there = named in built["sdist"] or any(name.startswith(f"{named}/") for name in built["sdist"])
            assert there, f"{document}: {link}"


@pytest.mark.full
def test_the_wheel_has_the_package_and_nothing_else(built):
    package = {name.removeprefix("src/") for name in tracked("src")}
    beside = {name for name in built["wheel"] if ".dist-info/" not in name}
    assert beside == package
    assert {name.rpartition("/")[2] for name in built["wheel"] - beside} == {
        "LICENSE",
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "top_level.txt",
    }
