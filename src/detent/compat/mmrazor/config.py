"""OpenMMLab's Python-file configs, read by parsing: nothing in them is executed or imported."""

from __future__ import annotations

import ast
import copy
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detent.errors import RecipeError, refusing
from detent.files import read_bytes

__all__ = ["Config", "merged"]

_MOST = 1024 * 1024  # bytes

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class Config(dict[str, Any]):
    """What a config file assigns, with its `_base_` files merged in; entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @classmethod
    def fromfile(
        cls, path: str | os.PathLike[str], scopes: Mapping[str, str | os.PathLike[str]] | None = None
    ) -> Config:
        """Read a file. `scopes` says in which folder the configs of a package are: `mmcls::resnet/x.py`."""
        # An operator may raise anything of what a file gives it: 'a' - 1.
        with refusing(RecipeError, f"read the config {path}", "give a file of Python assignments"):
            return cls(_read(Path(path), dict(scopes or {}), ()))


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`: dicts are merged key by key, unless `_delete_` says that the base goes.

    >>> merged({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}}), merged({"a": {"x": 1}}, {"a": {"_delete_": True, "z": 2}})
    ({'a': {'x': 3, 'y': 2}}, {'a': {'z': 2}})
    """
    result = dict(copy.deepcopy(dict(base)))
    for key, value in over.items():
        if isinstance(value, Mapping):
            under = result.get(key)
            keeps = isinstance(under, Mapping) and not value.get("_delete_", False)
            plain = {name: part for name, part in value.items() if name != "_delete_"}
            result[key] = merged(under if keeps and isinstance(under, Mapping) else {}, plain)
        else:
            result[key] = value
    return result


def _read(path: Path, scopes: dict[str, Any], within: tuple[Path, ...]) -> dict[str, Any]:
    if path in within:
        raise RecipeError(f"read {path}", "it is its own _base_", "remove one of the two")
    try:
        tree = ast.parse(read_bytes(path, most=_MOST).decode(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(f"read the config {path}", str(error), "give a file of Python assignments") from None
    own: dict[str, Any] = {}
    base: dict[str, Any] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found = _value(value, {**base, **own, "_base_": base}, path)
            case ast.Assign(targets=[(ast.Attribute() | ast.Subscript()) as place], value=value):
                names = {**base, **own, "_base_": base}
                _assign(place, _value(value, names, path), names, path)
                continue
            case _:
                raise _refused(statement, path)
        if name != "_base_":
            own[name] = found
            continue
        for one in [found] if isinstance(found, str) else found:
            more = _read(_located(one, path, scopes), scopes, (*within, path))
            twice = sorted(set(base) & set(more))
            if twice:
                raise RecipeError(f"the _base_ of {path}", f"two files have {', '.join(twice)}", "keep one of them")
            base |= more
    return merged(base, own)


def _located(name: str, path: Path, scopes: dict[str, Any]) -> Path:
    scope, found, rest = name.partition("::")
    if not found:
        return path.parent / name
    if scope not in scopes:
        raise RecipeError(
            f"the _base_ {name!r} of {path}",
            f"where the configs of {scope!r} are is not known",
            f"Config.fromfile(path, scopes={{{scope!r}: folder}})",
        )
    return Path(scopes[scope]) / rest


def _value(node: ast.expr, names: Mapping[str, Any], path: Path) -> Any:
    def of(part: ast.expr) -> Any:
        return _value(part, names, path)

    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts):
            return [of(part) for part in parts]
        case ast.Tuple(elts=parts):
            return tuple(of(part) for part in parts)
        case ast.Dict(keys=keys, values=values):
            pairs = [(None if key is None else of(key), of(part)) for key, part in zip(keys, values, strict=True)]
            return _joined(pairs, node, path)
        case ast.Call(func=ast.Name(id="dict"), args=([] | [_]) as first, keywords=keywords):
            pairs = [(None, of(part)) for part in first] + [(one.arg, of(one.value)) for one in keywords]
            return _joined(pairs, node, path)
        case ast.ListComp(elt=each, generators=[ast.comprehension(target=ast.Name(id=name), iter=items, ifs=[])]):
            return [_value(each, {**names, name: one}, path) for one in of(items)]
        case ast.Set(elts=[ast.Set(elts=[inner])]):
            return of(inner)  # mmengine's {{_base_.name}}
        case ast.Name(id=name):
            if name not in names:
                raise _undefined(name, node.lineno, names, path)
            return copy.deepcopy(names[name])
        case ast.Attribute(value=held, attr=name):
            inside = of(held)
            if isinstance(inside, Mapping) and name in inside:
                return inside[name]
        case ast.Subscript(value=held, slice=place):
            holder, key = of(held), of(place)
            if key in holder if isinstance(holder, Mapping) else isinstance(key, int) and -1 <= key < len(holder):
                return holder[key]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -of(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](of(left), of(right))
    raise _refused(node, path)


def _joined(pairs: Sequence[tuple[Any, Any]], node: ast.expr, path: Path) -> dict[Any, Any]:
    """The dict of keys and values; a value without a key is a dict whose entries are taken over."""
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key is None and not isinstance(value, Mapping):
            raise _refused(node, path)
        found.update(value if key is None else {key: value})
    return found


def _assign(place: ast.Attribute | ast.Subscript, value: Any, names: Mapping[str, Any], path: Path) -> None:
    """`_base_.x.y = value` or `model['x'] = value`: in what the base has, or what stands above."""
    match place:
        case ast.Attribute(value=held, attr=key) | ast.Subscript(value=held, slice=ast.Constant(value=key)):
            holder = _held(held, names, path)
            if isinstance(holder, dict):
                holder[key] = value
                return
    raise _refused(place, path)


def _held(node: ast.expr, names: Mapping[str, Any], path: Path) -> Any:
    """What a name, with attributes and items behind it, refers to: itself, not a copy."""
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Attribute(value=inner, attr=key) | ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            holder = _held(inner, names, path)
            if key in holder if isinstance(holder, dict) else isinstance(holder, list) and isinstance(key, int):
                return holder[key]
    raise _refused(node, path)


def _undefined(name: str, line: int, names: Mapping[str, Any], path: Path) -> RecipeError:
    base = sorted(names["_base_"])
    return RecipeError(
        f"line {line} of {path}: the name {name!r}",
        f"nothing above assigns it{'; the base files have ' + ', '.join(base) if base else ''}",
        f"assign it above, as in {name} = " + ("_base_.model" if "model" in base else "..."),
    )


def _refused(node: ast.AST, path: Path) -> RecipeError:
    line = getattr(node, "lineno", 0)
    return RecipeError(
        f"line {line} of {path}: {ast.unparse(node)[:80]!r}",
        "configs are parsed and not executed: they hold assignments of literals, dict(...) and names known above",
        "write the value out",
    )
