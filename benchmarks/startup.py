"""How long `import detent`, `detent --help` and a user's mistakes take, each in a process of its own; medians of many.

python benchmarks/startup.py [--json]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import medians

PYTHON = [sys.executable, "-c"]
DETENT = [*PYTHON, "from detent.cli import main; main()"]
EMPTY_MODEL = b"\x08\x08\x3a\x00"  # ir_version 8, a graph of no bytes

# What is run, and the exit code that is right.
COMMANDS = {
    "python -c pass": ([*PYTHON, "pass"], 0),
    "import detent": ([*PYTHON, "import detent"], 0),
    "detent --help": ([*DETENT, "--help"], 0),
    "detent quantize --help": ([*DETENT, "quantize", "--help"], 0),
    "a missing file": ([*DETENT, "plan", "absent.onnx", "--backend", "openvino"], 2),
    "a file that is no ONNX": ([*DETENT, "plan", "notes.txt", "--backend", "openvino"], 2),
    "a backend that is not known": ([*DETENT, "plan", "net.onnx", "--backend", "openvin"], 2),
    "a recipe that is not known": ([*DETENT, "plan", "net.onnx", "--backend", "openvino", "--recipe", "ptqq"], 2),
    "a CPU that is not known": ([*DETENT, "plan", "net.onnx", "--backend", "openvino", "--cpu", "vnn"], 2),
    "a wrong value": ([*DETENT, "plan", "net.onnx", "--backend", "openvino", "--size", "width=wide"], 2),
    "a folder that deploy did not write": ([*DETENT, "verify", "data", "--data", "data"], 2),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "net.onnx").write_bytes(EMPTY_MODEL)
        Path(folder, "notes.txt").write_text("no network\n")
        Path(folder, "data").mkdir()

        def run(command: list[str], code: int) -> None:
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
            if done.returncode != code:
                raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")

        runs = {name: (lambda each=each: run(*each)) for name, each in COMMANDS.items()}
        found = {name: round(seconds, 3) for name, seconds in medians(runs, 11, warm_up=2).items()}
    if "--json" in sys.argv[1:]:
        print(json.dumps(found, indent=2))
        return
    for name, seconds in found.items():
        print(f"{name}: {seconds:.3f} s")


if __name__ == "__main__":
    main()
