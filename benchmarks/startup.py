"""How long `import detent` and `detent --help` take, each in a process of its own; medians of many.

python benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys

from timing import medians


def main() -> None:
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import detent": [sys.executable, "-c", "import detent"],
        "detent --help": [sys.executable, "-c", "from detent.cli import main; main()", "--help"],
    }
    runs = {
        name: (lambda command=command: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        for name, command in commands.items()
    }
    for name, seconds in medians(runs, 11, warm_up=2).items():
        print(f"{name}: {seconds:.3f} s")


if __name__ == "__main__":
    main()
