"""Runs deployed models on their engines: a program of its own, for it runs on an emulated CPU.

    python -m tests.cpus.worker cases answers

Each folder in `cases` is a deployed model with its `inputs.npz`. Its outputs go into a file of that name in `answers`,
or the reason why there are none. `answers/versions.json` says what ran.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from detent import cpus
from detent.ir import Package
from detent.targets.engines import ENGINES

KERNELS = {"arm64": {"fbgemm": "qnnpack"}}
"""Arithmetics whose kernels a kind of CPU lacks, and what runs in their place."""


def main(cases: Path, answers: Path) -> None:
    cpu = cpus.here().name
    versions = {name: engine.version() for name, engine in ENGINES.items()}
    (answers / "versions.json").write_text(json.dumps({"cpu": cpu, **versions}))
    for folder in sorted(cases.iterdir()):
        package = Package.load(folder)
        arithmetic = package.manifest["arithmetic"]
        kind = ENGINES[package.manifest["engine"]]
        try:
            options = kind.options_for(KERNELS.get(cpu, {}).get(arithmetic, arithmetic))
            with np.load(folder / "inputs.npz") as inputs:
                outputs = kind.load(package, **options).run(dict(inputs))
        except Exception as error:  # engines have exceptions of their own
            (answers / f"{folder.name}.txt").write_text(f"{type(error).__name__}: {error}")
        else:
            np.savez(answers / f"{folder.name}.npz", **outputs)
        print(folder.name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
