"""The grid file: strict, with the same sections as a config of `detent train`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from detent.bench.any_width import setting_of
from detent.bench.cell import FORMAT, Cell
from detent.errors import DetentError, RecipeError
from detent.observers import OBSERVERS
from detent.recipes import Recipe, find
from detent.recipes.checks import Text, a_list, known, one_of, within
from detent.recipes.files import FORMATS, read
from detent.recipes.recipe import BatchNormStrategy
from detent.recipes.refusal import RefusalError
from detent.recipes.section import Section
from detent.training.build import check_names, refuse_imports
from detent.training.config import (
    Config,
    DataConfig,
    LoopName,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from detent.training.config_files import laid_over
from detent.training.import_paths import is_import_path
from detent.training.overrides import parse_override

__all__ = ["Grid", "load_grid"]


_WIDTH = re.compile(r"W(\d{1,2})A(\d{1,2})")
_MOST = 100_000  # cells: a grid of more is a mistake
_MOST_SEED = 2**31 - 1


def _width(text: str) -> str:
    if _WIDTH.fullmatch(text) is None:
        raise RefusalError("it is not a width", "write W4A8 for weights of 4 bits and activations of 8")
    return text


def _at_least_one(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise RefusalError("it is empty", "name at least one")
    if len(set(values)) < len(values):
        raise RefusalError("it names one twice", "name each once")
    return values


_Several = AfterValidator(_at_least_one)


class Algorithm(Section, frozen=True):
    """`recipe` is a built-in one or a file, by default the one called `name`; `loop` trains it, or not."""

    name: Text
    recipe: Text | None = None
    loop: Annotated[LoopName | None, one_of(LoopName)] = None

    def found(self) -> Recipe:
        return find(self.recipe or self.name)

    def how(self) -> LoopName:
        """`qat` for what only training makes good: no algorithm works on it, and its quantizers are not fixed."""
        recipe = self.found()
        learns = not recipe.algorithms and recipe.weight.quantizer not in (None, "fixed")
        return self.loop or ("qat" if learns else "ptq")


def _algorithms(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise RefusalError(f"it is a {type(value).__name__}", "give a list of names")
    return tuple({"name": one} if isinstance(one, str) else one for one in value)


def _networks(value: object) -> object:
    """`resnet20: weights.safetensors` is short for a section with these."""
    if not isinstance(value, Mapping) or not value:
        raise RefusalError(f"it is a {type(value).__name__}", "give names with a file of weights, or null, for each")
    found = []
    for name, said in value.items():
        told = {"pretrained": said} if isinstance(said, str) else dict(said or {})
        found.append({"name": str(name), **told})
    return tuple(found)


class Evaluation(Section, frozen=True):
    """How many batches of the test split the simulation and float are measured on (none: all), on how many the twin and
    the engine are, beside the simulation, and whether latency is."""

    batches: Annotated[int, within(1, _MOST_SEED)] | None = None
    verified: Annotated[int, within(1, 10_000)] = 8
    latency: bool = True


class Grid(Section, frozen=True):
    """Networks x algorithms x targets x bits x batch-norm strategies x initializations x seeds, one training setting.

    A batch-norm strategy, or an initialization (an observer), that is null is the target's own.
    """

    name: Text
    networks: Annotated[tuple[ModelConfig, ...], BeforeValidator(_networks)]
    data: DataConfig
    algorithms: Annotated[tuple[Algorithm, ...], BeforeValidator(_algorithms), _Several]
    targets: Annotated[tuple[Text, ...], a_list, _Several]
    bits: Annotated[tuple[Annotated[Text, AfterValidator(_width)], ...], a_list, _Several] = ("W8A8",)
    batch_norm: Annotated[
        tuple[Annotated[BatchNormStrategy | None, one_of(BatchNormStrategy)], ...], a_list, _Several
    ] = (None,)
    initialization: Annotated[tuple[Annotated[str, known(OBSERVERS)] | None, ...], a_list, _Several] = (None,)
    seeds: Annotated[tuple[Annotated[int, within(0, _MOST_SEED)], ...], a_list, _Several] = (0,)
    train: TrainConfig = TrainConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    loss: LossConfig = LossConfig()
    evaluate: Evaluation = Evaluation()

    def cells(self) -> list[Cell]:
        """Every combination, the seeds outermost: a run that is cut has whole tables of the first seeds."""
        axes = (
            self.seeds,
            self.networks,
            self.targets,
            self.bits,
            self.algorithms,
            self.batch_norm,
            self.initialization,
        )
        count = 1
        for axis in axes:
            count *= len(axis)
        if count > _MOST:
            raise RecipeError(f"the grid {self.name}", f"{count:,} cells", f"ask for at most {_MOST:,}")
        return [self._cell(*choice) for choice in product(*axes)]

    def _cell(
        self,
        seed: int,
        network: ModelConfig,
        target: str,
        bits: str,
        algorithm: Algorithm,
        strategy: int | None,
        observer: str | None,
    ) -> Cell:
        found = _WIDTH.fullmatch(bits)
        assert found is not None
        weight_bits, activation_bits = int(found[1]), int(found[2])
        loop = algorithm.how()
        config = {
            "name": self.name,
            "model": network.to_full_dict(),
            "data": self.data.to_full_dict(),
            "backend": target if is_import_path(target) else setting_of(target, weight_bits, activation_bits),
            "recipe": _recipe(algorithm.found(), weight_bits, activation_bits, strategy, observer),
            "train": {**self.train.to_full_dict(), "seed": seed, "loop": loop},
        }
        if loop == "ptq":
            config["train"] = {"seed": seed, "loop": loop}
        else:
            config["optimizer"] = self.optimizer.to_full_dict()
            config["schedule"] = self.schedule.to_full_dict()
            config["loss"] = self.loss.to_full_dict()
        axes = {
            "network": network.name,
            "algorithm": algorithm.name,
            "target": target,
            "bits": bits,
            "batch_norm": strategy,
            "initialization": observer,
            "seed": seed,
        }
        return Cell(axes, config, {"format": FORMAT, **self.evaluate.to_full_dict()})


def _recipe(recipe: Recipe, weight: int, activation: int, strategy: int | None, observer: str | None) -> dict[str, Any]:
    data = recipe.to_dict()
    for role, bits in (("weight", weight), ("activation", activation)):
        said = {**data.get(role, {}), "bits": bits}
        if observer is not None:
            said.pop("observer_options", None)
            said["observer"] = observer
        data[role] = said
    if strategy is not None:
        data["batch_norm"] = {**data.get("batch_norm", {}), "strategy": strategy}
    return data


def load_grid(path: str | Path, *, overrides: Sequence[str] = (), allow_imports: bool = False) -> Grid:
    """Read a `.yaml`, `.yml`, `.json` or `.toml` file; relative paths in it are those of its folder.

    `overrides`, each `key=value` as `train.epochs=2`, are laid over it; paths in them too are those of its folder.
    Without `allow_imports` the file is data: one that names code by an import path is refused.
    """
    where = Path(path)
    try:
        data = read(where)
    except DetentError as error:
        raise RecipeError(f"read the grid {where}", error.found, error.to_do.replace("recipe", "grid")) from None
    for text in overrides:
        data = laid_over(data, parse_override(text))
    grid = Grid.from_dict(data, source=shlex.join([str(where), *overrides]))
    grid = _placed(grid, where.resolve().parent)
    for network in grid.networks:
        for target in grid.targets:
            config = Config(
                name=grid.name, model=network, data=grid.data, backend=target, recipe=Recipe(name="any"), loss=grid.loss
            )
            if not allow_imports:
                refuse_imports(config, str(where))
            check_names(config, str(where))
    for algorithm in grid.algorithms:
        _check_algorithm(algorithm, str(where))
    return grid


def _check_algorithm(algorithm: Algorithm, source: str) -> None:
    try:
        algorithm.found()
    except DetentError as error:
        raise RecipeError(f"{source}: algorithms: {algorithm.name!r}", error.found, error.to_do) from None


def _placed(grid: Grid, folder: Path) -> Grid:
    """With relative paths made those of `folder`."""

    def placed(path: str | None) -> str | None:
        return None if path is None else str((folder / path).resolve())

    networks = {model.name: {**model.to_dict(), "pretrained": placed(model.pretrained)} for model in grid.networks}
    for told in networks.values():
        told.pop("name")
    algorithms = [
        one.replace(recipe=placed(one.recipe))
        if one.recipe is not None and Path(one.recipe).suffix.lower() in FORMATS
        else one
        for one in grid.algorithms
    ]
    data = grid.data.replace(folder=placed(grid.data.folder))
    return Grid.from_dict(
        {
            **{key: value for key, value in grid.to_dict().items() if key not in ("networks", "algorithms", "data")},
            "networks": networks,
            "algorithms": [one.to_dict() for one in algorithms],
            "data": data.to_dict(),
        }
    )
