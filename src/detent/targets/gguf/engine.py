"""llama.cpp on `model.gguf`, by the C interface (llama.h) that the library inside of the package xllamacpp exports.

That package's own interface is a server, which gives chances of words and no tensors.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from detent.errors import EngineError
from detent.files import temporary_folder
from detent.ir import Op, Package, StoredAs
from detent.targets.base import Engine, Placement
from detent.targets.base.ports import given
from detent.targets.gguf.architecture import heads_of, name_of, split_halves
from detent.targets.gguf.arithmetic import is_product
from detent.targets.gguf.container import read, write
from detent.targets.gguf.file import FILE, SIZES, as_float

__all__ = ["LlamaCpp"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]

_PRODUCTS = {
    "attn_q": ("attn_norm", "Qcur"),
    "attn_k": ("attn_norm", "Kcur"),
    "attn_v": ("attn_norm", "Vcur"),
    "attn_output": ("kqv_out", "attn_out"),
    "ffn_gate": ("ffn_norm", "ffn_gate"),
    "ffn_up": ("ffn_norm", "ffn_up"),
    "ffn_down": ("ffn_swiglu", "ffn_out"),
    "output": ("result_norm", "result_output"),
}
"""Of each product, what llama.cpp calls the tensors that it takes in and gives."""

_EVALUATE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class _Parameters(ctypes.Structure):
    """Room for a struct that is handed over by value, and more: its end is not looked at."""

    _fields_ = (("content", ctypes.c_char * 1024),)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    )


_DEFAULTS = struct.pack("<9I5i8f", 512, 2048, 512, 1, 0, 0, 1, 4, 4, 0, *[-1] * 4, 0, 0, *[-1.0] * 4, 0, -1.0)
"""How the parameters of a context begin unless they are changed, where their layout is the one that is known."""
_CALLBACK, _KEYS, _VALUES, _FLASH = 88, 104, 108, 52  # places in it


class LlamaCpp(Engine):
    """A context with a cache of float32 and without fused attention, so that only products of weights round."""

    name = "llama_cpp"
    extra = "gguf"
    arithmetic = "gguf"

    def __init__(self, package: Package, *, threads: int, plain: bool):
        self._package, self._threads, self._plain = package, threads, plain
        content = package.path(FILE).read_bytes()
        container = read(content, SIZES)
        self._values = container.values
        self._words = int(self._values[f"{self._values['general.architecture']}.vocab_size"])
        library = _library()
        with temporary_folder() as folder:
            path = package.path(FILE)
            if plain:
                path = Path(folder) / FILE
                path.write_bytes(write(as_float(container)))
            self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        if not self._model:
            raise EngineError(f"load {FILE}", "llama.cpp does not take it", "deploy the model again")
        weakref.finalize(self, library.llama_model_free, self._model)

    @classmethod
    def version(cls) -> str | None:
        try:
            return metadata.version("xllamacpp") if find_spec("xllamacpp") else None
        except metadata.PackageNotFoundError:
            return None

    @classmethod
    def load(cls, package: Package, *, threads: int = 1, as_float: bool = False) -> LlamaCpp:
        cls.require()
        return cls(package, threads=threads, plain=as_float)

    def run(self, inputs: Arrays) -> dict[str, Array]:
        logits, _ = self._compute(inputs, {})
        return {self._package.graph.outputs[0].name: logits}

    def explain(self) -> list[Placement]:
        graph, placed = self._package.graph, []
        for op in graph.ops:
            integer = not self._plain and is_product(graph, op)
            placed.append(Placement(op.name, op.type, "integer" if integer else "float"))
        return placed

    def tensors(self, inputs: Arrays) -> dict[str, Array]:
        """Inputs and outputs of weight products, and rows of the embedding table."""
        if self._plain:
            return {}
        wanted: dict[str, dict[str, int | None]] = {}  # llama.cpp's name -> ONNX names, and the heads of its rows
        for op in self._package.graph.ops:
            own = self._own(op)
            if own == "token_embd" and op.type == "Gather":
                wanted.setdefault("embd", {})[op.outputs[0]] = None
            elif own is not None and op.type in ("MatMul", "Gemm"):
                part = own.rpartition(".")[2]
                layer = f"-{own.split('.')[1]}" if "." in own else ""
                takes, gives = (f"{name}{layer}" for name in _PRODUCTS[part])
                assert op.inputs[0] is not None
                wanted.setdefault(takes, {})[op.inputs[0].tensor] = None
                wanted.setdefault(gives, {})[op.outputs[0]] = heads_of(f"{own}.weight", self._values)
        _, seen = self._compute(inputs, wanted)
        return {
            name: array if heads is None else np.moveaxis(split_halves(np.moveaxis(array, -1, 0), heads), 0, -1)
            for own, array in seen.items()
            for name, heads in wanted[own].items()
        }

    def _own(self, op: Op) -> str | None:
        """llama.cpp's name for the weight that an operation reads."""
        stored = self._package.graph.stored_as
        for read_ in op.reads:
            if read_.tensor in self._package.graph.constants:
                parameter = stored.get(read_.tensor, StoredAs(read_.tensor)).parameter
                own = name_of(parameter.rpartition(".")[0])
                if own is not None:
                    return own
        return None

    def _compute(self, inputs: Arrays, wanted: Mapping[str, Any]) -> tuple[Array, dict[str, Array]]:
        """The scores of words after each token, and tensors on the way by llama.cpp's names."""
        library, ports = _library(), self._package.graph.inputs
        ids, *masks = given(ports, inputs, engine=self.name).values()
        if any((mask != 1).any() for mask in masks):
            raise EngineError(f"run on {self.name}", "the mask leaves tokens out", "give sequences without padding")
        if ids.size and not (ids.min() >= 0 and ids.max() < self._words):
            raise EngineError(f"run on {self.name}", f"a token is not one of {self._words}", "give known token ids")
        length = ids.shape[1]
        tap = _Tap(library, set(wanted))
        context = library.llama_init_from_model(self._model, self._parameters(library, length, tap))
        if not context:
            raise EngineError(
                f"run on {self.name}", f"it cannot create a context of {length} tokens", "give shorter sequences"
            )
        logits, rows = [], []
        try:
            for row in ids.astype(np.int32):
                library.llama_memory_clear(library.llama_get_memory(context), True)
                tap.seen = {}
                tokens, every = np.ascontiguousarray(row), np.ones(length, np.int8)
                batch = _Batch(length, tokens.ctypes.data, None, None, None, None, every.ctypes.data)
                if library.llama_decode(context, batch) != 0:
                    raise EngineError(f"run on {self.name}", "llama.cpp could not compute it", "see its version")
                made = np.ctypeslib.as_array(library.llama_get_logits(context), (length, self._words))
                logits.append(made.copy())
                rows.append(tap.seen)
        finally:
            library.llama_free(context)
        shown = {name: np.stack([one[name] for one in rows]) for name in rows[0]} if rows else {}
        return np.stack(logits), {name: array.reshape(len(rows), length, -1) for name, array in shown.items()}

    def _parameters(self, library: Any, length: int, tap: _Tap) -> _Parameters:
        made: _Parameters = library.llama_context_default_params()
        room: Any = memoryview(made).cast("B")
        if bytes(room[: len(_DEFAULTS)]) != _DEFAULTS:
            found = f"xllamacpp {self.version()} has other parameters than those that are known"
            raise EngineError(f"run on {self.name}", found, "install xllamacpp 2026.10")
        size = -(-length // 256) * 256
        room[:36] = struct.pack("<9I", size, size, size, 1, 0, 0, 0, self._threads, self._threads)
        for place, value in ((_FLASH, 0), (_KEYS, 0), (_VALUES, 0)):
            room[place : place + 4] = struct.pack("<i", value)
        if tap.names:
            room[_CALLBACK : _CALLBACK + 8] = struct.pack("<Q", tap.address)
        return made


class _Tap:
    """Keeps tensors by name while llama.cpp computes them; of several with one name, the product."""

    def __init__(self, library: Any, names: set[str]):
        self.names, self.seen = names, dict[str, Array]()
        self._library, self._called = library, _EVALUATE(self._evaluate)
        self.address = ctypes.cast(self._called, ctypes.c_void_p).value

    def _evaluate(self, tensor: int, ask: bool, user: int | None) -> bool:
        """Whether it is wanted, and then, when it is computed, that it goes on."""
        del user
        library = self._library
        name = library.ggml_get_name(tensor).decode()
        if ask:
            return name in self.names and name not in self.seen
        values = np.empty(library.ggml_nelements(tensor), np.float32)
        if library.ggml_nbytes(tensor) == values.nbytes:
            library.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
            self.seen[name] = values
        return True


def _say_nothing(level: int, text: bytes, user: int | None) -> None:
    del level, text, user


_QUIET = _LOG(_say_nothing)  # kept, because the library calls it later


@cache
def _library() -> Any:
    """The library of the package, with the types of the functions that are called."""
    found = find_spec("xllamacpp")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    paths = [path for folder in folders for path in folder.glob("xllamacpp.*") if path.suffix in (".so", ".pyd")]
    try:
        library = ctypes.CDLL(str(paths[0]))
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for name, returned, taken in (
            ("llama_backend_init", None, []),
            ("llama_log_set", None, [_LOG, pointer]),
            ("llama_model_default_params", _Parameters, []),
            ("llama_context_default_params", _Parameters, []),
            ("llama_model_load_from_file", pointer, [text, _Parameters]),
            ("llama_model_free", None, [pointer]),
            ("llama_init_from_model", pointer, [pointer, _Parameters]),
            ("llama_free", None, [pointer]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
            ("llama_decode", ctypes.c_int32, [pointer, _Batch]),
            ("llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer]),
            ("ggml_get_name", text, [pointer]),
            ("ggml_nelements", ctypes.c_int64, [pointer]),
            ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_backend_tensor_get", None, [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = returned, taken
    except (AttributeError, IndexError, OSError) as error:
        raise EngineError(
            "run on llama_cpp", f"the library of xllamacpp: {error}", "install xllamacpp 2026.10"
        ) from None
    library.llama_log_set(_QUIET, None)
    library.llama_backend_init()
    return library
