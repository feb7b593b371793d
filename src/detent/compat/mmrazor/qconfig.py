"""`global_qconfig` with its six entries as a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.compat.mmrazor.adapters import observer_name, quantizer_name
from detent.compat.mmrazor.observers import TORCH_OBSERVERS
from detent.compat.mmrazor.registry import MODELS
from detent.errors import RecipeError, SchemeError
from detent.recipes import Recipe
from detent.targets import BACKENDS

__all__ = ["DTYPES", "recipe_of", "requests_of", "symmetric_unsigned_note"]

DTYPES: Mapping[str, tuple[str, str]] = {
    "openvino": ("qint8", "quint8"),
    "tensorrt": ("qint8", "qint8"),
    "native": ("qint8", "quint8"),
    "academic": ("qint8", "quint8"),
}
"""For each of MMRazor's backends, the `qdtype` of weights and of activations. Others say themselves what they offer."""

_ENTRIES = tuple(f"{role}_{part}" for role in "wa" for part in ("observer", "fake_quant", "qscheme"))
_QSCHEME = (
    "qdtype", "bit", "is_symmetry", "is_per_channel", "is_pot_scale", "is_symmetric_range", "averaging_constant",
)  # fmt: skip
_OBSERVERS = {
    "MinMaxObserver": "minmax",
    "PerChannelMinMaxObserver": "minmax",
    "MovingAverageMinMaxObserver": "moving_average",
    "MovingAveragePerChannelMinMaxObserver": "moving_average",
    "HistogramObserver": "mse",
    "LSQObserver": "lsq",
    "LSQPerChannelObserver": "lsq",
}
_FAKE_QUANTS = {
    "FakeQuantize": "fixed",
    "FusedMovingAvgObsFakeQuantize": "moving_range",
    "LearnableFakeQuantize": "lsq",
}


def recipe_of(global_qconfig: Mapping[str, Any], backend: str, *, is_qat: bool = True) -> Recipe:
    """What a `global_qconfig` asks of a backend; a `qdtype` that is not the backend's is refused."""
    requests = requests_of(global_qconfig, backend, "global_qconfig")
    batch_norm = {"strategy": 4 if is_qat else None}  # torch's ConvBn2d: folded, with statistics that are trained
    return Recipe.from_dict({"name": "mmrazor", "batch_norm": batch_norm, **requests}, source="global_qconfig")


def requests_of(qconfig: Mapping[str, Any], backend: str, where: str) -> dict[str, dict[str, Any]]:
    """What the six entries ask for weights and activations, as the sections of a recipe or of a rule."""
    _refuse_keys(where, qconfig, _ENTRIES)
    lacking = [name for name in _ENTRIES if name not in qconfig]
    if lacking:
        raise RecipeError(where, f"it has no {', '.join(lacking)}", "give all six entries")
    wanted = dict(zip("wa", DTYPES.get(backend, ()), strict=False))
    return {
        name: _request(role, qconfig, backend, wanted.get(role))
        for role, name in (("w", "weight"), ("a", "activation"))
    }


def symmetric_unsigned_note(qconfig: Mapping[str, Any], backend: str) -> str | None:
    """What symmetric `quint8` activations become, which upstream has around a zero point of 127 or 128."""
    scheme = qconfig["a_qscheme"]
    if scheme.get("qdtype", "quint8") != "quint8" or not scheme.get("is_symmetry", True):
        return None
    codes = "affine" if _only_affine(backend) else "signed, or from 0 on where nothing is negative"
    return f"a_qscheme asks for symmetric quint8: its codes are {codes}, and none is wasted around a fixed zero point"


def _only_affine(backend: str) -> bool:
    """Whether activations have affine codes only, as in torch's kernels."""
    return backend in BACKENDS and True not in BACKENDS[backend].activation.symmetric


def _request(role: str, given: Mapping[str, Any], backend: str, wanted: str | None) -> dict[str, Any]:
    scheme, where = given[f"{role}_qscheme"], f"{role}_qscheme"
    _refuse_keys(where, scheme, _QSCHEME)
    dtype, symmetric = scheme.get("qdtype", "quint8"), scheme.get("is_symmetry", True)
    options = {"averaging_constant": float(scheme["averaging_constant"])} if "averaging_constant" in scheme else {}
    kind, own_observer = _named(f"{role}_observer", given, _OBSERVERS)
    method, own_method = _named(f"{role}_fake_quant", given, _FAKE_QUANTS)
    observer = _OBSERVERS[kind] if own_observer is None else observer_name(own_observer, options)
    if own_method is None:
        quantizer = _FAKE_QUANTS[method]
    else:
        quantizer = quantizer_name(own_method, own_observer or TORCH_OBSERVERS[kind], options)
    if dtype != (wanted or dtype):
        raise SchemeError(
            f"{where} with qdtype {dtype!r}", f"{backend} takes {wanted!r} there", f"set qdtype={wanted!r}"
        )
    signed = dtype == "qint8"
    request: dict[str, Any] = {
        "bits": scheme.get("bit", 8),
        # Symmetric codes among affine ones are those with zero point 128.
        "symmetric": symmetric and not (role == "a" and _only_affine(backend)),
        # Symmetric unsigned codes around 128 are signed ones; after a ReLU they are those from 0.
        "signed": True if signed else "auto" if symmetric and not _only_affine(backend) else False,
        "granularity": "per_channel" if scheme.get("is_per_channel") or "PerChannel" in kind else "per_tensor",
        "scale": "power_of_two" if scheme.get("is_pot_scale") else None,
        "observer": observer,
        "quantizer": quantizer,
    }
    if signed:
        request["narrow"] = bool(scheme.get("is_symmetric_range", False))
    elif scheme.get("is_symmetric_range"):
        raise SchemeError(f"{where} with is_symmetric_range", "unsigned codes have no such range", "leave it out")
    if options and own_observer is None:
        if observer != "moving_average":
            raise RecipeError(f"{where} with averaging_constant", f"{kind} has none", "leave it out")
        request["observer_options"] = {"momentum": 1 - options["averaging_constant"]}
    return request


def _named(entry: str, given: Mapping[str, Any], known: Mapping[str, str]) -> tuple[str, type | None]:
    """The name in an entry, and the class that the user registered under it, which comes first."""
    _refuse_keys(entry, given[entry], ("type",))
    if "type" not in given[entry]:
        raise RecipeError(entry, "it has no type", f"use one of {', '.join(known)}, or a registered class")
    name = str(given[entry]["type"]).rpartition(".")[2]
    own = MODELS.registered(name)
    if own is None and name not in known:
        raise RecipeError(f"{entry} {name!r}", f"not one of {', '.join(known)}", "@MODELS.register_module() it")
    return name, own


def _refuse_keys(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise RecipeError(f"{where} with {', '.join(unknown)}", f"it takes {', '.join(known)}", "remove it")
