"""A network of whole sequences as one of further words: attention reads keys and values of earlier ones from a cache.

Layers, normalizations and activation functions stay the operations that they are, under their names.
GroupQueryAttention takes the place of attention, and rotary positions go into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.ir import Network, Op, Operand, Output, Port, TensorNames
from detent.ir.folding import fold_constants
from detent.targets.onnxruntime_genai.decoder.attention import Attention, Heads, Turn, attentions
from detent.targets.onnxruntime_genai.decoder.by_word import of_any_length
from detent.targets.onnxruntime_genai.decoder.match import NotADecoder
from detent.targets.onnxruntime_genai.decoder.rotary import tables

__all__ = ["PARTS", "PAST", "PRESENT", "Decoder", "with_cache"]

PAST, PRESENT, PARTS = "past_key_values.%d.%s", "present.%d.%s", ("key", "value")
_DOMAIN = "com.microsoft"
_INT32 = 6
_LANES = 16
"""GroupQueryAttention turns multiples of so many numbers of a head."""
_MASKED = -1e4
"""What is added to the score of a word that is not looked at is less than that."""


@dataclass(frozen=True)
class Decoder:
    """`graph` takes `words`, `mask`, `positions` if they are not None, and the cache, and gives `scores` and the cache,
    in which a layer has `kv_heads` heads of `size` numbers. It can look at `context` words."""

    graph: Network
    words: str
    mask: str
    positions: str | None
    scores: str
    layers: int
    heads: int
    kv_heads: int
    size: int
    context: int


def with_cache(graph: Network, config: Mapping[str, Any]) -> Decoder | None:
    """The decoder of a language model of transformers; NotADecoder if it has none, and None if it gives no scores of
    words for each word.

    The network is looked at, not the family of its model: each softmax is that of attention that looks back, and every
    other operation computes each word by itself.
    """
    scores, *others = graph.outputs
    if others or len(scores.shape or ()) != 3 or (scores.shape or (None,))[-1] != config.get("vocab_size"):
        return None
    words, mask = _inputs(graph)
    found = list(attentions(graph))
    if not found:
        raise NotADecoder("it has no attention")
    if len({(one.query.count, one.key.count, one.key.size) for one in found}) > 1:
        raise NotADecoder("its layers have heads of several sizes")
    batch, length = graph.inputs[words].shape
    context = _context(config)
    if not isinstance(length, int) or length > context:
        raise NotADecoder(f"it is deployed for {length} words, and config.json says {context} at most")
    for name in dict.fromkeys(one.mask for one in found):
        _require_looking_back(graph, name, words, mask, length)
    rewrite = _Rewrite(graph, mask or "attention_mask", config, context)
    ops = rewrite.ops(found)
    caches = [(layer, part) for layer in range(len(found)) for part in PARTS]
    presents = (Output(PRESENT % one, Operand(PRESENT % one)) for one in caches)
    cached = replace(
        graph,
        outputs=(replace(scores, shape=(batch, "words", *(scores.shape or ())[2:])), *presents),
        ops=ops,
        constants=rewrite.constants,
        domains={**graph.domains, _DOMAIN: 1},
        shapes={},
        dtypes={},
    ).pruned()
    cached = of_any_length(cached, graph.shapes, words, starts=rewrite.starts, ends=rewrite.made)
    heads, kv, size = found[0].query.count, found[0].key.count, found[0].key.size
    past = Port("float32", (batch, kv, "past_words", size))
    ports = {words: Port("int64", (batch, "words")), rewrite.mask: Port("int64", (batch, "all_words"))}
    if rewrite.positions is not None:
        ports[rewrite.positions] = Port("int64", (batch, "words"))
    ports |= {PAST % one: past for one in caches}
    more = {read.tensor for op in cached.ops for read in op.reads} & (graph.inputs.keys() - ports.keys())
    if more:
        raise NotADecoder(f"it reads {', '.join(sorted(more))} beside words and their mask")
    cached = replace(cached, inputs=ports)
    return Decoder(cached, words, rewrite.mask, rewrite.positions, scores.name, len(found), heads, kv, size, context)


def _inputs(graph: Network) -> tuple[str, str | None]:
    """The input of token ids, which rows of a table are taken by, and the other one."""
    ids = [op.input_names[1] for op in graph.ops if op.type == "Gather" and op.input_names[1] in graph.inputs]
    words = next((name for name in ids if len(graph.inputs[name].shape) == 2), None)
    others = [name for name in graph.inputs if name != words]
    if words is None or len(others) > 1 or any(graph.inputs[name].dtype != "int64" for name in others):
        raise NotADecoder(f"its inputs are {', '.join(graph.inputs)}, not token ids and their mask")
    return words, next(iter(others), None)


def _context(config: Mapping[str, Any]) -> int:
    """Up to a sliding window, there is none."""
    most = config.get("max_position_embeddings")
    if not isinstance(most, int):
        raise NotADecoder("config.json has no max_position_embeddings")
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    slides = config.get("use_sliding_window", True) and (kinds is None or "sliding_attention" in kinds)
    return min(most, int(window)) if window and slides else most


def _require_looking_back(graph: Network, mask: str, words: str, given: str | None, length: int) -> None:
    """What is added to the scores of a sequence without padding must hide later words and nothing else."""
    ones = {name: np.ones((1, length), np.int64) for name in (words, given) if name is not None}
    constants = {**graph.constants, **ones, words: np.zeros((1, length), np.int64)}
    part = replace(graph, inputs={}, outputs=(Output(mask, Operand(mask)),), constants=constants).pruned()
    found = fold_constants(part, {name: array.shape for name, array in ones.items()}).constants.get(mask)
    if found is None:
        raise NotADecoder(f"{mask}, which is added to scores, depends on more than the mask")
    shown = np.broadcast_to(found, (1, 1, length, length))[0, 0]
    back = np.tril(np.ones((length, length), bool))
    if (shown[back] != 0).any() or (shown[~back] > _MASKED).any():
        raise NotADecoder(f"{mask}, which is added to scores, is not that of words that look back at all before them")


class _Rewrite:
    """GroupQueryAttention in place of what `attentions` found.

    - `starts`: the tensors that the operations which are made read, and which of their axes must be words.
    - `made`: the names of these operations.
    """

    def __init__(self, graph: Network, mask: str, config: Mapping[str, Any], context: int):
        tensors = (name for op in graph.ops for name in (op.name, *op.outputs))
        self._graph, self._config, self._context = graph, config, context
        self._names = TensorNames([*graph.inputs, *graph.constants, *tensors], ".")
        self.mask = mask if mask in graph.inputs else self._names.unique(mask)
        self.positions: str | None = None
        self.constants: dict[str, npt.NDArray[Any]] = dict(graph.constants)
        self.starts: dict[str, int] = {}
        self.made: set[str] = set()
        self._tables: dict[Turn, tuple[Operand, Operand]] = {}

    def ops(self, found: Sequence[Attention]) -> tuple[Op, ...]:
        places = {one.ends.name: (layer, one) for layer, one in enumerate(found)}
        ops = list(self._lengths())
        last, total = (Operand(ops[at].outputs[0]) for at in (2, 5))
        self.made.update(op.name for op in ops)
        for op in self._graph.ops:
            if op.name not in places:
                ops.append(op)
                continue
            ops += (own := list(self._attention(*places[op.name], last, total)))
            self.made.update(one.name for one in own)
        return tuple(ops)

    def _constant(self, name: str, array: npt.NDArray[Any]) -> Operand:
        own = self._names.unique(name)
        self.constants[own] = array
        return Operand(own)

    def _op(self, kind: str, name: str, inputs: Sequence[Operand | None], domain: str = "", **attributes: Any) -> Op:
        own = self._names.unique(name)
        return Op(kind, own, tuple(inputs), (own,), attributes, domain)

    def _lengths(self) -> Iterator[Op]:
        """The place of the last word of each sequence (third), and how many words there are (last), as int32."""
        mask, one = Operand(self.mask), self._constant("one", np.array([1], np.int64))
        yield (count := self._op("ReduceSum", "mask.count", (mask, one), keepdims=0))
        yield (last := self._op("Sub", "mask.last", (Operand(count.outputs[0]), one)))
        yield self._op("Cast", "mask.last.int32", (Operand(last.outputs[0]),), to=_INT32)
        yield (shape := self._op("Shape", "mask.shape", (mask,)))
        at = self._constant("at_one", np.array(1, np.int64))
        yield (words := self._op("Gather", "mask.words", (Operand(shape.outputs[0]), at), axis=0))
        yield self._op("Cast", "mask.words.int32", (Operand(words.outputs[0]),), to=_INT32)

    def _attention(self, layer: int, one: Attention, last: Operand, total: Operand) -> Iterator[Op]:
        past = [Operand(PAST % (layer, part)) for part in PARTS]
        attributes: dict[str, Any] = {"num_heads": one.query.count, "kv_num_heads": one.key.count, "scale": one.scale}
        if one.softcap:
            attributes["softcap"] = one.softcap
        flat = []
        for heads in (one.query, one.key, one.value):
            ops = list(self._flat(heads))
            yield from ops
            flat.append(Operand(ops[-1].outputs[0] if ops else heads.tensor))
        turn: tuple[Operand, ...] = () if one.turn is None else self._turn(one.turn)
        if one.turn is not None and one.turn.width % _LANES:
            for at, heads in enumerate((one.query, one.key)):
                yield (turned := self._turned(flat[at], heads, one.turn.width, turn))
                flat[at] = Operand(turned.outputs[0])
            turn = ()
        yield Op(
            "GroupQueryAttention",
            one.ends.name,
            (*flat, *past, last, total, *turn),
            (*one.ends.outputs, *(PRESENT % (layer, part) for part in PARTS)),
            {**attributes, "do_rotary": int(bool(turn))},
            _DOMAIN,
        )

    def _flat(self, heads: Heads) -> Iterator[Op]:
        """Heads side by side, (batch, words, heads * size)."""
        self.starts[heads.tensor] = 1 if heads.flat else 2
        if heads.flat:
            return
        yield (swapped := self._op("Transpose", f"{heads.tensor}.by_word", (Operand(heads.tensor),), perm=[0, 2, 1, 3]))
        wide = self._constant(f"{heads.tensor}.sizes", np.array([0, 0, heads.count * heads.size], np.int64))
        yield self._op("Reshape", f"{heads.tensor}.flat", (Operand(swapped.outputs[0]), wide))

    def _turned(self, flat: Operand, heads: Heads, width: int, turn: Sequence[Operand]) -> Op:
        """By an operation of its own, of a width that attention does not turn."""
        self.positions = self.positions or self._names.unique("position_ids")
        attributes: dict[str, Any] = {"num_heads": heads.count}
        if width != heads.size:
            attributes["rotary_embedding_dim"] = width
        reads = (flat, Operand(self.positions), *turn)
        return self._op("RotaryEmbedding", f"{heads.tensor}.turned", reads, _DOMAIN, **attributes)

    def _turn(self, turn: Turn) -> tuple[Operand, ...]:
        """The tables that hold as many rows as words can be looked at; layers share them."""
        if turn not in self._tables:
            known = [self._graph.constants[name].reshape(-1, turn.width) for name in (turn.cos, turn.sin)]
            made = tables(self._config, known[0], known[1], self._context)
            same = (held for held in self._tables.values() if np.array_equal(self.constants[held[0].tensor], made[0]))
            own = next(same, None)
            self._tables[turn] = own or (self._constant("cos_cache", made[0]), self._constant("sin_cache", made[1]))
        return self._tables[turn]
