"""The quantization of one tensor: the recipe's request, completed with the target's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from detent.errors import SchemeError
from detent.graph import QuantizedTensor
from detent.numerics import GRIDS, Granularity, Pairs, PerChannel, PerGroup, PerTensor, Scheme
from detent.observers import OBSERVERS
from detent.planning.supported_schemes import SupportedSchemes
from detent.planning.view import GraphView
from detent.quantizers import QUANTIZERS, Role, plain_quantizer
from detent.recipes import Groups, TensorRequest

__all__ = ["Method", "choose", "fixed_range"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A scheme with the quantizer and observer for it."""

    scheme: Scheme
    quantizer: str
    observer: str
    quantizer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    observer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def entry(
        self,
        *,
        tensor: str,
        view: GraphView,
        node: fx.Node,
        role: Role,
        why: str,
        users: tuple[str, ...] = (),
        shares: str | None = None,
        pairs: Pairs | None = None,
    ) -> QuantizedTensor:
        """The Plan's entry for a tensor that is quantized by this method."""
        return QuantizedTensor(
            tensor=tensor,
            region=view.path,
            node=node.name,
            role=role,
            kind=view.kind(node),
            scheme=self.scheme,
            quantizer=self.quantizer,
            observer=self.observer,
            quantizer_options=self.quantizer_options,
            observer_options=self.observer_options,
            why=why,
            users=users,
            shares=shares,
            pairs=pairs,
        )


def choose(
    supported: SupportedSchemes,
    request: TensorRequest,
    *,
    backend: str,
    tensor: str,
    role: Role,
    axis: int,
    negative: bool,
) -> Method:
    """The target's method that meets the request; `SchemeError`, with the alternatives, if there is none.

    `axis` is the channel axis of the tensor; `negative` is whether it may have negative values.
    """
    scheme, taken = _scheme(supported, request, backend=backend, tensor=tensor, axis=axis, negative=negative)
    # Qparams that stay as calibrated: on grids that are no integers, that is what their own method does.
    quantizer = plain_quantizer(scheme.grid) if request.quantizer in (None, "fixed") else str(request.quantizer)
    method = QUANTIZERS[quantizer]
    try:
        method.requires.check(quantizer, scheme)
        observer, options = _observer(request, quantizer, taken, scheme)
    except SchemeError as error:
        raise SchemeError(f"{tensor!r} on {backend!r}: {error.asked}", error.found, error.to_do) from None
    if role not in method.roles:
        roles = " and ".join(method.roles)
        raise SchemeError(f"{quantizer!r} for the {role} {tensor!r}", f"it is a method for {roles}", "choose another")
    return Method(
        scheme=scheme,
        quantizer=quantizer,
        observer=observer,
        quantizer_options=dict(request.quantizer_options) if quantizer == request.quantizer else {},
        observer_options=options,
    )


def fixed_range(supported: SupportedSchemes, low: float, high: float, *, bits: int | None = None) -> Method:
    """A scheme of the target over a range that it fixes, with the target's width unless `bits` are given: nothing is
    measured or learned."""
    having = next((each for each in supported.alternatives if bits in each.bits), supported)
    scheme = _built(having, TensorRequest(bits=bits), axis=0, negative=low < 0)
    return Method(scheme=scheme, quantizer="fixed", observer="fixed", observer_options={"low": low, "high": high})


def _scheme(
    supported: SupportedSchemes, request: TensorRequest, *, backend: str, tensor: str, axis: int, negative: bool
) -> tuple[Scheme, SupportedSchemes]:
    asked, refused = "", []
    for alternative in supported.alternatives:
        if request.grid and GRIDS[request.grid] not in alternative.grids:
            asked = asked or f"{tensor!r} on a grid of kind {request.grid!r} on {backend!r}"
            refused.append(f"grids {' or '.join(kind.__name__ for kind in alternative.grids)}")
            continue
        try:
            scheme = _built(alternative, request, axis=axis, negative=negative)
        except SchemeError as error:
            raise SchemeError(f"{tensor!r} on {backend!r}: {error.asked}", error.found, error.to_do) from None
        limits = alternative.limits(scheme)
        if not limits:
            return scheme, alternative
        asked = asked or f"{tensor!r} as {scheme} on {backend!r}"
        refused.append(", ".join(limits))
    raise SchemeError(asked, f"it has {'; or '.join(dict.fromkeys(refused))}", "change the recipe or the backend")


def _built(supported: SupportedSchemes, request: TensorRequest, *, axis: int, negative: bool) -> Scheme:
    """The requested values, and the first supported one for each that is not requested."""
    kind = GRIDS[request.grid] if request.grid else supported.grids[0]
    bits = request.bits or kind.default_bits(supported.bits)
    symmetric = supported.symmetric[0] if request.symmetric is None else request.symmetric
    signed = _signed(supported, request, symmetric=symmetric, negative=negative)
    narrow = supported.narrow[0] if request.narrow is None else request.narrow
    return Scheme(
        kind.of(bits, signed=signed, narrow=narrow),
        symmetric=symmetric,
        granularity=_granularity(supported, request, axis),
        scale=request.scale or supported.scales[0],
        rounding=request.rounding or supported.roundings[0],
    )


def _signed(supported: SupportedSchemes, request: TensorRequest, *, symmetric: bool, negative: bool) -> bool:
    if isinstance(request.signed, bool):
        return request.signed
    if request.signed == "auto":
        return negative
    if not symmetric:
        return supported.signed[0]
    # With zero point 0, unsigned codes hold no negative number.
    prefers_unsigned = supported.auto_sign or not supported.signed[0]
    return negative or not prefers_unsigned


def _granularity(supported: SupportedSchemes, request: TensorRequest, axis: int) -> Granularity:
    match request.granularity:
        case Groups(per_group=size):
            return PerGroup(1, size)
        case "per_tensor":
            wanted: type[Granularity] = PerTensor
        case "per_channel":
            wanted = PerChannel
        case _:
            wanted = supported.granularities[0]
    if wanted is PerGroup:
        return PerGroup(1, (supported.group_sizes or (32,))[0])
    return PerChannel(axis) if wanted is PerChannel else PerTensor()


def _observer(
    request: TensorRequest, quantizer: str, supported: SupportedSchemes, scheme: Scheme
) -> tuple[str, Mapping[str, Any]]:
    """The requested observer; otherwise the default of the quantizer if it suits the scheme; otherwise the target's."""
    if request.observer:
        OBSERVERS[request.observer].requires.check(request.observer, scheme)
        return request.observer, dict(request.observer_options)
    method = QUANTIZERS[quantizer]
    target = (supported.observer, supported.observer_options)
    own = method.observer_of(scheme, target)
    choices = [*([] if own == target else [own]), target, ("minmax", {})]
    for name, options in choices:
        try:
            OBSERVERS[name].requires.check(name, scheme)
        except SchemeError:
            continue
        return name, options
    names = ", ".join(name for name, _ in choices)
    raise SchemeError(f"an observer for {scheme}", f"none of {names} takes it", "name one in the recipe")
