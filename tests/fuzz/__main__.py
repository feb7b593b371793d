"""Fuzz every reader of every file: `python -m tests.fuzz --minutes 60`, or `--each 20` mutants of each file.

Prints what was found, the greatest number of mutants and the seed; exit code 1 if there is a finding. A mutant is made
again by `--seed S --only READER --from NUMBER --each 1`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from tests.fuzz.harness import fuzz
from tests.fuzz.readers import readers

_AT_ONCE = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long, with all backends")
    parser.add_argument("--each", type=int, default=0, help="mutants of each file, instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name has this in it")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the number of the first mutant")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count, found = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        table = list(readers(Path(folder), every_backend=options.minutes > 0 or bool(options.only)))
        table = [reader for reader in table if options.only in reader.name]
        ends, start = time.monotonic() + 60 * options.minutes, options.start
        while True:
            for reader in table:
                for finding in fuzz(reader, options.seed, range(start, start + (options.each or _AT_ONCE))):
                    count += 1
                    if finding is not None:
                        found += 1
                        print(finding, flush=True)
                if options.minutes and time.monotonic() > ends:
                    break
            start += _AT_ONCE
            if not options.minutes or time.monotonic() > ends:
                break
    print(f"{count:,} mutants of {len(table)} files, seed {options.seed}: {found} findings")
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main())
