"""A folder of `save_pretrained` to a quantized checkpoint, with one layer in memory at a time."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from detent.algorithms import ALGORITHMS, Change, check
from detent.algorithms.common.batches import held_back
from detent.algorithms.common.errors_core import Deviation
from detent.algorithms.common.whole import verdict
from detent.deployment.memory import trim_heap
from detent.errors import ArtifactError, DataError, DetentError, RecipeError, refusing
from detent.files import reserved, write_bytes
from detent.frontends.hugging_face import companions
from detent.layerwise.journal import Journal
from detent.layerwise.part import Part, Quantized, Run, quantize_part
from detent.layerwise.skeleton import Batch, Entered, LayerCall, Skeleton
from detent.planning import Backend
from detent.progress import progress
from detent.recipes import Recipe, find
from detent.registry import Lazy
from detent.targets import TARGETS
from detent.targets.base.layer_format import LayerFormat

__all__ = ["LayerwiseResult", "quantize_checkpoint", "why_not"]

_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"
_PREFIX = "model."  # of names in recipes: what `load_checkpoint` calls the model of transformers
_TRACED = (2, 8)  # rows and words, where no data is given


@dataclass(frozen=True)
class LayerwiseResult:
    """A finished folder: how each weight is quantized, what algorithms did, and how far the scores of words are from
    the float ones, as noise over signal, if there was data to tell."""

    folder: Path
    plan: tuple[Mapping[str, str], ...]
    changes: tuple[Change, ...]
    noise: float | None
    undone: Mapping[str, Any] | None

    @classmethod
    def of(cls, folder: Path, journal: Journal) -> LayerwiseResult:
        plan = tuple(line for part in journal.parts for line in part["plan"])
        changes = tuple(Change(**change) for part in journal.parts for change in part["changes"])
        return cls(folder, plan, changes, journal.parts[-1].get("noise"), journal.undone)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types only."""
        return {
            "folder": str(self.folder),
            "plan": [dict(line) for line in self.plan],
            "changes": [change.to_dict() for change in self.changes],
            "noise": self.noise,
            "undone": self.undone,
        }

    def __str__(self) -> str:
        floats = [line for line in self.plan if line["as"] == "float"]
        lines = [f"{self.folder}: {len(self.plan) - len(floats)} linear layers quantized, {len(floats)} float"]
        lines += [f"float: {line['tensor']}, {line['why']}" for line in floats]
        places = [change for change in self.changes if change.place != "outputs"]
        if places:
            kept = sum(change.kept for change in places)
            lines.append(f"algorithm: {kept} layers improved, {len(places) - kept} left as they were")
        if self.undone is not None:
            before, after = (f"{self.undone[key]:.4g}" for key in ("before", "after"))
            lines.append(f"algorithm: all undone, noise at the outputs {before} would become {after}")
        if self.noise is not None:
            lines.append(f"outputs: {-10 * math.log10(self.noise):.1f} dB" if self.noise else "outputs: exact")
        return "\n".join(lines)


def quantize_checkpoint(
    model: str | Path,
    batches: Iterable[Any] | None = None,
    *,
    backend: str,
    recipe: str | Recipe,
    folder: str | Path,
) -> LayerwiseResult:
    """Quantize the linear layers of a causal language model and write the checkpoint of a target.

    `model` is a folder of `save_pretrained`, whose weights are read a layer at a time. `batches` are token ids and
    their mask, both (batch, length); recipes that look at no data need none. The result is that of the whole model in
    memory, bit for bit. What is killed goes on when it is called with the same arguments again: of what was begun in
    `folder` it computes the rest.
    """
    source, target = Path(model), Path(folder)
    request = find(recipe)
    _refuse(request, backend)
    data = None if batches is None else [_batch(one) for one in batches]
    if data is None and any(ALGORITHMS[one.name].needs_data for one in request.algorithms):
        raise DataError(
            f"quantize {source} with recipe {request.name!r}", "no data is given", "give batches, or --data"
        )
    with reserved(target, f"quantize into {target}"):
        journal = Journal.opened(target, _digests(source, data, request, backend))
        if not journal.finished:
            _Work(source, data, request, backend, target, journal).run()
        return LayerwiseResult.of(target, journal)


def why_not(backend: str, recipe: Recipe) -> str | None:
    """Why a target or a recipe needs the whole model in memory; None if it does not."""
    try:
        _refuse(recipe, backend)
    except DetentError as error:
        return error.found
    return None


def _refuse(recipe: Recipe, backend: str) -> None:
    asked = f"quantize a layer at a time for {backend!r} with recipe {recipe.name!r}"
    to_do = "use --whole, or another recipe"
    if TARGETS[backend].layer_format is None:
        able = ", ".join(name for name in TARGETS if TARGETS[name].layer_format is not None)
        raise RecipeError(asked, f"the target writes whole models; {able} can", "use --whole, or such a target")
    looking = []
    for one in recipe.algorithms:
        check(one.name, one.options)
        algorithm = ALGORITHMS[one.name]
        if algorithm.on_graph is None and (algorithm.needs_data or algorithm.phase != "after calibration"):
            raise RecipeError(asked, f"{one.name} works on the whole model", to_do)
        looking += [one.name] if algorithm.on_graph is not None else []
    if len(looking) > 1 or (looking and recipe.algorithms[-1].name != looking[0]):
        raise RecipeError(asked, f"{looking[0]} is not the last algorithm", to_do)
    for field in ("correct_biases", "choose_ranges"):
        if getattr(recipe.calibration, field):
            raise RecipeError(asked, f"calibration.{field} works on the whole model", to_do)
    if recipe.mix is not None:
        raise RecipeError(asked, f"the mix {recipe.mix!r} is decided on the whole model", to_do)


class _Work:
    """Parts of a model, from the first that is not done to the last."""

    def __init__(
        self,
        source: Path,
        data: Sequence[Batch] | None,
        recipe: Recipe,
        backend: str,
        folder: Path,
        journal: Journal,
    ):
        self._source, self._recipe, self._folder, self._journal = source, recipe, folder, journal
        self._backend: Backend = TARGETS[backend].backend
        place = TARGETS[backend].layer_format
        assert place is not None
        self._format: LayerFormat = Lazy(place).load()
        self._data = None if data is None else list(data)
        self._learns = any(ALGORITHMS[one.name].on_graph is not None for one in recipe.algorithms)
        self._judges = 0
        if self._data is not None:
            learning, judging = held_back(self._data) if self._learns else ([], self._data)
            self._data = [Batch(*one) for one in (*learning, *judging)]
            self._judges = len(judging)

    def run(self) -> None:
        if self._journal.undone is None:
            self._go(self._recipe, self._data)
        if self._journal.undone is not None:
            plain = tuple(one for one in self._recipe.algorithms if ALGORITHMS[one.name].on_graph is None)
            self._go(self._recipe.replace(algorithms=plain), None)
        self._journal.finish({**companions(self._source), _INDEX: self._index(), _CONFIG: self._config()})

    def _go(self, recipe: Recipe, data: list[Batch] | None) -> None:
        """Through the parts that are not done, to the end or until the network has the last word."""
        skeleton, journal = Skeleton(self._source), self._journal
        _refuse_unmatched(recipe, skeleton)
        self._count = len(skeleton.layers) + 1
        if len(journal.parts) >= self._count:
            return
        batches = data or [_example(skeleton)]
        entered = skeleton.enter(batches)
        run = None if data is None else self._run(entered)
        with progress("quantizing layer by layer", self._count, done=len(journal.parts)) as bar:
            for index in range(len(journal.parts), len(skeleton.layers)):
                self._layer(skeleton, index, recipe, entered, run)
                gc.collect()  # graphs and modules refer to each other: their weights would stay for many layers
                trim_heap()
                bar.advance(facts=skeleton.layer_names[index])
            self._head(skeleton, recipe, batches, entered, run)
            bar.advance(facts=skeleton.head_name)

    def _run(self, entered: Sequence[Entered]) -> Run:
        held = self._journal.states()
        if held is not None:
            return Run.of(held, self._judges)
        return Run.begun([one.hidden for one in entered], self._judges, compares=self._learns)

    def _layer(
        self, skeleton: Skeleton, index: int, recipe: Recipe, entered: Sequence[Entered], run: Run | None
    ) -> None:
        began = time.process_time()
        name = skeleton.layer_names[index]
        stored = {f"{name}.{key}": skeleton.stored(f"{name}.{key}") for key in skeleton.layers[index].state_dict()}
        part = Part(skeleton.layer(index), name, _PREFIX)
        calls = [one.calls[index] for one in entered]
        found = quantize_part(part, recipe, self._backend, calls, entered[0].hidden, run)
        self._write(index, found, stored)
        described = _described(found) | {"cpu_seconds": round(time.process_time() - began, 1)}
        self._journal.done(described, {} if run is None else run.tensors())

    def _head(
        self,
        skeleton: Skeleton,
        recipe: Recipe,
        batches: Sequence[Batch],
        entered: Sequence[Entered],
        run: Run | None,
    ) -> None:
        """What is behind the layers; and the outputs of the network, which decide whether an algorithm has helped."""
        name = skeleton.head_name
        calls = [LayerCall((), {})] * len(batches)
        taken = None if run is None else _into_head(skeleton, batches, run)
        example = entered[0].hidden
        found = quantize_part(_part(skeleton.head(), name), recipe, self._backend, calls, example, taken, passes=False)
        described = _described(found)
        if run is not None:
            judging = batches[len(batches) - self._judges :]
            floats = _weights(skeleton.head())  # those that were quantized have changed
            after = _noise(skeleton, judging, run.wanted, run.got, floats, _with(found, name, floats))
            described["noise"] = after
            if self._learns:
                plain = self._recipe.replace(algorithms=recipe.algorithms[:-1])
                rounded = quantize_part(
                    _part(skeleton.head(), name), plain, self._backend, calls, example, None, passes=False
                )
                before = _noise(skeleton, judging, run.wanted, run.before, floats, _with(rounded, name, floats))
                _, outputs = verdict([], before, after)
                described["changes"].append(outputs.to_dict())
                if not outputs.kept:
                    self._journal.undo(outputs.to_dict())
                    return
        self._write(self._count - 1, found, {key: skeleton.stored(key) for key in {*skeleton.rest(), f"{name}.weight"}})
        self._journal.done(described, {})

    def _write(self, index: int, found: Quantized, stored: Mapping[str, Tensor]) -> None:
        """The shard of a part: weights in blocks, and all else as it was."""
        tensors = {name: tensor for name, tensor in stored.items() if name not in found.blocks}
        for name, blocks in found.blocks.items():
            tensors |= self._format.packed(name, blocks)
        write_bytes(self._folder / _shard(index, self._count), self._format.shard(tensors))

    def _index(self) -> bytes:
        places: dict[str, str] = {}
        size = 0
        for index in range(self._count):
            name = _shard(index, self._count)
            with (
                refusing(ArtifactError, f"read {self._folder / name}", "name another folder"),
                safe_open(self._folder / name, "pt") as file,
            ):
                places.update(dict.fromkeys(file.keys(), name))
                size += (self._folder / name).stat().st_size
        return json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1).encode()

    def _config(self) -> bytes:
        widths = {name: (bits, size) for part in self._journal.parts for name, (bits, size) in part["widths"].items()}
        lines = [line for part in self._journal.parts for line in part["plan"]]
        floats = [line["tensor"] for line in lines if line["tensor"] not in widths]
        return self._format.config(Skeleton(self._source).config.to_dict(), widths, floats)


Linear = tuple[Tensor, Tensor | None]


def _part(head: nn.Module, name: str) -> Part:
    """A model of the last layer alone, which has its name there."""
    for piece in reversed(name.split(".")):
        head = nn.Sequential(OrderedDict([(piece, head)]))
    return Part(head, "", _PREFIX)


def _weights(head: Any) -> Linear:
    return head.weight, head.bias


def _with(found: Quantized, name: str, floats: Linear) -> Linear:
    blocks = found.blocks.get(f"{name}.weight")
    return floats if blocks is None else (torch.from_numpy(blocks.real), floats[1])


def _into_head(skeleton: Skeleton, batches: Sequence[Batch], run: Run) -> Run:
    """What the last layer takes in."""

    def taken(hidden: Sequence[Tensor]) -> list[Tensor]:
        seen: list[Tensor] = []

        def note(_: int, x: Tensor) -> Tensor:
            seen.append(x)
            return x

        for _ in skeleton.leave(batches, hidden, note):
            pass
        return seen

    return Run(taken(run.wanted), taken(run.got), [], run.judges)


def _noise(
    skeleton: Skeleton,
    judging: Sequence[Batch],
    wanted: Sequence[Tensor],
    got: Sequence[Tensor],
    floats: Linear,
    quantized: Linear,
) -> float:
    """Noise over signal of the scores, a row at a time: the scores of a batch are larger than a layer."""
    deviation = Deviation()
    count = len(judging)
    for batch, want, have in zip(judging, wanted[len(wanted) - count :], got[len(got) - count :], strict=True):
        for row in range(len(batch.ids)):
            alone = Batch(*(part[row : row + 1] for part in batch))
            states, heads = [want[row : row + 1], have[row : row + 1]], [floats, quantized]
            deviation.add(*skeleton.leave([alone] * 2, states, lambda which, x: F.linear(x, *heads[which])))  # noqa: B023
    return deviation.relative


def _described(found: Quantized) -> dict[str, Any]:
    return {
        "plan": found.plan,
        "widths": {name: [blocks.bits, blocks.size] for name, blocks in found.blocks.items()},
        "changes": [change.to_dict() for change in found.changes],
        "skipped": found.skipped,
    }


def _shard(index: int, count: int) -> str:
    return f"model-{index + 1:05}-of-{count:05}.safetensors"


def _refuse_unmatched(recipe: Recipe, skeleton: Skeleton) -> None:
    missed = recipe.unmatched((_PREFIX + name, "linear") for name in skeleton.linear_layers())
    if missed:
        found = f"matches no linear layer of this model: {'; '.join(missed)}"
        raise RecipeError(f"recipe {recipe.name!r}, a layer at a time", found, "correct or remove it")


def _batch(given: Any) -> Batch:
    parts = list(given.values()) if isinstance(given, Mapping) else list(given)
    if len(parts) != 2 or any(tuple(part.shape) != tuple(parts[0].shape) or part.ndim != 2 for part in parts):
        raise DataError(
            "quantize with a batch", "it is not two arrays (batch, length)", "give token ids and their mask"
        )
    return Batch(*(torch.as_tensor(part) for part in parts))


def _example(skeleton: Skeleton) -> Batch:
    rows, words = _TRACED
    ids = torch.arange(rows * words).reshape(rows, words) % int(skeleton.config.vocab_size)
    return Batch(ids, torch.ones_like(ids))


def _digests(source: Path, data: Sequence[Batch] | None, recipe: Recipe, backend: str) -> dict[str, str]:
    """What a run depends on. A checkpoint is known by its files' sizes and times: it may have terabytes."""
    files = [one for one in sorted(source.glob("*")) if one.suffix in (".safetensors", ".json")]
    states = [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in files]
    words = hashlib.sha256()
    for batch in data or ():
        for part in batch:
            words.update(str(tuple(part.shape)).encode() + part.contiguous().numpy().tobytes())
    return {
        "model": _digest(states),
        "data": words.hexdigest() if data else "none",
        "recipe": _digest(recipe.to_dict()),
        "backend": backend,
        "version": f"detent {metadata.version('detent')}, torch {torch.__version__}",
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
