"""Every network deployed for every engine, and the answers of the engines on an emulated CPU."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.cpus.emulators import Emulator
from tests.cpus.nets import CASES, deployed, inputs_of


@pytest.fixture(scope="session")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those that the tests which were selected ask for."""
    folder = tmp_path_factory.mktemp("cases")
    asked = {item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")}
    for case in CASES:
        if case not in asked or case.engine.version() is None:
            continue
        package = deployed(case, folder / str(case))
        np.savez(folder / str(case) / "inputs.npz", **inputs_of(package.graph))
    return folder


@pytest.fixture(scope="session")
def answers(cases: Path, tmp_path_factory: pytest.TempPathFactory):
    """From an emulator to the folder with the answers of all engines."""

    @cache
    def run(emulator: Emulator) -> Path:
        missing = emulator.missing()
        if missing and "DETENT_CPUS" not in os.environ:
            pytest.skip(missing)
        assert not missing, missing
        folder = tmp_path_factory.mktemp("answers")
        ended = emulator.run("tests.cpus.worker", str(cases), str(folder))
        (folder / "log.txt").write_text(f"{ended.stdout}\n{ended.stderr}\nended with {ended.returncode}")
        return folder

    return run
