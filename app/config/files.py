"""Reads hand-written files strictly. Every problem is raised as a ConfigError."""

from pathlib import Path
from typing import Any

import yaml

from app.config.base import ConfigError


class _StrictLoader(yaml.SafeLoader):
    """YAML that rejects duplicate keys; plain YAML silently keeps the last one."""

    quotes = True


_MERGE = "tag:yaml.org,2002:merge"
"""The key `<<`, which takes over another mapping's keys."""


class _RedactingLoader(_StrictLoader):
    """The same for secret files: errors do not quote them."""

    quotes = False


def _mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == _MERGE:
            continue  # keys next to it override the merged ones
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise ConfigError([f"line {line}: a key must be plain text"])
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            name = f" '{key}'" if loader.quotes else ""
            raise ConfigError([f"line {line}: duplicate key{name}; rename or remove one"])
        seen.add(key)
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_text(path: Path) -> str:
    """The content of `path`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: not UTF-8; save it as UTF-8"]) from None


def read_yaml(path: Path) -> object:
    """The content of the YAML file `path`."""
    return parse_yaml(read_text(path), where=f"{path}: ")


def parse_yaml(text: str, *, where: str = "", is_secret: bool = False) -> object:
    """The content of a YAML text. If it is secret, problems name the line and quote nothing."""
    try:
        document: object = yaml.load(text, Loader=_RedactingLoader if is_secret else _StrictLoader)
        return document
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2030-02-31
        mark = getattr(error, "problem_mark", None)
        if is_secret:
            raise ConfigError([f"not YAML{f', line {mark.line + 1}' if mark else ''}"]) from None
        line = f"line {mark.line + 1}: " if mark else ""
        reason = getattr(error, "problem", None) or str(error).partition("\n")[0]
        reason = reason.removeprefix("but ")
        raise ConfigError([f"{where}{line}not YAML: {reason}{_remedy(reason)}"]) from None


def _remedy(reason: str) -> str:
    return next((f"; {remedy}" for words, remedy in _REMEDIES.items() if words in reason), "")


_REMEDIES = {
    "'\\t'": "indent with spaces, not with a tab",
    "mapping values are not allowed": "indent the line as its neighbours, and quote a text that has ': ' in it",
    "expected <block end>": "the indentation differs from that of the lines above",
    "could not find expected ':'": "a key ends with a colon and a space",
    "expected ',' or": "close the bracket of the line, or of one above",
    "another document": "one file has one document: remove the line `---` and what is before or after it",
    "found undefined alias": "an anchor (&name) comes before its alias (*name)",
    "unexpected end of stream": "close the quotes",
}
"""PyYAML's reasons, and what mends them."""
