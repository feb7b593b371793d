"""Records what the engines that are installed compute on this kind of CPU, for the twin to be compared with elsewhere.

    python -m tools.record_engines
    python -m tools.record_engines mnn --emulated    # that engine alone, on a CPU with AVX2 and without VNNI

`--emulated` runs the engines under qemu, which `make test-cpus` sets up. Each engine has a file in
`tests/golden/cpus/<kind of CPU>`, which holds the deployed models with inputs and outputs (integers, where they have a
grid), and as "about" the versions. `tests/twin/test_golden_cpus.py` reads them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detent import cpus
from detent.ir import Package
from detent.targets import BACKENDS
from detent.targets.arithmetics import ARITHMETICS
from tests.cpus import worker
from tests.cpus.emulators import AVX2
from tests.cpus.nets import CASES, codes, deployed, inputs_of

GOLDEN = Path(__file__).parents[1] / "tests/golden/cpus"
SAMPLES = 2
SEVEN = ("attention", "convolutions", "residual", "separable")
"""With weights of 7 bits there is less to be seen: these do."""


def main(backends: Sequence[str], *, emulated: bool) -> None:
    cpu = AVX2.kind if emulated else cpus.here().name
    folder = GOLDEN / cpu
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [case for case in CASES if case.bits == 8 or case.net in SEVEN]
    for backend in backends or dict.fromkeys(case.backend for case in wanted if case.engine.version() is not None):
        arithmetic = ARITHMETICS[BACKENDS[backend].arithmetic]
        if arithmetic.cpus and cpu not in arithmetic.cpus:
            print(f"{backend}: its arithmetic does not know this kind of CPU")
            continue
        assert emulated or arithmetic.local_cpu().name == cpu, f"variables lessen this CPU for {backend}"
        with tempfile.TemporaryDirectory() as made:
            cases = {str(case): deployed(case, Path(made) / str(case)) for case in wanted if case.backend == backend}
            arrays, about = recorded(cases, Path(made), emulated=emulated)
        np.savez_compressed(folder / f"{backend}.npz", about=json.dumps(about), **arrays)
        print(f"{backend}: {len(cases)} networks, {(folder / f'{backend}.npz').stat().st_size >> 10} KB, {about}")


def recorded(cases: dict[str, Package], folder: Path, *, emulated: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """What goes into a file: arrays by "case/what/name", and with what they were made."""
    arrays: dict[str, Any] = {}
    for name, package in cases.items():
        inputs = inputs_of(package.graph, SAMPLES)
        np.savez(folder / name / "inputs.npz", **inputs)
        arrays[f"{name}/model"] = np.frombuffer(package.path("model.onnx").read_bytes(), np.uint8)
        arrays.update({f"{name}/input/{port}": values for port, values in inputs.items()})
    with tempfile.TemporaryDirectory() as answers:
        if emulated:
            AVX2.run("tests.cpus.worker", str(folder), answers).check_returncode()
        else:
            worker.main(folder, Path(answers))
        about = json.loads(Path(answers, "versions.json").read_text())
        for name, package in cases.items():
            if not (found := Path(answers, f"{name}.npz")).exists():
                raise SystemExit(f"{name}: {found.with_suffix('.txt').read_text()}")
            with np.load(found) as outputs:
                made = codes(package.graph, dict(outputs))
            arrays.update({f"{name}/output/{port}": values for port, values in made.items()})
    manifest = next(iter(cases.values())).manifest
    engine = manifest["engine"]
    run = {"engine": engine, "version": about[engine], "arithmetic": manifest["arithmetic"], "cpu": about["cpu"]}
    return arrays, {**run, "emulated": str(AVX2)} if emulated else run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", help="all that are installed unless named")
    parser.add_argument("--emulated", action="store_true", help="run under qemu, on AVX2 without VNNI")
    options = parser.parse_args()
    main(options.backends, emulated=options.emulated)
