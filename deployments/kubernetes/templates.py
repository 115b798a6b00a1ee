"""Go templates with Helm's functions, as far as `k8s/chart` uses them: an interpreter.

Without Helm a user gets the same manifests as with it (`switchyard k8s new`), and the chart stays their only source.
Everything beyond the subset is refused, never guessed; tests compare what both make of the chart.

Large numbers are written through `int` or `toRawJson`: Go prints them in a form of its own.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Pipeline = Callable[["Scope"], Any]


class TemplateError(Exception):
    """A template that cannot be executed: a mistake in it, outside the subset, or what it says by `fail`."""


class Failed(TemplateError):
    """The message of `fail` or `required`: a value is wrong."""


@dataclass(frozen=True)
class Files:
    """A chart's files other than its templates: `.Files`."""

    root: Path

    def get(self, name: str) -> str:
        """A file's text; empty if there is none, as in Helm."""
        file = self.root / name
        return file.read_text() if file.is_file() else ""


@dataclass
class Scope:
    """What a part of a template sees: `.`, `$`, the variables, and the named templates."""

    dot: Any
    root: Any
    named: "Mapping[str, Sequence[Node]]"
    variables: dict[str, Any] = field(default_factory=dict)
    outer: "Scope | None" = None

    def inner(self, dot: Any) -> "Scope":
        """The scope of a block, with its own `.`."""
        return Scope(dot, self.root, self.named, outer=self)

    def holder(self, name: str) -> "Scope":
        """The scope that declares a variable. Raises TemplateError."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope
            scope = scope.outer
        raise TemplateError(f"undefined variable ${name}")


Node = Callable[[Scope], str]


_ACTION = re.compile(r"\{\{(- )?\s*(/\*.*?\*/|(?:\"(?:\\.|[^\"\\])*\"|`[^`]*`|[^\"`])*?)\s*( -)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:\\.|[^"\\])*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)
    |(?P<variable>\$\w*(?:\.\w+)*)|(?P<field>\.(?:\w+(?:\.\w+)*)?)|(?P<word>\w+)|(?P<mark>:=|[()|=,]))""",
    re.VERBOSE,
)


def define(text: str, name: str) -> tuple[list[Node], dict[str, list[Node]]]:
    """A file's template, and the ones that it defines by name. Raises TemplateError that names the file."""
    try:
        return _Parser(text).parsed()
    except TemplateError as error:
        raise TemplateError(f"{name}: {error}") from None


def execute(nodes: Sequence[Node], data: Any, named: Mapping[str, Sequence[Node]]) -> str:
    """The text of a template. Raises TemplateError."""
    return _run(nodes, Scope(data, data, named))


def _run(nodes: Sequence[Node], scope: Scope) -> str:
    return "".join(node(scope) for node in nodes)


class _Parser:
    """Recursive descent over the pieces of one file: texts and actions alternate."""

    def __init__(self, text: str) -> None:
        self.defined: dict[str, list[Node]] = {}
        self.pieces: list[tuple[str, str]] = []
        at, trim = 0, False
        for action in _ACTION.finditer(text):
            self._text(text[at : action.start()], left=trim, right=bool(action[1]))
            self.pieces.append(("action", action[2].strip()))
            at, trim = action.end(), bool(action[3])
        self._text(text[at:], left=trim, right=False)
        self.position = 0

    def _text(self, text: str, *, left: bool, right: bool) -> None:
        text = text.lstrip() if left else text
        self.pieces.append(("text", text.rstrip() if right else text))

    def parsed(self) -> tuple[list[Node], dict[str, list[Node]]]:
        nodes, end = self._block()
        if end:
            raise TemplateError(f"unexpected {{{{ {end} }}}}")
        return nodes, self.defined

    def _block(self) -> tuple[list[Node], str]:
        """Nodes up to an `end` or `else`, which is returned; empty at the end of the file."""
        nodes: list[Node] = []
        while self.position < len(self.pieces):
            kind, text = self.pieces[self.position]
            self.position += 1
            if kind == "text":
                nodes.append(lambda _scope, text=text: text)  # type: ignore[misc]
            elif text.startswith("/*"):
                continue
            elif (word := text.split(None, 1)[0]) in ("end", "else"):
                return nodes, text
            else:
                rest = text.removeprefix(word).strip()
                nodes.extend(self._action(word, rest, text))
        return nodes, ""

    def _action(self, word: str, rest: str, text: str) -> Iterator[Node]:
        match word:
            case "define":
                nodes, _ = self._block()
                self.defined[json.loads(rest)] = nodes
            case "if" | "with":
                yield self._conditional(word, rest)
            case "range":
                yield self._range(rest)
            case _:
                yield _statement(text)

    def _conditional(self, word: str, condition: str) -> Node:
        tested = _Expression(condition).whole()
        then, end = self._block()
        otherwise: list[Node] = []
        if (chained := end.removeprefix("else").strip()) and end != "end":
            otherwise = [self._conditional("if", chained.removeprefix("if").strip())]
        elif end == "else":
            otherwise, end = self._block()

        def node(scope: Scope) -> str:
            value = tested(scope)
            if truth(value):
                return _run(then, scope.inner(value if word == "with" else scope.dot))
            return _run(otherwise, scope.inner(scope.dot))

        return node

    def _range(self, text: str) -> Node:
        declared = re.match(r"(\$\w+)(?:\s*,\s*(\$\w+))?\s*:=\s*(.*)", text, re.DOTALL)
        names = [name[1:] for name in declared.groups()[:2] if name] if declared else []
        over = _Expression(declared[3] if declared else text).whole()
        body, end = self._block()
        otherwise = self._block()[0] if end == "else" else []

        def node(scope: Scope) -> str:
            value = over(scope)
            if not truth(value):
                return _run(otherwise, scope.inner(scope.dot))
            items = sorted(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
            parts = []
            for key, item in items:
                inner = scope.inner(item)
                inner.variables.update(zip(names, (key, item) if len(names) == 2 else (item,), strict=False))
                parts.append(_run(body, inner))
            return "".join(parts)

        return node


def _statement(text: str) -> Node:
    """`$x := …`, `$x = …`, or a pipeline whose value is printed."""
    assigned = re.match(r"(\$\w+)\s*(:?=)\s*(.*)", text, re.DOTALL)
    pipeline = _Expression(assigned[3] if assigned else text).whole()

    def assign(scope: Scope) -> str:
        assert assigned
        name = assigned[1][1:]
        value = pipeline(scope)
        (scope if assigned[2] == ":=" else scope.holder(name)).variables[name] = value
        return ""

    return assign if assigned else lambda scope: shown(pipeline(scope))


class _Expression:
    """A pipeline's grammar: commands between bars, each an operand or a function with operands."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            token = _TOKEN.match(text, at)
            if token is None:
                raise TemplateError(f"cannot read {text[at:]!r}")
            kind = str(token.lastgroup)
            joined = kind == "field" and self.tokens[-1:] == [("mark", ")")] and token.start(kind) == at
            self.tokens.append(("path" if joined else kind, token[kind]))
            at = token.end()
        self.text, self.at = text, 0

    def whole(self) -> Pipeline:
        found = self._pipeline()
        if self.at < len(self.tokens):
            raise TemplateError(f"cannot read {self.text!r}")
        return found

    def _next(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def _pipeline(self) -> Pipeline:
        found = self._command(None)
        while self._next() == ("mark", "|"):
            self.at += 1
            found = self._command(found)
        return found

    def _command(self, last: Pipeline | None) -> Pipeline:
        kind, text = self._next()
        if kind == "word" and text not in ("true", "false", "nil"):
            self.at += 1
            return _call(text, [*self._operands(), *([last] if last else [])])
        if kind in ("field", "variable") and text.endswith(".Files.Get"):
            return self._file(kind, text)
        operands = list(self._operands())
        if len(operands) != 1 or last:
            raise TemplateError(f"not a function: {self.text!r}")
        return operands[0]

    def _file(self, kind: str, text: str) -> Pipeline:
        """`.Files.Get NAME`, the only method."""
        files = self._operand(kind, text.removesuffix(".Get"))
        (name,) = self._operands()
        return lambda scope: files(scope).get(name(scope))

    def _operands(self) -> Iterator[Pipeline]:
        while (token := self._next()) not in (("end", ""), ("mark", "|"), ("mark", ")")):
            yield self._operand(*token)

    def _operand(self, kind: str, text: str) -> Pipeline:
        self.at += 1
        match kind:
            case "string":
                value: Any = text[1:-1] if text[0] == "`" else json.loads(text)
                return lambda _scope: value
            case "number":
                number: Any = json.loads(text)
                return lambda _scope: number
            case "word" if text in ("true", "false", "nil"):
                constant = {"true": True, "false": False, "nil": None}[text]
                return lambda _scope: constant
            case "word":
                return _call(text, [])
            case "variable":
                name, *path = text[1:].split(".")
                return lambda scope: _field(scope.holder(name).variables[name] if name else scope.root, path)
            case "field":
                names = text[1:].split(".") if text != "." else []
                return lambda scope: _field(scope.dot, names)
            case _ if text == "(":
                inner = self._pipeline()
                if self._next() != ("mark", ")"):
                    raise TemplateError(f"a bracket is not closed: {self.text!r}")
                self.at += 1
                if self._next()[0] == "path":
                    path = self._next()[1][1:].split(".")
                    self.at += 1
                    return lambda scope: _field(inner(scope), path)
                return inner
        raise TemplateError(f"cannot read {self.text!r}")


def _field(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(value, Mapping):
            raise TemplateError(f"{name} of {value!r}, which is no object")
        value = value.get(name)
    return value


def _call(name: str, operands: Sequence[Pipeline]) -> Pipeline:
    if name == "include":
        return lambda scope: _include(scope, *(operand(scope) for operand in operands))
    if name in ("and", "or"):
        return lambda scope: _short(scope, operands, until=name == "or")
    if name not in FUNCTIONS:
        raise TemplateError(f"{name} is no function of the subset")
    function = FUNCTIONS[name]
    return lambda scope: function(*(operand(scope) for operand in operands))


def _include(scope: Scope, name: str, dot: Any) -> str:
    if name not in scope.named:
        raise TemplateError(f"no template is named {name!r}")
    return execute(scope.named[name], dot, scope.named)


def _short(scope: Scope, operands: Sequence[Pipeline], *, until: bool) -> Any:
    value: Any = None
    for operand in operands:
        value = operand(scope)
        if truth(value) is until:
            return value
    return value


def truth(value: Any) -> bool:
    """Go's: zero, empty and absent values are false."""
    return bool(value)


def shown(value: Any) -> str:
    """A value as an action prints it. Raises TemplateError for what Go prints in a form of its own."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case float() if value.is_integer() and abs(value) < 1e6:
            return str(int(value))
    raise TemplateError(f"{value!r} is printed as it is; write it through `toRawJson`")


def numbers(value: Any) -> Any:
    """The value with every number as Go reads it from YAML or JSON: a float, which `eq` refuses to compare with the
    integers of a template."""
    match value:
        case bool():
            return value
        case int():
            return float(value)
        case dict():
            return {key: numbers(item) for key, item in value.items()}
        case list():
            return [numbers(item) for item in value]
    return value


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TemplateError(f"{value!r} is no {kind.__name__}")
    return numbers(value)


def _from_yaml(text: str) -> Any:
    """As in Helm: a text that is no YAML with keys gives one key, `Error`."""
    try:
        value = yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        return {"Error": str(error)}
    return numbers(value) if isinstance(value, dict) else {"Error": f"{value!r} has no keys"}


def _regex(pattern: str) -> re.Pattern[str]:
    """A regular expression of Go's: `$` at its end is the text's end, and classes are ASCII's."""
    return re.compile(re.sub(r"\$(?=\)?$)", r"\\Z", pattern), re.ASCII)


def _replacement(text: str) -> Callable[[re.Match[str]], str]:
    """What takes the place of a match: `${1}` is its first group."""
    return lambda match: re.sub(r"\$\{(\d+)\}", lambda group: match[int(group[1])], text)


def raw_json(value: Any) -> str:
    """`toRawJson`: keys are sorted."""
    return json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _whole(item) for key, item in value.items()}
        case list():
            return [_whole(item) for item in value]
    return value


def _alike(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        raise TemplateError(f"{first!r} and {second!r} are compared, which Go does not")
    return True


def _indented(spaces: int, text: str) -> str:
    return "\n".join(" " * spaces + line for line in text.split("\n"))


def _fail(message: str) -> Any:
    raise Failed(message)


def _required(message: str, value: Any) -> Any:
    return value if value not in (None, "") else _fail(message)


def _set(mapping: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    mapping[key] = value
    return mapping


def _int(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


def _printf(form: str, *values: Any) -> str:
    return re.sub(r"%[vd]", "%s", form) % tuple(shown(value) for value in values)


def _kind(value: Any) -> str:
    kinds = {bool: "bool", str: "string", int: "float64", float: "float64", list: "slice", dict: "map"}
    return kinds.get(type(value), "invalid")


def _index(value: Any, *path: Any) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else value[key]
    return value


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": lambda *numbers: sum(map(_int, numbers)),
    "append": lambda items, item: [*items, item],
    "ceil": lambda number: float(math.ceil(number)),
    "contains": lambda part, text: part in text,
    "concat": lambda *lists: [item for items in lists for item in items],
    "default": lambda other, value=None: value if truth(value) else other,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "div": lambda first, second: int(_int(first) / _int(second)),
    "divf": lambda first, second: first / second,
    "eq": lambda first, *others: any(_alike(first, other) and first == other for other in others),
    "fail": _fail,
    "fromJson": lambda text: _checked(dict, json.loads(text)),
    "fromJsonArray": lambda text: _checked(list, json.loads(text)),
    "fromYaml": _from_yaml,
    "ge": lambda first, second: _alike(first, second) and first >= second,
    "get": lambda mapping, key: mapping.get(key, ""),
    "gt": lambda first, second: _alike(first, second) and first > second,
    "has": lambda item, items: item in items,
    "hasKey": lambda mapping, key: key in mapping,
    "hasPrefix": lambda prefix, text: text.startswith(prefix),
    "index": _index,
    "indent": _indented,
    "int": _int,
    "join": lambda separator, items: separator.join(map(shown, items)),
    "keys": lambda mapping: sorted(mapping),
    "kindIs": lambda kind, value: _kind(value) == kind,
    "last": lambda items: items[-1],
    "len": len,
    "list": lambda *items: list(items),
    "lower": lambda text: text.lower(),
    "le": lambda first, second: _alike(first, second) and first <= second,
    "lt": lambda first, second: _alike(first, second) and first < second,
    "max": lambda *numbers: max(map(_int, numbers)),
    "min": lambda *numbers: min(map(_int, numbers)),
    "mul": lambda *numbers: _product(map(_int, numbers)),
    "ne": lambda first, second: _alike(first, second) and first != second,
    "nindent": lambda spaces, text: "\n" + _indented(spaces, text),
    "not": lambda value: not truth(value),
    "printf": _printf,
    "quote": lambda value: json.dumps(shown(value), ensure_ascii=False),
    "regexFind": lambda pattern, text: match[0] if (match := _regex(pattern).search(text)) else "",
    "regexMatch": lambda pattern, text: _regex(pattern).search(text) is not None,
    "regexReplaceAll": lambda pattern, text, new: _regex(pattern).sub(_replacement(new), text),
    "replace": lambda old, new, text: text.replace(old, new),
    "required": _required,
    "set": _set,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "sortAlpha": lambda items: sorted(map(shown, items)),
    "splitList": lambda separator, text: text.split(separator),
    "sub": lambda first, second: _int(first) - _int(second),
    "ternary": lambda yes, no, test: yes if test else no,
    "toRawJson": raw_json,
    "toString": shown,
    "trim": lambda text: text.strip(),
    "trimPrefix": lambda prefix, text: text.removeprefix(prefix),
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda size, text: text[:size],
    "uniq": lambda items: list(dict.fromkeys(items)),
}
"""Helm's functions of the subset, with their arguments in its order. `keys` is sorted here and not in Go, so templates
sort them themselves."""


def _product(numbers: Iterator[int]) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product
