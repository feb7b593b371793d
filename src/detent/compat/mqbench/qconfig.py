"""MQBench's names for methods and schemes, as requests of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detent.compat.mqbench.base import ObserverBase, QuantizeBase, register_pair
from detent.errors import RecipeError, RegistrationError, UnknownNameError
from detent.recipes import BatchNorm, TensorRequest

__all__ = [
    "FAKE_QUANTIZERS",
    "OBSERVERS",
    "checked_keys",
    "get_foldbn_config",
    "get_qconfig",
    "qconfig_requests",
    "register_method",
]

OBSERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "MinMaxObserver": ("minmax", {}),
    "EMAMinMaxObserver": ("moving_average", {}),
    "MinMaxFloorObserver": ("pow2_sse", {"candidates": 1}),
    "PoTModeObserver": ("pow2_mode", {}),
    "EMAQuantileObserver": ("moving_percentile", {}),
    "ClipStdObserver": ("std", {}),
    "LSQObserver": ("lsq", {}),
    "LSQPlusObserver": ("lsq_plus", {}),
    "MSEObserver": ("mse", {}),
    "EMAMSEObserver": ("mse", {}),
    "KLDObserver": ("kl", {}),
}
FAKE_QUANTIZERS = {
    "FixedFakeQuantize": "fixed",
    "LearnableFakeQuantize": "lsq",
    "PACTFakeQuantize": "pact",
    "DoReFaFakeQuantize": "dorefa",
    "DSQFakeQuantize": "dsq",
    "TqtFakeQuantize": "tqt",
    "NNIEFakeQuantize": "log",
    "AdaRoundFakeQuantize": "adaround",
    "QDropFakeQuantize": "qdrop",
}
_METHODS = {
    **{name: name for name in ("lsq", "lsq_plus", "dorefa", "pact", "dsq", "qil", "apot", "tqt")},
    "ema": "moving_range",
    "quantile": "fixed",
}
_DOREFA: dict[str, dict[str, Any]] = {"w": {"bound": 1.0}, "a": {}}  # MQBench has the paper's weights
_AROUND_ZERO = ("dorefa", "qil", "apot")
"""Methods whose levels lie around zero, or on one side of it: their zero point is 0 on affine hardware too."""
_OWN_METHODS: dict[str, tuple[str, str]] = {}
_SCHEME = ("bit", "symmetry", "per_channel", "pot_scale", "symmetric_range", "p")
_PARTS = ("observer", "fakequantize", "fakeq_params", "qscheme", "observer_extra_args")
_KEYS = tuple(f"{side}_{part}" for side in "wa" for part in _PARTS)


def checked_keys(data: Any, known: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """`data`, refused where it is no mapping or has a key that is not known."""
    if not isinstance(data, Mapping):
        raise RecipeError(where, f"it is a {type(data).__name__}", f"give a dict with keys of {', '.join(known)}")
    for key, value in data.items():
        if key not in known:
            raise RecipeError(f"{where}[{key!r}] = {value!r}", f"allowed are {', '.join(known)}", "use one of these")
    return data


def qconfig_requests(said: Mapping[str, Any]) -> tuple[TensorRequest, TensorRequest]:
    """An `extra_qconfig_dict` as requests for weights and activations."""
    checked_keys(said, _KEYS, "extra_qconfig_dict")
    weight, activation = (_request(said, side) for side in "wa")
    return weight, activation


def get_qconfig(
    w_method: str,
    a_method: str,
    bit: int,
    *,
    ada_sign: bool = False,
    symmetry: bool = True,
    per_channel: bool = False,
    pot_scale: bool = False,
    w_observer: str | None = None,
    a_observer: str | None = None,
) -> dict[str, TensorRequest]:
    """The benchmark's qconfig: methods of weights and activations, and what the hardware asks of both."""
    common: dict[str, Any] = {"bits": bit, "scale": "power_of_two" if pot_scale else "float"}
    weight = _by_method("w_method", w_method, w_observer).over(TensorRequest(**common))
    activation = _by_method("a_method", a_method, a_observer).over(TensorRequest(**common))
    if ada_sign and a_method in _OWN_METHODS:
        activation = activation.replace(quantizer_options={"ada_sign": True})
    weights = {"symmetric": symmetry or w_method in _AROUND_ZERO}
    activations: dict[str, Any] = {"symmetric": symmetry, "signed": "auto" if ada_sign else symmetry}
    if a_method in _AROUND_ZERO and not symmetry:
        activations = {"symmetric": True, "signed": "auto"}
    return {
        "weight": weight.replace(**weights, granularity="per_channel" if per_channel else "per_tensor"),
        "activation": activation.replace(**activations, granularity="per_tensor"),
    }


def register_method(name: str, fake_quantize: type[QuantizeBase], observer: type[ObserverBase]) -> None:
    """Make an algorithm of your own a `w_method` and an `a_method`; a name is never rebound."""
    pair = register_pair(fake_quantize, observer)
    if name in _METHODS or _OWN_METHODS.get(name, pair) != pair:
        raise RegistrationError(f"register method {name!r}", "the name is taken", "choose another")
    _OWN_METHODS[name] = pair


def get_foldbn_config(foldbn_strategy: int) -> BatchNorm:
    """The strategy of batch norm folding by its number, -1 to 4."""
    return BatchNorm.from_dict({"strategy": foldbn_strategy}, source="bnfold")


def _by_method(key: str, method: str, observer: str | None) -> TensorRequest:
    if method in _OWN_METHODS:
        quantizer, measured = _OWN_METHODS[method]
        return TensorRequest(quantizer=quantizer, observer=measured)
    if method not in _METHODS:
        known = ", ".join((*_METHODS, *_OWN_METHODS))
        raise UnknownNameError(f"{key} {method!r}", f"not one of {known}", "use one of these")
    request = TensorRequest(quantizer=_METHODS[method])
    if method == "apot":
        request = request.replace(grid="apot")
    if method == "quantile":
        request = request.replace(observer="percentile")
    if method == "dorefa":
        request = request.replace(quantizer_options=_DOREFA[key[0]])
    return request if observer is None else request.replace(**_observer("observer", observer))


def _request(said: Mapping[str, Any], side: str) -> TensorRequest:
    scheme = checked_keys(said.get(f"{side}_qscheme") or {}, _SCHEME, f"{side}_qscheme")
    found: dict[str, Any] = {
        "bits": scheme.get("bit"),
        "symmetric": scheme.get("symmetry"),
        "narrow": scheme.get("symmetric_range"),
    }
    if "per_channel" in scheme:
        found["granularity"] = "per_channel" if scheme["per_channel"] else "per_tensor"
    if "pot_scale" in scheme:
        found["scale"] = "power_of_two" if scheme["pot_scale"] else "float"
    fake, observer = said.get(f"{side}_fakequantize"), said.get(f"{side}_observer")
    if isinstance(fake, type) and issubclass(fake, QuantizeBase):
        if not (isinstance(observer, type) and issubclass(observer, ObserverBase)):
            raise RecipeError(f"{side}_observer = {observer!r}", "your own fake quantizer needs one", "give its class")
        found["quantizer"], found["observer"] = register_pair(fake, observer)
        return TensorRequest(**found)
    if observer is not None:
        found |= _observer(f"{side}_observer", observer)
        extra = said.get(f"{side}_observer_extra_args") or {}
        found["observer_options"] = {**found["observer_options"], **extra}
        if "p" in scheme and found["observer"] == "mse":
            found["observer_options"]["norm"] = float(scheme["p"])
    if fake is not None:
        if fake not in FAKE_QUANTIZERS:
            raise UnknownNameError(
                f"{side}_fakequantize {fake!r}", f"not one of {', '.join(FAKE_QUANTIZERS)}", "use one"
            )
        found["quantizer"] = FAKE_QUANTIZERS[fake]
        # MQBench learns the zero point too, where there is one.
        if fake == "LearnableFakeQuantize" and scheme.get("symmetry") is False:
            found["quantizer"] = "lsq_plus"
        if fake == "NNIEFakeQuantize":
            found["grid"] = "log"
        options = _DOREFA[side] if fake == "DoReFaFakeQuantize" else {}
        found["quantizer_options"] = {**options, **(said.get(f"{side}_fakeq_params") or {})}
    return TensorRequest(**found)


def _observer(key: str, name: Any) -> dict[str, Any]:
    if name not in OBSERVERS:
        raise UnknownNameError(f"{key} {name!r}", f"not one of {', '.join(OBSERVERS)}", "use one of these")
    observer, options = OBSERVERS[name]
    return {"observer": observer, "observer_options": dict(options)}
