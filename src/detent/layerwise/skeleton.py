"""A causal language model of transformers without weights, which are read from its folder a part at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from detent.errors import CaptureError, DeployError, refusing
from detent.frontends.hugging_face import named_class

__all__ = ["Batch", "Entered", "LayerCall", "Skeleton"]

_TO_DO = "use --whole, which captures the model as one graph"


class Batch(NamedTuple):
    """Token ids and their mask, both (batch, length)."""

    ids: Tensor
    mask: Tensor


class LayerCall(NamedTuple):
    """What a decoder layer is called with beside the hidden states: masks and positions."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Entered(NamedTuple):
    """What the first layer takes in, and how each layer is called."""

    hidden: Tensor
    calls: list[LayerCall]


class Skeleton:
    """The decoder layers are in `layers`, under the names `layer_names`, and have no weights; nor has the rest, which
    is read for the time of `enter` or `leave`. A layer is a function of hidden states and of what `enter` says."""

    def __init__(self, folder: Path):
        self._asked = f"load {folder} a layer at a time"
        kind, self.config = named_class(folder)
        with refusing(CaptureError, self._asked, _TO_DO):
            from transformers import AutoModelForCausalLM

            with _EmptyOnMeta():
                self._model = AutoModelForCausalLM.from_config(
                    self.config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
                ).eval()
            if type(self._model) is not kind:
                raise CaptureError(self._asked, f"its class is {kind.__name__}, no causal language model", _TO_DO)
            self._files = _files_of(folder)
            self._place = self._find_layers()
            held = self._model.get_submodule(self._place)
            self.layers: list[nn.Module] = list(held.children())
            self.layer_names = [f"{self._place}.{name}" for name, _ in held.named_children()]
            self.head_name = self._find_head()
        self._same = _same_names(self._model)
        self._parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}

    def linear_layers(self) -> list[str]:
        """The names of all of them, in the order of the parts."""
        found = [name for name, part in self._model.named_modules() if isinstance(part, nn.Linear)]
        return sorted(found, key=lambda name: name == self.head_name)

    def rest(self) -> list[str]:
        """The names of the tensors that are in no decoder layer, one of each that has two."""
        inside = f"{self._place}."
        groups = dict.fromkeys(
            self._same.get(name, (name,)) for name in self._model.state_dict() if not name.startswith(inside)
        )
        return [next((name for name in names if name in self._files), names[0]) for names in groups]

    def stored(self, name: str) -> Tensor:
        """A tensor of the checkpoint, in its own type."""
        held = next((one for one in self._same.get(name, (name,)) if one in self._files), None)
        if held is None:
            raise CaptureError(self._asked, f"the checkpoint has no tensor {name}", _TO_DO)
        with refusing(CaptureError, self._asked, _TO_DO), safe_open(self._files[held], "pt") as file:
            tensor: Tensor = file.get_tensor(held)
        self._require_finite(name, tensor)
        return tensor

    def layer(self, index: int) -> nn.Module:
        """A decoder layer, a copy with its weights: these are let go with the copy."""
        return self._load(copy.deepcopy(self.layers[index]), self.layer_names[index])

    def head(self) -> nn.Module:
        """The last linear layer, a copy with its weights."""
        return self._load(copy.deepcopy(self._model.get_submodule(self.head_name)), self.head_name)

    @torch.no_grad()
    def enter(self, batches: Sequence[Batch]) -> list[Entered]:
        """The way from token ids to the first layer, for each batch."""
        self._load_rest()
        return [self._enter(batch) for batch in batches]

    @torch.no_grad()
    def leave(
        self, batches: Sequence[Batch], hidden: Sequence[Tensor], head: Callable[[int, Tensor], Tensor]
    ) -> Iterator[Tensor]:
        """The way from what the last layer gives to the scores of words; `head` gets the number of a batch and what
        the last linear layer takes in, and computes it."""
        self._load_rest()
        for index, (batch, states) in enumerate(zip(batches, hidden, strict=True)):
            layers = [_StandIn(layer, _Given(states)) for layer in self.layers]
            yield self._run(batch, layers, partial(head, index))

    def _require_finite(self, name: str, tensor: Tensor) -> None:
        """Parameters; a buffer may be infinite, as masks are."""
        if name in self._parameters and tensor.is_floating_point():
            count = int((~tensor.float().isfinite()).sum())
            if count:
                found = f"the parameter {name} has {count:,} of {tensor.numel():,} numbers that are infinite or NaN"
                raise DeployError(self._asked, found, "get the checkpoint again, or train it again")

    def _load(self, part: nn.Module, name: str) -> nn.Module:
        """`part` with its weights, in float32."""
        state = {key: self.stored(f"{name}.{key}" if name else key) for key in part.state_dict()}
        floats = {key: value.float() if value.is_floating_point() else value for key, value in state.items()}
        with refusing(CaptureError, self._asked, _TO_DO):
            part.load_state_dict(floats, assign=True)
        return part.requires_grad_(False)

    def _enter(self, batch: Batch) -> Entered:
        seen: list[Tensor] = []
        calls: list[LayerCall] = []

        def note(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            seen.append(hidden)
            calls.append(LayerCall(args, kwargs))
            return hidden

        # The scores are not asked for: one word in place of thousands.
        self._run(batch, [_StandIn(layer, note) for layer in self.layers], lambda x: x)
        return Entered(seen[0], calls)

    def _run(self, batch: Batch, layers: Sequence[nn.Module], head: Callable[[Tensor], Tensor]) -> Tensor:
        owner, _, name = self._place.rpartition(".")
        head_owner, _, head_name = self.head_name.rpartition(".")
        holder, outer = self._model.get_submodule(owner), self._model.get_submodule(head_owner)
        kept, last = getattr(holder, name), getattr(outer, head_name)
        setattr(holder, name, nn.ModuleList(layers))
        setattr(outer, head_name, _StandIn(last, head))
        try:
            with refusing(CaptureError, self._asked, _TO_DO):
                made = self._model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False, return_dict=True)
        finally:
            setattr(holder, name, kept)
            setattr(outer, head_name, last)
        logits: Tensor = made.logits
        return logits

    def _load_rest(self) -> None:
        if all(not tensor.is_meta for tensor in self._rest().values()):
            return
        floats = {name: self.stored(name).float() for name in self._rest()}
        with refusing(CaptureError, self._asked, _TO_DO):
            self._model.load_state_dict(floats, assign=True, strict=False)

    def _rest(self) -> Mapping[str, Tensor]:
        """What is in no layer, and not in the head, which `leave` is given."""
        outside = (f"{self._place}.", f"{self.head_name}.")
        state = self._model.state_dict()
        return {name: tensor for name, tensor in state.items() if not name.startswith(outside)}

    def _find_layers(self) -> str:
        count = self.config.get_text_config().num_hidden_layers
        lists: list[str] = [
            name for name, part in self._model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count
        ]
        outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
        if len(outer) != 1:
            found = f"{len(outer)} lists of {count} layers in {type(self._model).__name__}"
            raise CaptureError(self._asked, found, _TO_DO)
        return outer[0]

    def _find_head(self) -> str:
        head = self._model.get_output_embeddings()
        names: list[str] = [name for name, part in self._model.named_modules() if part is head]
        if not isinstance(head, nn.Linear) or not names:
            raise CaptureError(self._asked, f"{type(self._model).__name__} has no linear layer at its end", _TO_DO)
        return names[0]


class _StandIn(nn.Module):
    """In the place of a module, whose attributes it has, but for what it computes."""

    def __init__(self, stands_for: nn.Module, do: Callable[..., Tensor]):
        super().__init__()
        self._do, self._stands_for = do, [stands_for]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._do(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_stands_for"][0], name)


class _Given:
    """A function that gives one tensor, whatever it is called with."""

    def __init__(self, value: Tensor):
        self._value = value

    def __call__(self, *_: Any, **__: Any) -> Tensor:
        return self._value


class _EmptyOnMeta(TorchFunctionMode):
    """Parameters that layers make to be filled later take no memory; tables of positions are computed as always."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.empty:
            given["device"] = "meta"
        return func(*args, **given)


def _files_of(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    return found


def _same_names(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """For each name of a tensor that has several, as the table of words and the last layer may: all of them."""
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        by_tensor.setdefault(id(tensor), []).append(name)
    return {name: tuple(names) for names in by_tensor.values() if len(names) > 1 for name in names}
