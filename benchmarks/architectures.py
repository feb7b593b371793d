"""How many architectures go through: captured, trained a step, deployed, verified on the engine.

    pip install --no-deps timm torchvision==0.28.0 transformers ultralytics segmentation-models-pytorch \\
        open_clip_torch diffusers
    python benchmarks/architectures.py [names ...] [--backends onnxruntime openvino litert ncnn] [--rows rows.jsonl]

The networks are those of `architecture_list.py`: random weights, batch norm statistics of four random batches. Each
runs in a process of its own, with a time limit; for each backend: prepare and one step of Adam with recipe `lsq`
(first backend only), then prepare, calibrate on four batches, deploy and verify with recipe `ptq`. A row that is in
`--rows` is not run again. Parameters are those of convolutions, linear layers, embeddings, attention and recurrent
layers that the target quantizes at all. `--failed` runs again what did not go through.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

BACKENDS = ("onnxruntime", "openvino", "litert", "ncnn")
GOALS = {"onnxruntime": 0.97, "openvino": 0.97, "litert": 0.85, "ncnn": 0.85}
"""The share of architectures that each is to deploy, set before the first run."""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of architectures, or what they begin with")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    parser.add_argument("--rows", type=Path, default=Path("architectures.jsonl"), help="where results are kept")
    parser.add_argument("--failed", action="store_true", help="run again what is there and did not go through")
    parser.add_argument("--seconds", type=int, default=600, help="the time limit of one backend")
    parser.add_argument("--one", nargs="+", metavar=("NAME", "BACKEND"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        for backend in asked.one[1:]:
            print(json.dumps(row_of(asked.one[0], backend)), flush=True)
        return
    from benchmarks.architecture_list import ARCHITECTURES

    names = [name for name in ARCHITECTURES if not asked.names or name.startswith(tuple(asked.names))]
    rows = _read(asked.rows)
    for name in names:
        before = {backend: rows.get((name, backend)) for backend in asked.backends}
        due = [b for b, row in before.items() if row is None or (asked.failed and row["result"] != "holds")]
        while due:
            for row in _in_a_process(name, due, asked.seconds):
                rows[name, row["backend"]] = row
                due.remove(row["backend"])
                print(_line(row), flush=True)
                with asked.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(summary([rows[name, backend] for name in names for backend in asked.backends]))


def _read(path: Path) -> dict[tuple[str, str], Row]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(row["name"], row["backend"]): row for row in rows}  # of two, the later


def _in_a_process(name: str, backends: Sequence[str], seconds: int) -> list[Row]:
    """The rows of the backends up to the one that ended the process; of all of them where none did."""
    message = ""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = [sys.executable, __file__, "--one", name, *backends]
        try:
            code = subprocess.run(command, stdout=out, stderr=err, timeout=seconds * len(backends)).returncode
        except subprocess.TimeoutExpired:
            code, message = 0, f"more than {seconds} s"
        out.seek(0)
        rows: list[Row] = [json.loads(line) for line in out if line.startswith('{"name"')]
        if len(rows) < len(backends):
            err.seek(0)
            failed = {"name": name, "backend": backends[len(rows)], "result": "not done" if message else "crashed"}
            rows.append({**failed, "message": message or f"exit code {code}: {err.read().strip()[-300:]}"})
    return rows


# --- one architecture on one backend ---------------------------------------------------------------------------


def row_of(name: str, backend: str) -> Row:
    """What happened. `result` is how far it came: the first of these that did not go well, or "holds"."""
    import torch
    from benchmarks.architecture_list import ARCHITECTURES

    from detent.errors import DetentError

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    row: Row = {"name": name, "backend": backend, "result": "not built"}
    start = time.process_time()
    try:
        for step in _steps(ARCHITECTURES[name], backend):
            row |= {**step, "seconds": round(time.process_time() - start, 1)}
    except DetentError as refused:
        row |= {"message": " / ".join(str(refused).split("\n"))[:500]}
    except Exception as crash:  # a traceback is what the benchmark is to find
        where = traceback.extract_tb(crash.__traceback__)[-1]
        row |= {"message": f"{type(crash).__name__}: {crash}"[:400], "crash": f"{where.filename}:{where.lineno}"}
    return row


def _steps(build: Any, backend: str) -> Iterator[Row]:
    """What is known after each step; `result` says which one has not ended yet."""
    import torch

    import detent

    case = build()
    batches = [(case.arguments(), dict(case.named())) for _ in range(5)]
    with torch.no_grad():
        for args, named in batches[:4]:
            case.model.train()(*args, **named)
    model = case.model.eval()
    args, named = batches[4]
    yield {"result": "not prepared"}
    if backend == BACKENDS[0]:
        yield {"trained": _trained(model, batches, backend)}
    prepared = detent.prepare(model, args, example_kwargs=named, backend=backend)
    yield {
        "result": "not calibrated",
        "quantized": _share_of_parameters(model, prepared.plan),
        **_breaks(prepared.plan),
    }
    signature = inspect.signature(model.forward)
    data = [signature.bind(*args, **named).arguments if named else args for args, named in batches[:4]]
    detent.calibrate(prepared, data)
    with torch.no_grad():
        expected, got = model(*args, **named), prepared(*args, **named)
    yield {"result": "not deployed", "sqnr": _sqnr(expected, got)}
    with tempfile.TemporaryDirectory() as folder:
        artifact = detent.deploy(prepared, Path(folder) / "deployed")
        yield {"result": "not verified"}
        verdict = artifact.verify([data[0]])
        yield {"result": "holds" if verdict.holds else "differs"}
        if not verdict.holds:
            yield {"message": str(verdict).split("\n", 1)[0][:300]}


def _breaks(plan: Any) -> Row:
    found = [note for note in plan.notes if "stays Python" in note]
    return {"graph_breaks": len(found), **({"message": found[0][:300]} if found else {})}


def _trained(model: Any, batches: Sequence[Any], backend: str) -> str:
    """ "all" where one step of training gives every scale a finite gradient, else how many have one."""
    import torch

    import detent
    from detent.quantizers import Quantizer

    prepared = detent.prepare(model, batches[0][0], example_kwargs=batches[0][1], backend=backend, recipe="lsq")
    signature = inspect.signature(model.forward)
    detent.calibrate(prepared, [signature.bind(*args, **named).arguments for args, named in batches[:2]])
    prepared.train()
    optimizer = torch.optim.Adam(prepared.parameters(), 1e-4)
    args, named = batches[3]
    sum(tensor.float().pow(2).mean() for tensor in _floats(prepared(*args, **named))).backward()  # type: ignore[union-attr]
    scales = [p for part in prepared.modules() if isinstance(part, Quantizer) for p in part.parameters()]
    good = sum(p.grad is not None and bool(p.grad.isfinite().all()) for p in scales)
    optimizer.step()
    return "all" if good == len(scales) else f"{good} of {len(scales)}"


def _floats(given: Any) -> Iterator[Any]:
    import torch

    if isinstance(given, torch.Tensor):
        if given.is_floating_point():
            yield given
    elif isinstance(given, Mapping):
        for part in given.values():
            yield from _floats(part)
    elif is_dataclass(given):
        for each in fields(given):
            yield from _floats(getattr(given, each.name))
    elif isinstance(given, (list, tuple)):
        for part in given:
            yield from _floats(part)


def _sqnr(expected: Any, got: Any) -> float | None:
    """In dB, of all outputs together; none where the float network gives zeros."""
    pairs = list(zip(_floats(expected), _floats(got), strict=True))
    power = sum(float(a.square().sum()) for a, _ in pairs)
    noise = sum(float((a - b).square().sum()) for a, b in pairs)
    import math

    return round(10 * math.log10(power / noise), 1) if power and noise else None


def _share_of_parameters(model: Any, plan: Any) -> float:
    from torch import nn

    counted = (nn.Linear, nn.Embedding, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Bilinear)
    names: dict[int, list[str]] = {}  # of one parameter that several modules share
    sizes = {}
    for path, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, counted) or ("Conv" in kind and hasattr(module, "weight")):
            for name, parameter in module.named_parameters(path, recurse=False):
                if parameter.dim() > 1:
                    sizes[name] = parameter.numel()
                    names.setdefault(id(parameter), []).append(name)
    quantized = tuple(entry.tensor for entry in plan.quantized if entry.role == "weight")
    without = tuple(entry.tensor for entry in plan.kept_float if "does not quantize" in entry.reason)

    # A parameter that is handed to a function, or of which it takes a part, is the weight of a layer of its own.
    def is_among(shared: list[str], entries: tuple[str, ...]) -> bool:
        return any(f"{each}.".startswith(f"{name}.") for name in shared for each in entries)

    found = sum(sizes[shared[0]] for shared in names.values() if is_among(shared, quantized))
    left = [shared for shared in names.values() if not is_among(shared, quantized) and not is_among(shared, without)]
    total = found + sum(sizes[shared[0]] for shared in left)
    return round(found / total, 3) if total else 1.0


# --- what is printed ---------------------------------------------------------------------------------------------


def _line(row: Row) -> str:
    numbers = (f"{row[key]}" if key in row else "" for key in ("trained", "quantized", "sqnr", "seconds"))
    return " | ".join([row["name"], row["backend"], row["result"], *numbers, row.get("message", "")])


def summary(rows: Sequence[Row]) -> str:
    """A line a backend, against the goals."""
    lines = []
    for backend in dict.fromkeys(row["backend"] for row in rows):
        its = [row for row in rows if row["backend"] == backend]
        deployed = [row for row in its if row["result"] in ("holds", "differs", "not verified")]
        holds = sum(row["result"] == "holds" for row in its)
        whole = sum(row.get("quantized", 0) >= 0.95 for row in its)
        crashes = sum("crash" in row or row["result"] == "crashed" for row in its)
        goal = f" (goal {GOALS[backend]:.0%})" if backend in GOALS else ""
        lines.append(
            f"{backend}: {len(its)} architectures, {len(deployed)} deployed ({len(deployed) / len(its):.0%}){goal}, "
            f"verdict holds on {holds}, 95 % of the parameters quantized in {whole}, {crashes} tracebacks"
        )
        trained = [row for row in its if "trained" in row]
        if trained:
            captured = sum(row.get("graph_breaks") == 0 for row in its)
            every = sum(row["trained"] == "all" for row in trained)
            lines.append(f"captured whole {captured}, a step of training reaches every scale in {every}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
