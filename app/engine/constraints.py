"""Constraints of a request on its answer: JSON Schemas, regular expressions and grammars in vLLM's request fields.

vLLM accepts some that no answer satisfies and fails while it generates, with an internal error that does not mention
the request. `refused_constraint` recognises them before the engine is called. Contract: vLLM 0.29's
`StructuredOutputsParams`.

Decides whether a JSON Schema, regular expression or grammar admits any text at all.
"""

import re
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from re import _constants as sre  # type: ignore[attr-defined, unused-ignore]  # mypy sees it in some runs only
from re import _parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any

from pydantic_core import to_json

from app.long_json import written

# "Admits nothing" is a proof: what this module does not understand, or is too large to check, counts as satisfiable.
# All checks of a request share one `Effort`, which bounds them: a few milliseconds of the event loop's time.
# Sources: JSON Schema 2020-12; the grammars are GBNF as xgrammar reads it.

Json = Any
Known = Callable[[Any], bool]


class _TooLarge(Exception):
    """The input is larger than is worth checking, or has more dependencies than are worth following."""


@dataclass(slots=True)
class Effort:
    """The part of a request's checks that is left: dependencies to follow, and characters of expressions to read."""

    questions: int = 10_000
    characters: int = 4096

    def ask(self, count: int = 1) -> None:
        """Spends questions. Raises _TooLarge if too few are left."""
        self.questions -= count
        if self.questions < 0:
            raise _TooLarge

    def read(self, text: str) -> None:
        """Spends the characters of `text`. Raises _TooLarge if too few are left."""
        self.characters -= len(text)
        if self.characters < 0:
            raise _TooLarge


def _least_fixpoint(
    start: Any, holds: Callable[[Any, Known], bool], key: Callable[[Any], Hashable], effort: Effort
) -> bool:
    """Whether `holds` for `start`, where nothing holds that depends on itself alone.

    `holds(thing, known)` asks `known` about the things that it depends on, and is called again when one becomes true.
    """
    true: set[Hashable] = set()
    waiting: defaultdict[Hashable, dict[Hashable, Any]] = defaultdict(dict)
    seen = {key(start)}
    pending = deque([start])
    while pending:
        thing = pending.popleft()

        def known(other: Any, thing: Any = thing) -> bool:
            effort.ask()
            if key(other) not in seen:
                seen.add(key(other))
                pending.append(other)
            waiting[key(other)][key(thing)] = thing
            return key(other) in true

        if key(thing) not in true and holds(thing, known):
            true.add(key(thing))
            pending.extend(waiting.pop(key(thing), {}).values())
    return key(start) in true


def schema_admits_something(schema: Json, effort: Effort | None = None) -> bool:
    """Whether a finite JSON value may satisfy `schema`, judged by references, `required` and `pattern` only."""
    effort = effort or Effort()

    def holds(one: Json, known: Known) -> bool:
        if not isinstance(one, dict):
            return one is not False
        if (target := _resolved(schema, one.get("$ref"), effort)) is not _UNKNOWN and not known(target):
            return False
        for some in ("anyOf", "oneOf"):
            # Lists, not generators: every dependency must be registered.
            if (
                isinstance(branches := one.get(some), list)
                and branches
                and not any([known(branch) for branch in branches])
            ):
                return False
        if isinstance(parts := one.get("allOf"), list) and not all([known(part) for part in parts]):
            return False
        return _type_holds(one, known, effort)

    try:
        return _least_fixpoint(schema, holds, id, effort)
    except _TooLarge:
        return True


def _type_holds(one: Mapping[str, Any], known: Known, effort: Effort) -> bool:
    kind = one.get("type")
    if kind == "object":
        properties, required = one.get("properties"), one.get("required")
        if isinstance(properties, dict) and isinstance(required, list):
            effort.ask(len(required))
            names = [name for name in required if isinstance(name, str) and name in properties]
            return all([known(properties[name]) for name in names])
    if kind == "array" and isinstance(least := one.get("minItems"), int) and least > 0 and "items" in one:
        return known(one["items"]) or bool(one.get("prefixItems"))
    if kind == "string" and isinstance(pattern := one.get("pattern"), str):
        return regex_admits_something(pattern, effort)
    return True


_UNKNOWN = object()


def _resolved(root: Json, reference: Json, effort: Effort) -> Json:
    """The target of a reference within the document."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return _UNKNOWN
    effort.ask(1 + reference.count("/"))
    value = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, dict) or name not in value:
            return _UNKNOWN
        value = value[name]
    return value


def regex_admits_something(expression: str, effort: Effort | None = None) -> bool:
    """Whether some text may match. An expression that Python cannot read counts as satisfiable."""
    try:
        (effort or Effort()).read(expression)
        with warnings.catch_warnings(action="ignore"):
            return _sequence(_parser.parse(expression))
    except (_TooLarge, re.error, RecursionError, OverflowError):
        return True


def _sequence(tokens: Any) -> bool:
    return all(_token(*token) for token in tokens)


def _token(kind: Any, value: Any) -> bool:
    match kind:
        case sre.IN:
            return not _is_empty(value)
        case sre.BRANCH:
            return any(_sequence(branch) for branch in value[1])
        case sre.SUBPATTERN:
            return _sequence(value[-1])
        case sre.ATOMIC_GROUP:
            return _sequence(value)
        case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
            least, _, tokens = value
            return least == 0 or _sequence(tokens)
        case _:
            return True


_OPPOSITES = (
    {sre.CATEGORY_SPACE, sre.CATEGORY_NOT_SPACE},
    {sre.CATEGORY_DIGIT, sre.CATEGORY_NOT_DIGIT},
    {sre.CATEGORY_WORD, sre.CATEGORY_NOT_WORD},
)


def _is_empty(members: Any) -> bool:
    """Whether a character class excludes every character, as ``[^\\s\\S]`` does."""
    if members[0][0] is not sre.NEGATE:
        return False
    categories = {value for kind, value in members if kind is sre.CATEGORY}
    whole = any(value[0] == 0 and value[1] >= 0x10FFFF for kind, value in members if kind is sre.RANGE)
    return whole or any(pair <= categories for pair in _OPPOSITES)


_RULE = re.compile(r"^[ \t]*+([\w-]++)[ \t]*+::=", re.MULTILINE)
# Possessive, and what is not closed is one token up to the end: no character is read twice.
_GRAMMAR_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*+(?:"|(?P<string>))|\[(?:[^\]\\]|\\.)*+(?:\]|(?P<set>))|\{[^}]*+(?:\}|(?P<count>))'
    r"|[\w-]++|[|()*+?]|#[^\n]*+|\s++|.",
    re.DOTALL,
)


def grammar_admits_something(grammar: str, effort: Effort | None = None) -> bool:
    """Whether the rule `root` of a GBNF grammar derives some text. Without such a rule it counts as satisfiable, and so
    does one with a text, set or count that is not closed.
    """
    effort = effort or Effort()
    try:
        effort.read(grammar)
        heads = list(_RULE.finditer(grammar))
        ends = [*(head.start() for head in heads[1:]), len(grammar)]
        rules = {head[1]: _tokens(grammar[head.end() : end]) for head, end in zip(heads, ends, strict=False)}
        if "root" not in rules:
            return True

        def holds(name: str, known: Known) -> bool:
            def derives(symbol: str) -> bool:
                return symbol not in rules or known(symbol)

            return _Derivation(rules[name], derives, effort).admits_something()

        return _least_fixpoint("root", holds, str, effort)
    except (_TooLarge, RecursionError):
        return True


def _tokens(body: str) -> Sequence[str]:
    """Raises _TooLarge if a text, set or count is not closed."""
    found = list(_GRAMMAR_TOKEN.finditer(body))
    if any(token.lastgroup for token in found):
        raise _TooLarge
    return [token[0] for token in found if not token[0].isspace() and not token[0].startswith("#")]


_A_SET = 20
"""What reading a set of characters costs, in questions."""


class _Derivation:
    """One rule's right side, read once from left to right: alternatives of sequences of symbols."""

    def __init__(self, tokens: Sequence[str], derives: Callable[[str], bool], effort: Effort) -> None:
        self._tokens, self._derives, self._effort, self._at = tokens, derives, effort, 0

    def admits_something(self) -> bool:
        """Whether any alternative derives a text."""
        some, sequence = False, True
        while self._at < len(self._tokens) and (token := self._next()) != ")":
            if token == "|":
                some, sequence = some or sequence, True
                continue
            symbol = self.admits_something() if token == "(" else self._symbol(token)
            sequence &= self._is_optional() or symbol
        return some or sequence

    def _symbol(self, token: str) -> bool:
        if token.startswith("["):
            self._effort.ask(_A_SET)
            return regex_admits_something(token)
        return not re.fullmatch(r"[\w-]+", token) or self._derives(token)

    def _is_optional(self) -> bool:
        """Whether a quantifier follows that lets the symbol be absent."""
        if self._at == len(self._tokens) or self._tokens[self._at][0] not in "*+?{":
            return False
        quantifier = self._next()
        return quantifier in "*?" or bool(re.match(r"\{\s*0*\s*[,}]", quantifier))

    def _next(self) -> str:
        self._effort.ask()
        self._at += 1
        return self._tokens[self._at - 1]


MOST_CHARACTERS = 8192
"""Of a regular expression or grammar: 8,000 characters take an engine seconds of CPU time to compile, and some take
minutes (`deployments/engine/trial.py`).
"""

MOST_BYTES = 1024 * 1024
"""Of a constraint as JSON. vLLM converts a schema on the event loop that passes on other answers, in 0.1 s for this."""

MOST_REPETITIONS = 100_000
"""Of all strings, lists and expressions of a constraint together. What is cheap to refuse here costs an engine a minute
of CPU time (`deployments/engine/trial.py`).
"""

CONSTRAINTS = frozenset({"response_format", "structured_outputs", "text", "output_config", "tools"})
"""The fields that may constrain the answer: most requests have none."""


def constrained_field(body: Mapping[str, Any]) -> str | None:
    """The first field of the vLLM request `body` that constrains the answer."""
    if CONSTRAINTS.isdisjoint(body):  # most requests
        return None
    if _at(body, ("structured_outputs", "choice")) is not None:
        return "structured_outputs"
    return next((name for name, _ in _constraints(body)), None)


def refused_constraint(
    body: Mapping[str, Any], size: int | None = None, effort: Effort | None = None
) -> tuple[str, str] | None:
    """The first field of a vLLM request that no engine should compile, as clients write its path, and why.

    `size`: of a body that contains it, in bytes. `effort`: what bodies share that come in one request.
    """
    if (size is None or size > MOST_BYTES) and (field := too_large_field(body)) is not None:
        return field, f"a constraint has at most {MOST_BYTES} bytes"
    if CONSTRAINTS.isdisjoint(body):  # most requests
        return None
    if (field := too_long_field(body)) is not None:
        return field, f"an expression or grammar has at most {MOST_CHARACTERS} characters"
    if (field := too_repetitive_field(body)) is not None:
        return field, f"the lengths, counts and repetitions of a constraint add up to {MOST_REPETITIONS} at most"
    if (field := unsatisfiable_field(body, effort)) is not None:
        return field, f"{THIS_CONSTRAINT} is satisfied by no text"
    return None


THIS_CONSTRAINT = "this schema, expression or grammar"


def too_long_field(body: Mapping[str, Any]) -> str | None:
    """The field with an expression or grammar that is too long to be compiled; its path, as clients write it."""
    if "structured_outputs" not in body:
        return None
    for name in ("regex", "grammar"):
        text = _at(body, ("structured_outputs", name))
        if isinstance(text, str) and len(text) > MOST_CHARACTERS:
            return f"structured_outputs.{name}"
    return None


def too_large_field(body: Mapping[str, Any]) -> str | None:
    """The first field whose constraint has more than `MOST_BYTES`. For long bodies: it is written as JSON to know."""
    return next((name for name, value in _compiled(body) if len(written(value)) > MOST_BYTES), None)


def too_repetitive_field(body: Mapping[str, Any]) -> str | None:
    """The first field whose lengths, counts and repetitions add up to more than `MOST_REPETITIONS`."""
    if CONSTRAINTS.isdisjoint(body):
        return None
    return next((name for name, value in _compiled(body) if _repetitions(to_json(value)) > MOST_REPETITIONS), None)


def _compiled(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that may constrain the answer, and what in them the engine compiles."""
    for name in sorted(CONSTRAINTS & body.keys()):
        if value := [*_forced_parameters(body)] if name == "tools" else body[name]:
            yield name, value


def _repetitions(constraint: bytes) -> float:
    """The sum of the numbers by which a constraint (JSON) repeats something.

    It is searched, not walked: a schema may be a text in JSON, or in a structural tag, also with escapes.
    """
    constraint = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), constraint)
    return sum(
        float(repeat[1] or repeat[2])
        for start in range(0, len(constraint), _STEP)  # between two steps the event loop serves others
        for repeat in _REPEATS.finditer(constraint, start, start + _STEP + _LONGEST_REPEAT)
        if repeat.start() < start + _STEP
    )


_ESCAPED = re.compile(rb"\\++u00([2-7][0-9a-fA-F])")
_STEP, _LONGEST_REPEAT = 64 * 1024, 256
"""Bytes."""

# A bound of a schema, also of one in a text; or one of a regular expression or grammar: an object has no such braces.
_REPEATS = re.compile(
    rb'(?:max|min)(?:Length|Items|Properties)\\*"(?:\s|\\[nrt])*:(?:\s|\\[nrt])*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)'
    rb"|\{(?:\d+,)?(\d+),?\}"
)


def unsatisfiable_field(body: Mapping[str, Any], effort: Effort | None = None) -> str | None:
    """The first field whose constraint no answer satisfies."""
    if CONSTRAINTS.isdisjoint(body):
        return None
    effort = effort or Effort()
    return next((name for name, admits_something in _constraints(body) if not admits_something(effort=effort)), None)


def _constraints(body: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., bool]]]:
    """Each constraint's field, and whether it can be satisfied."""
    for name, path in _SCHEMAS:
        if (schema := _at(body, (name, *path))) is not None:
            yield name, partial(schema_admits_something, schema)
    for schema in _forced_parameters(body):
        yield "tools", partial(schema_admits_something, schema)
    if isinstance(expression := _at(body, ("structured_outputs", "regex")), str):
        yield "structured_outputs", partial(regex_admits_something, expression)
    if isinstance(grammar := _at(body, ("structured_outputs", "grammar")), str):
        yield "structured_outputs", partial(grammar_admits_something, grammar)


_SCHEMAS = (
    ("response_format", ("json_schema", "schema")),
    ("structured_outputs", ("json",)),
    ("text", ("format", "schema")),
    ("output_config", ("format", "schema")),
)


def _forced_parameters(body: Mapping[str, Any]) -> Iterator[Json]:
    """The parameters' schemas of the tools that the model must choose from."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not isinstance(tools, list) or choice in (None, "none", "auto") or _at(choice, ("type",)) in ("none", "auto"):
        return
    named = _at(choice, ("function", "name")) or _at(choice, ("name",))
    for tool in tools:
        function = _at(tool, ("function",)) or tool
        schema = _at(function, ("parameters",)) or _at(function, ("input_schema",))
        if schema is not None and named in (None, _at(function, ("name",))):
            yield schema


def _at(value: Json, path: tuple[str, ...]) -> Json:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
