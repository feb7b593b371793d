"""The same network, data and engines through Detent and other quantizers, each in an environment of its own.

    python benchmarks/peers.py                   [NAME ...] [--images 2000] [--rounds 9] [--environments .cache/peers]

ResNet-20 on CIFAR-10, 8 bits, 512 images to calibrate on; benchmarks/peer_runs.py says what each tool does. An
environment is made beside this one, whose torch it sees, and pip may not change that torch: a tool that cannot be
installed with it, or does not run, has the reason as its row. Rows are kept in docs/peers.json, those of tools that are
not named too, and the table of docs/peers.md is written from them. Each environment takes up to a gigabyte of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from detent.bench.machine import machine_facts

ROOT = Path(__file__).resolve().parents[1]
PAGE, ROWS = ROOT / "docs" / "peers.md", ROOT / "docs" / "peers.json"
BEGIN, END = "<!-- table of benchmarks/peers.py -->\n", "<!-- end -->"
HEAD = (
    "tool", "engine", "float", "simulated", "on the engine", "agree", "dB", "PTQ s", "PTQ / forward", "file KB",
    "train step", "saved",
)  # fmt: skip
LEAST_DISK = 2 * 2**30
INSTALLING, RUNNING = 1800, 1800  # seconds


@dataclass(frozen=True)
class Peer:
    """What is installed, its first package the tool itself; nothing for what is here. `needs` are what the tool uses
    without saying so."""

    packages: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


PEERS = {
    "detent-onnxruntime": Peer(),
    "detent-openvino": Peer(),
    "detent-litert": Peer(),
    "onnxruntime": Peer(("onnxruntime",)),
    "nncf": Peer(("nncf",), environment=(("NNCF_EXTENSION_LOAD_TIMEOUT", "0"),)),  # it compiles when it is first used
    "torchao": Peer(("torchao",)),
    "brevitas": Peer(("brevitas",), ("onnxoptimizer",)),
    "ai-edge-quantizer": Peer(("ai-edge-quantizer", "litert-torch")),
    "modelopt": Peer(("nvidia-modelopt",), ("requests", "huggingface_hub")),
    "neural-compressor": Peer(("neural-compressor-pt",)),
    "quark": Peer(("amd-quark",), ("transformers", "torchao")),
    "aimet": Peer(("aimet-torch",)),
}


class NotRunError(Exception):
    """Why there is no row."""


def python_of(name: str, environments: Path) -> Path:
    """The Python of a tool's environment, which is made if it is not there."""
    peer = PEERS[name]
    if not peer.packages:
        return Path(sys.executable)
    folder = environments.resolve() / name
    python, done = folder / "bin" / "python", folder / "installed"
    if done.is_file():
        return python
    if shutil.disk_usage(environments).free < LEAST_DISK:
        raise NotRunError(f"less than {LEAST_DISK // 2**30} GB of disk are left")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=INSTALLING)
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    (own / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    constraints = folder / "constraints.txt"
    constraints.write_text(f"torch=={metadata.version('torch')}\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "-c", str(constraints)]
    told = subprocess.run(
        [*install, *peer.packages, *peer.needs], capture_output=True, text=True, timeout=INSTALLING, check=False
    )
    if told.returncode:
        errors = [line for line in told.stderr.splitlines() if line.startswith("ERROR")]
        raise NotRunError(f"pip: {(errors or told.stderr.splitlines() or ['no reason'])[0].removeprefix('ERROR: ')}")
    done.touch()
    return python


def row_of(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """A row of the table, or the reason why there is none."""
    out = arguments.environments / f"{name}.json"
    out.unlink(missing_ok=True)
    command = ["benchmarks/peer_runs.py", name, str(out.resolve())]
    command += ["--images", str(arguments.images), "--rounds", str(arguments.rounds)]
    row: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "images": arguments.images}
    try:
        python = python_of(name, arguments.environments)
        row["version"] = _version(name, python)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        extensions = arguments.environments.resolve() / name / "extensions"
        environment["TORCH_EXTENSIONS_DIR"] = str(extensions)
        for lock in extensions.rglob("lock"):  # of a run that was stopped: the next would wait for it for ever
            lock.unlink()
        told = subprocess.run(
            [str(python), *command],
            cwd=ROOT,
            env={**environment, **dict(PEERS[name].environment)},
            capture_output=True,
            text=True,
            timeout=RUNNING,
            check=False,
        )
        if told.returncode:
            last = (told.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise NotRunError(f"exit code {told.returncode}: {last}")
        return {**row, **json.loads(out.read_text())}
    except subprocess.TimeoutExpired as error:
        return {**row, "not_run": f"it took longer than {error.timeout:.0f} s"}
    except NotRunError as error:
        return {**row, "not_run": str(error)}


def _version(name: str, python: Path) -> str:
    package = (PEERS[name].packages or ("detent",))[0]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=60).stdout.strip()


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Markdown: the rows in the order of PEERS, then what was not run and why."""
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    missing = []
    for name in (name for name in PEERS if name in rows):
        row = rows[name]
        called = f"{name.partition('-')[0] if not PEERS[name].packages else name} {row.get('version', '')}".strip()
        if "not_run" in row:
            missing.append(f"- {called} was not run: `{row['not_run']}`")
            continue
        cells = [
            called,
            row["engine"],
            *(_number(row.get(key), 2) for key in ("float", "simulated", "on_engine", "agreement")),
            _number(row.get("sqnr"), 1),
            _number(row["seconds"], 1),
            _number(row["forwards"], 0),
            _number(row["file_bytes"] / 1000, 0),
            *(_number(row.get(key), 2) for key in ("step", "saved")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    dates = sorted({row["date"] for row in rows.values()})
    images = sorted({row["images"] for row in rows.values()})
    facts = rows[next(iter(rows))]["machine"]
    setting = (
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}, {facts['cpu']} ({facts['cpu_kind']}), torch "
        f"{facts['versions']['torch']}, one thread, {' and '.join(f'{count:,}' for count in images)} test images."
    )
    return "\n".join([*lines, *([""] if missing else []), *missing, "", setting, ""])


def _number(value: float | None, digits: int) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.{digits}f}"


def write_page(rows: dict[str, dict[str, Any]]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(PEERS)}")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--environments", type=Path, default=ROOT / ".cache" / "peers")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(PEERS))
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(PEERS)}")
    arguments.environments.mkdir(parents=True, exist_ok=True)
    rows = json.loads(ROWS.read_text()) if ROWS.is_file() else {}
    for name in arguments.names or PEERS:
        facts = {key: value for key, value in machine_facts().items() if key in ("cpu", "cpu_kind", "versions")}
        rows[name] = {**row_of(name, arguments), "machine": facts}
        print(name, {key: value for key, value in rows[name].items() if key != "machine"}, flush=True)
        ROWS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        write_page(rows)


if __name__ == "__main__":
    main()
