"""Fuzz every reader of every file: `python -m tests.fuzz --minutes 60`, `--mutants 100000`, or `--each 20` of a file.

Prints each finding, how many mutants there were and the seed; exit code 1 if there is a finding. A mutant is made again
by `--seed S --only READER --from NUMBER --each 1`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from tests.fuzz.harness import fuzz, import_engines
from tests.fuzz.readers import readers

_TURN = 50  # mutants of a file that an engine runs; of others, which are read in a tenth of the time, _SHARE as many
_SHARE = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0, help="go on for so long, with all backends")
    parser.add_argument("--mutants", type=int, default=0, help="go on until there were so many, instead")
    parser.add_argument("--each", type=int, default=0, help="mutants of each file, instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers whose name has this in it")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the number of the first mutant")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count, found = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        table = list(readers(Path(folder), every_backend=bool(options.minutes or options.mutants or options.only)))
        table = [reader for reader in table if options.only in reader.name]
        import_engines()
        gc.collect()
        gc.freeze()  # the children need not look through torch each time, nor copy its pages
        ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        for turn in itertools.count():
            for reader in table:
                many = options.each or (_TURN if reader.isolated else _SHARE * _TURN)
                first = options.start + turn * many
                for finding in fuzz(reader, options.seed, range(first, first + many)):
                    count += 1
                    if finding is not None:
                        found += 1
                        print(finding, flush=True)
                if time.monotonic() > ends or 0 < options.mutants <= count:
                    break
            print(f"{count:,} mutants, turn {turn}", file=sys.stderr, flush=True)
            if time.monotonic() > ends or count >= options.mutants > 0 or not (options.minutes or options.mutants):
                break
    print(f"{count:,} mutants of {len(table)} files, seed {options.seed}: {found} findings")
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main())
