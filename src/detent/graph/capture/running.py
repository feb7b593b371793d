"""Running a model on its example inputs, and recording shapes and types while it runs."""

from __future__ import annotations

import copy
import inspect
import io
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from detent.errors import CaptureError, DetentError
from detent.graph.decompositions.table import without_fast_path
from detent.graph.runner import explain_error

__all__ = [
    "Inputs",
    "Recorder",
    "arguments_of",
    "brief",
    "calling_line",
    "explained",
    "flat",
    "fresh",
    "join",
    "line_of",
    "line_text",
    "map_tensors",
    "record",
    "run",
    "same",
    "shapes",
]


class Inputs(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Recorder(fx.Interpreter):
    """Runs a graph and notes of every value whether it is a real tensor, its shape and its type."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["is_real"] = isinstance(value, Tensor) and value.is_floating_point()
        if isinstance(value, Tensor):
            n.meta["shape"], n.meta["dtype"] = tuple(value.shape), value.dtype
        elif isinstance(value, (list, tuple)) and value and all(isinstance(part, Tensor) for part in value):
            n.meta["is_real"] = all(part.is_floating_point() for part in value)
            n.meta["parts"] = len(value)
        return value


def record(runner: fx.GraphModule, module: nn.Module, inputs: Inputs) -> Any:
    bound = arguments_of(module, fresh(inputs))
    values: list[Any] = []
    for node in runner.graph.nodes:
        if node.op != "placeholder":
            continue
        name = str(node.target)
        if name.startswith("**"):
            values.append(bound.get(name[2:], {}))
        elif name.startswith("*"):
            values.extend(bound.get(name[1:], ()))
        else:
            values.append(bound[name] if name in bound else node.args[0])
    with torch.no_grad():
        return Recorder(runner).run(*values)


def arguments_of(module: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """The argument of each parameter of forward; for `*args` and `**kwargs` also each one, as `args_0` and by name."""
    signature = inspect.signature(module.forward)
    bound = signature.bind_partial(*inputs.args, **inputs.kwargs).arguments
    found = dict(bound)
    for name, value in bound.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            found.update((f"{name}_{index}", part) for index, part in enumerate(value))
        elif signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
    return found


def run(module: nn.Module, inputs: Inputs) -> Any:
    given = fresh(inputs)
    captured_stderr = io.StringIO()  # fx prints a traceback of its own before it raises
    try:
        with torch.no_grad(), redirect_stderr(captured_stderr), without_fast_path():
            result = module(*given.args, **given.kwargs)
        sys.stderr.write(captured_stderr.getvalue())
        return result
    except DetentError:
        raise
    except Exception as error:
        raise CaptureError(
            f"run the model on example inputs ({shapes(inputs)})",
            _found_in(module, error),
            _misnamed(error) or "give example inputs that the float model takes",
        ) from error


def _misnamed(error: Exception) -> str | None:
    """Of code that reads a part by a name that its module has not: the line, and the nearest name that it has."""
    owner: Any = getattr(error, "obj", None)
    name = getattr(error, "name", None)
    if not isinstance(error, AttributeError) or not isinstance(owner, nn.Module) or not name:
        return None
    calls = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    code, line = next(one for one in reversed(calls) if one[0].co_name != "__getattr__")
    names = {known.lower(): known for known, _ in (*owner.named_children(), *owner.named_parameters(recurse=False))}
    near = get_close_matches(name.lower(), names, n=1)
    remedy = f"did you mean {names[near[0]]!r}?" if near else f"give {type(owner).__name__} a part of that name"
    return f"line {line} of {code.co_filename}: {remedy}"


def _found_in(model: nn.Module, error: Exception) -> str:
    """The error message, and the innermost module that was running."""
    paths = {module: path for path, module in model.named_modules() if path}
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
    inner = [held for held in frames if isinstance(held.get("self"), nn.Module) and held["self"] in paths]
    if not inner:
        return f"{type(error).__name__}: {brief(error)}"
    module = inner[-1]["self"]
    found, _ = explain_error(error, module, inner[-1].get("input"))
    return f"in {paths[module]!r} ({type(module).__name__}): {found}"


def fresh(inputs: Inputs) -> Inputs:
    """Copies, because a model may modify its inputs."""
    return Inputs(copy.deepcopy(inputs.args), copy.deepcopy(inputs.kwargs))


def same(left: Any, right: Any) -> bool:
    pairs = zip(flat(left), flat(right), strict=False)
    return all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) if isinstance(a, Tensor) else True
        for a, b in pairs
        if isinstance(a, Tensor) == isinstance(b, Tensor)
    )


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for part in value.values():
            yield from flat(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from flat(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for part in fields(value):
            yield from flat(getattr(value, part.name))
    else:
        yield value


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same structure with every tensor changed, in the order of `flat`; what holds them keeps its type."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{part.name: map_tensors(getattr(value, part.name), change) for part in fields(value)})
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)
        for key, part in value.items():
            changed[key] = map_tensors(part, change)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(part, change) for part in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(part, change) for part in value)
    return value


def shapes(inputs: Inputs) -> str:
    described = [str(tuple(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for v in inputs.args]
    described += [f"{name}=..." for name in inputs.kwargs]
    return ", ".join(described)


def brief(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def explained(error: BaseException) -> str:
    """What was found, and the line of the model's code."""
    found, line = error.found if isinstance(error, CaptureError) else brief(error), line_of(error)
    return f"{found} ({line})" if line else found


def line_of(error: BaseException) -> str:
    """The line of the model's code in which `error` was raised; empty if there is none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if _is_of_model(frame.f_code.co_filename):
            return line_text((frame.f_code.co_filename, line))
    return ""


def calling_line() -> tuple[str, int] | None:
    """The file and line of the model's code that is running; None if there is none."""
    calls = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(None))
    return next((call for call in calls if _is_of_model(call[0])), None)


def line_text(place: tuple[str, int]) -> str:
    file, line = place
    return f"line {line} of {file}: {linecache.getline(file, line).strip()}"


@cache
def _is_of_model(file: str) -> bool:
    """Whether code belongs neither to torch nor to Detent, and is in a readable file."""
    torchs, ours = Path(torch.__file__).parent, Path(__file__).parent.parent
    return Path(file).exists() and torchs not in Path(file).parents and ours not in Path(file).parents


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
