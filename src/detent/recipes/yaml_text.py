"""Recipes as YAML: plain data only, without tags, aliases or keys that are there twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

from detent.recipes.refusal import RefusalError

__all__ = ["dumps", "loads"]


class _Loader(yaml.SafeLoader):
    """The safe loader, without the parts of YAML by which a small file becomes a large or a surprising one."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise RefusalError(
                f"an alias, *{event.anchor}, {_line(event.start_mark)}",
                "write it out; put text that begins with * in quotes",
            )
        if getattr(event, "tag", None) is not None:
            raise RefusalError(
                f"a tag, {event.tag}, {_line(event.start_mark)}", "remove it; put text that begins with ! in quotes"
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            where = _line(key_node.start_mark)
            if not isinstance(key, str):
                raise RefusalError(f"the key {key!r}, {where}, is not text", "put it in quotes")
            if key in mapping:
                raise RefusalError(f"the key {key!r} appears twice, again {where}", "keep one")
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    """The safe dumper, knowing the same numbers as the loader, and losing no letter."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # PyYAML folds the line breaks of Unicode (U+0085, U+2028) into spaces unless they are escaped.
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


for _class in (_Loader, _Dumper):
    # 1e-5 is a number in YAML 1.2, JSON and TOML, but text to PyYAML, which wants 1.0e-5.
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def loads(text: str) -> Any:
    """The data in `text`; `ValueError` if it is not YAML, or more than plain data."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        found = f"{error.problem}, {_line(error.problem_mark)}"
        if error.context == "while scanning an alias":
            raise RefusalError(found, "put text that begins with * in quotes") from None
        raise ValueError(found) from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def dumps(data: dict[str, Any]) -> str:
    """Text that `loads` reads back as equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}"
