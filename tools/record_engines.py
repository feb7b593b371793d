"""Records what the engines that are installed compute on this kind of CPU, for the twin to be compared with elsewhere.

    python -m tools.record_engines

Each engine has a file in `tests/golden/cpus/<kind of CPU>`, which holds the deployed models with inputs and outputs
(integers, where they have a grid), and as "about" the versions. `tests/twin/test_golden_cpus.py` reads them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from detent import cpus
from detent.ir import Package
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from detent.targets.engines import ENGINES
from tests.cpus.nets import CASES, codes, deployed, inputs_of

GOLDEN = Path(__file__).parents[1] / "tests/golden/cpus"
SAMPLES = 2
SEVEN = ("attention", "convolutions", "residual", "separable")
"""With weights of 7 bits there is less to be seen: these do."""


def main() -> None:
    folder = GOLDEN / cpus.here().name
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in CASES if case.bits == 8 or case.net in SEVEN]
    for backend in dict.fromkeys(case.backend for case in wanted):
        if cpus.here().name not in ARITHMETICS[BACKENDS[backend].arithmetic].cpus:
            print(f"{backend}: its arithmetic does not know this kind of CPU")
            continue
        with tempfile.TemporaryDirectory() as made:
            cases = {str(case): deployed(case, Path(made) / str(case)) for case in wanted if case.backend == backend}
            arrays, about = recorded(cases)
        np.savez_compressed(folder / f"{backend}.npz", about=json.dumps(about), **arrays)
        print(f"{backend}: {len(cases)} networks, {(folder / f'{backend}.npz').stat().st_size >> 10} KB, {about}")


def recorded(cases: dict[str, Package]) -> tuple[dict[str, Any], dict[str, str]]:
    """What goes into a file: arrays by "case/what/name", and with what they were made."""
    arrays: dict[str, Any] = {}
    about: dict[str, str] = {}
    for name, package in cases.items():
        arithmetic, engine = package.manifest["arithmetic"], ENGINES[package.manifest["engine"]]
        cpu = ARITHMETICS[arithmetic].local_cpu()
        assert cpu == cpus.here(), f"the environment makes {engine.name} take this CPU for {cpu}"
        inputs = inputs_of(package.graph, SAMPLES)
        outputs = codes(package.graph, engine.load(package, **engine.options_for(arithmetic)).run(inputs))
        arrays[f"{name}/model"] = np.frombuffer(package.path("model.onnx").read_bytes(), np.uint8)
        arrays.update({f"{name}/input/{port}": values for port, values in inputs.items()})
        arrays.update({f"{name}/output/{port}": values for port, values in outputs.items()})
        about = {"engine": engine.name, "version": str(engine.version()), "arithmetic": arithmetic, "cpu": cpu.name}
    return arrays, about


if __name__ == "__main__":
    main()
