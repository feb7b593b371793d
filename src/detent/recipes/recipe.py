"""A quantization request for a whole network, independent of the network and the backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from os import PathLike, fspath
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, PlainValidator, model_validator

from detent.cpus import CPUS
from detent.errors import DetentError, RecipeError, SchemeError
from detent.observers import OBSERVERS
from detent.quantizers import QUANTIZERS, Role
from detent.recipes.checks import Text, a_list, one_of, within
from detent.recipes.files import read, write
from detent.recipes.options import Options, Scalar, lacking_options
from detent.recipes.refusal import RefusalError, dotted, nearest
from detent.recipes.rule import Rule
from detent.recipes.section import Section
from detent.recipes.tensor_request import TensorRequest
from detent.recipes.yaml_text import dumps

__all__ = ["AlgorithmRequest", "BatchNorm", "Calibration", "Recipe"]

BatchNormStrategy = Literal[-1, 0, 1, 2, 3, 4]
CalibrationInputs = Literal["float", "quantized"]

_MOST = 2**63 - 1  # what TOML and torch.manual_seed can hold


def _known_cpu(name: str | None) -> str | None:
    if name is not None and name not in CPUS:
        raise RefusalError(f"not one of {', '.join(CPUS)}", nearest(name, CPUS, "use one of these"))
    return name


class BatchNorm(Section, frozen=True):
    """How batch norm is trained with the layer before it: the strategy's number, and when statistics freeze.

    -1 none, 0 merge once, 1 fold running statistics, 2 fold batch statistics (two convolutions), 3 the
    white paper's correction, 4 scale by gamma / sigma, unscale, normal batch norm.
    """

    strategy: Annotated[BatchNormStrategy | None, one_of(BatchNormStrategy)] = None
    freeze_at_epoch: Annotated[int, within(0, _MOST)] | None = None


class Calibration(Section, frozen=True):
    """How ranges are measured: over how many batches, and whether later layers see quantized inputs meanwhile. With
    `correct_biases` the mean errors of quantized weights are then taken out of the biases; with `choose_ranges`
    activations whose range is all that was seen are clipped if the outputs are nearer to the float ones so."""

    batches: Annotated[int, within(1, 512)] | None = None
    inputs: Annotated[CalibrationInputs, one_of(CalibrationInputs, "float")] = "float"
    correct_biases: bool | None = None
    choose_ranges: bool | None = None


class AlgorithmRequest(Section, frozen=True):
    """An algorithm by name, with options of its own. `prepare` refuses one that it does not know."""

    name: Text
    options: Annotated[Mapping[str, Scalar], PlainValidator(Options.of)] = Options()


class Recipe(Section, frozen=True):
    """A request: frozen, hashable, equal to any recipe with the same contents, read from and written to files.

    Everything but the name may be left out; None is the backend's or the method's own default. The first of the `rules`
    that matches a layer applies, and overrides the recipe's own requests key by key. What `exclude` matches stays
    float, whatever the rules say. `algorithms` run, in order, when the model is calibrated. `mix` names one of the
    target's own mixes of formats, which decides on the weights that no rule matches. `cpu` names the one kind of CPU
    that the model will run on (`detent.cpus.CPUS`); without it, weights are bounded so that engines compute the same
    integers on every kind.

    Invariant: the requests that result from the rules are as valid as the requests themselves.

    >>> recipe = Recipe(
    ...     name="mine",
    ...     weight=TensorRequest(quantizer="lsq", bits=4),
    ...     rules=[{"match": {"kind": "linear"}, "weight": {"bits": 8}}],
    ... )
    >>> recipe.for_tensor("weight", "head", "linear")
    TensorRequest(quantizer='lsq', bits=8, quantize=True)
    >>> Recipe.from_dict(recipe.to_dict()) == recipe
    True
    """

    name: Text
    weight: TensorRequest = TensorRequest()
    activation: TensorRequest = TensorRequest()
    bias: TensorRequest = TensorRequest()
    batch_norm: BatchNorm = BatchNorm()
    calibration: Calibration = Calibration()
    algorithms: Annotated[tuple[AlgorithmRequest, ...], a_list] = ()
    rules: Annotated[tuple[Rule, ...], a_list] = ()
    exclude: Annotated[tuple[Text, ...], a_list] = ()
    cpu: Annotated[str | None, AfterValidator(_known_cpu)] = None
    mix: Text | None = None
    seed: Annotated[int, within(0, _MOST)] = 0

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Recipe:
        """Read a `.yaml`, `.yml`, `.json` or `.toml` file. Nothing in it is executed or imported."""
        return cls.from_dict(read(path), source=fspath(path))

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file that `load` reads back as an equal recipe; the suffix decides the format."""
        write(self.to_dict(), path)

    @classmethod
    def named(cls, name: str) -> Recipe:
        """A built-in recipe; `BUILTIN` lists them."""
        from detent.recipes.builtin import builtin  # the table is made of recipes

        return builtin(name)

    def for_tensor(self, role: Role, name: str, kind: str) -> TensorRequest:
        """The request for one tensor of the layer `name`, an operator of that `kind`. Its `quantize` is decided."""
        if role not in get_args(Role):
            advice = nearest(role, get_args(Role), "use one of these")
            raise RecipeError(f"the request for the role {role!r}", f"roles are {', '.join(get_args(Role))}", advice)
        request: TensorRequest = getattr(self, role)
        rule = self.rule_for(name, kind)
        if rule is not None:
            request = rule.request(role).over(request)
        excluded = any(fnmatchcase(name, glob) for glob in self.exclude)
        return request.model_copy(update={"quantize": request.quantize is not False and not excluded})

    @property
    def trains(self) -> bool:
        """Whether it names a quantizer (of weights or activations) that is trained with the network."""
        requests = (part.request(role) for part in self.rules for role in get_args(Role))
        named = {request.quantizer for request in (self.weight, self.activation, self.bias, *requests)}
        return any(QUANTIZERS[name].trains for name in named if name is not None)

    def rule_for(self, name: str, kind: str) -> Rule | None:
        """The rule that counts for a layer."""
        return next((rule for rule in self.rules if rule.match.matches(name, kind)), None)

    def unmatched(self, layers: Iterable[tuple[str, str]]) -> list[str]:
        """The rules and excludes that match none of a model's (name, kind) pairs, each with the nearest name.

        >>> Recipe(name="mine", exclude=["haed", "stem.*"]).unmatched([("stem.conv", "conv"), ("head", "linear")])
        ["exclude[0] (name 'haed'); the nearest name is 'head'"]
        """
        layers = list(layers)
        missed = [
            f"rules[{index}] ({rule.match}){_near(rule.match.name, layers)}"
            for index, rule in enumerate(self.rules)
            if not any(rule.match.matches(name, kind) for name, kind in layers)
        ]
        return missed + [
            f"exclude[{index}] (name {glob!r}){_near(glob, layers)}"
            for index, glob in enumerate(self.exclude)
            if not any(fnmatchcase(name, glob) for name, _ in layers)
        ]

    def __str__(self) -> str:
        return dumps(self.to_dict()).rstrip()

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        for role in get_args(Role):
            base: TensorRequest = getattr(self, role)
            _refuse_unusable(role, base, (role,))
            for index, rule in enumerate(self.rules):
                at = ("rules", index, role)
                try:
                    laid = rule.request(role).over(base)
                except DetentError as error:
                    raise RefusalError(error.found, error.to_do, at=at, about=error.asked, error=type(error)) from None
                _refuse_unusable(role, laid, at)
        return self


def _refuse_unusable(role: Role, request: TensorRequest, at: tuple[str | int, ...]) -> None:
    """Refuse what only the recipe as a whole can show: options of nothing, options that lack, the wrong role."""
    for kind, table in (("quantizer", QUANTIZERS), ("observer", OBSERVERS)):
        name, options = getattr(request, kind), getattr(request, f"{kind}_options")
        place: dict[str, Any] = {"at": (*at, f"{kind}_options"), "value": options}
        if name is None:
            if options:
                raise RefusalError(f"there is no {kind} for these options", f"add {dotted(*at, kind)}", **place)
            continue
        lacking = lacking_options(table[name], options)
        if lacking:
            raise RefusalError(
                f"{kind} {name!r} has no default for {', '.join(lacking)}", "add what is missing", **place
            )
    if request.quantizer is not None and role not in QUANTIZERS[request.quantizer].roles:
        roles = " and ".join(QUANTIZERS[request.quantizer].roles)
        able = ", ".join(sorted(name for name, cls in QUANTIZERS.items() if role in cls.roles))
        found = f"it is a method for {roles}"
        raise RefusalError(
            found, f"for {role} use one of {able}", at=(*at, "quantizer"), value=request.quantizer, error=SchemeError
        )


def _near(glob: str | None, layers: list[tuple[str, str]]) -> str:
    near = get_close_matches(glob, [name for name, _ in layers], n=1) if glob else []
    return f"; the nearest name is {near[0]!r}" if near else ""
