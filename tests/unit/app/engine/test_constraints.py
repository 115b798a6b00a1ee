"""Schemas, expressions and grammars that admit nothing are recognised; all others pass."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.constraints import (
    MOST_BYTES,
    MOST_CHARACTERS,
    MOST_REPETITIONS,
    grammar_admits_something,
    regex_admits_something,
    schema_admits_something,
    too_large_field,
    too_long_field,
    too_repetitive_field,
    unsatisfiable_field,
)
from tests.support import cpu_time

MUTUAL = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        MUTUAL,
        False,
        {"type": "string", "pattern": r"[^\s\S]"},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"allOf": [{"type": "string"}, {"$ref": "#/$defs/no"}], "$defs": {"no": False}},
    ],
)
def test_a_schema_that_admits_no_value_is_recognised(schema: Any) -> None:
    assert not schema_admits_something(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema"},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"$ref": "#"}, {"type": "string", "pattern": "a|[^\\s\\S]"}]},
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "string", "pattern": "("},
        {"anyOf": []},
    ],
)
def test_every_other_schema_is_left_to_the_engine(schema: Any) -> None:
    assert schema_admits_something(schema)


def test_a_schema_that_is_too_large_to_follow_is_left_to_the_engine() -> None:
    refs = {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(60_000)}
    assert schema_admits_something({"$ref": "#/$defs/0", "$defs": {**refs, "60000": {"$ref": "#"}}})


@pytest.mark.parametrize(
    "expression", [r"[^\s\S]", r"a[^\d\D]+", r"(x|y)[^\w\W]{2}", r"[^\x00-\U0010ffff]", r"[^\s\S]|[^\d\D]b"]
)
def test_an_expression_that_matches_nothing_is_recognised(expression: str) -> None:
    assert not regex_admits_something(expression)


@pytest.mark.parametrize(
    "expression", [r"[\s\S]", r"a|[^\s\S]", r"[^\s\S]*", r"([^\s\S]b)?", "(", "", r"[^a\s]", "[[a]"]
)
def test_every_other_expression_is_left_to_the_engine(expression: str) -> None:
    assert regex_admits_something(expression)


@pytest.mark.filterwarnings("ignore:Possible")
@given(st.from_regex(r"[ab|()\[\]^\\sSdD*+?]{0,12}", fullmatch=True), st.text("ab 1\n", max_size=6))
def test_an_expression_that_matches_a_text_is_never_taken_for_an_empty_one(expression: str, text: str) -> None:
    try:
        matches = re.fullmatch(expression, text)
    except re.error:
        return
    assert matches is None or regex_admits_something(expression)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= root",
        "root ::= a\na ::= b\nb ::= a",
        'root ::= "x" root',
        'root ::= ("x" | "y") a\na ::= "(" a ")"',
        "root ::= root | root root",
        r"root ::= [^\s\S]",
    ],
)
def test_a_grammar_that_derives_nothing_is_recognised(grammar: str) -> None:
    assert not grammar_admits_something(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "x" root | "y"',
        'root ::= "x" root?',
        'root ::= ("x" root)*',
        'root ::= a{0,3} "b"\na ::= a',
        "root ::= undefined",
        "start: start",
        'root ::= "root ::= root"  # root ::= root',
        "",
        "root ::=",
        'root ::= a "z"\na ::= "(" a ")" | ""',
    ],
)
def test_every_other_grammar_is_left_to_the_engine(grammar: str) -> None:
    assert grammar_admits_something(grammar)


@given(st.text('root::=ab|"()*?[]{}0,\n #', max_size=60))
def test_any_text_can_be_checked_as_a_grammar(text: str) -> None:
    grammar_admits_something(text)


_BRANCHES = {"type": "object", "anyOf": [{"anyOf": [{"const": n}]} for n in range(100)]}
_SETS = (
    "root ::= " + " ".join(f"a{n}" for n in range(150)) + "[x]" * 500 + "".join(f'\na{n} ::= "x"' for n in range(150))
)

BOMBS: dict[str, dict[str, Any]] = {
    **{
        f"grammar {repeated}": {"structured_outputs": {"grammar": "root ::= " + repeated * (size // len(repeated))}}
        for repeated in ('"\\', "[\\", "{", "(", "a{", "[a]", '"a" |', "|a", "a*")
        for size in (4000, 300_000)
    },
    **{
        f"expression {repeated} {size}": {"structured_outputs": {"regex": repeated * (size // len(repeated))}}
        for repeated in ("(a|b)", "(", "[a]", "a*", "a|", "\\d")
        for size in (4000, 300_000)
    },
    "sets beside rules": {"structured_outputs": {"grammar": _SETS}},
    "tools": {"tool_choice": "required", "tools": [{"function": {"name": "f", "parameters": _BRANCHES}}] * 400},
    "patterns": {"structured_outputs": {"json": {"anyOf": [{"type": "string", "pattern": "(a|b)" * 100}] * 5000}}},
    "pointers": {"structured_outputs": {"json": {"anyOf": [{"$ref": "#" + "/a" * 100_000}] * 500}}},
    "required": {
        "structured_outputs": {
            "json": {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"] * 300_000}
        }
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_check_takes_some_milliseconds_whatever_it_is_about(name: str) -> None:
    # The slowest takes 0.03 s on a quiet core.
    assert cpu_time.least_s(lambda: unsatisfiable_field(BOMBS[name]), 0.2) < 0.2


def test_expressions_and_grammars_have_a_bounded_length() -> None:
    for name in ("regex", "grammar"):
        assert too_long_field({"structured_outputs": {name: "a" * MOST_CHARACTERS}}) is None
        assert (
            too_long_field({"structured_outputs": {name: "a" * (MOST_CHARACTERS + 1)}}) == f"structured_outputs.{name}"
        )


def test_a_constraint_has_a_bounded_size() -> None:
    name = "structured_outputs"
    assert too_large_field({name: {"json": {"enum": ["a" * 1000] * 1000}}}) is None
    assert too_large_field({name: {"json": {"description": "a" * MOST_BYTES}}}) == name
    assert too_large_field({name: {"choice": ["a" * 1000] * 1100}}) == name
    assert too_large_field({"messages": [{"role": "user", "content": "a" * MOST_BYTES}]}) is None
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"enum": ["a" * MOST_BYTES]}}}]
    assert too_large_field({"tools": tools, "tool_choice": "required"}) == "tools"
    assert too_large_field({"tools": tools, "tool_choice": "auto"}) is None


def _schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": fields}}}


def _tool(choice: str) -> dict[str, Any]:
    function = {"name": "f", "parameters": {"properties": {"a": {"maxLength": 10**9}}}}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (_schema(type="string", maxLength=MOST_REPETITIONS), None),
        (_schema(type="string", maxLength=MOST_REPETITIONS + 1), "response_format"),
        (
            _schema(properties={f"p{index}": {"maxItems": MOST_REPETITIONS // 10} for index in range(11)}),
            "response_format",
        ),
        (_schema(properties={"a": {"minLength": 1e7}}), "response_format"),
        (_schema(pattern="^a{0,200000}$"), "response_format"),
        (_schema(pattern="^a{200000,}$"), "response_format"),
        (_schema(description="{0} and {12}", properties={"maxLength": {"type": "integer"}}), None),
        ({"structured_outputs": {"json": '{"maxLength"\n:\t10e6}'}}, "structured_outputs"),
        (
            {"structured_outputs": {"structural_tag": '{"structures":[{"schema":{"minItems":9999999}}]}'}},
            "structured_outputs",
        ),
        ({"structured_outputs": {"json": r'{"max\u004cength":99999999}'}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "root ::= [a]{0,1000000}"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "(a{60000}){60000}"}}, "structured_outputs"),
        (_tool("required"), "tools"),
        (_tool("auto"), None),
        (_schema(x="y" * 65_500, properties={"a": {"maxLength": 10**9}}), "response_format"),
    ],
)
def test_what_a_constraint_repeats_is_bounded(body: dict[str, Any], field: str | None) -> None:
    assert too_repetitive_field(body) == field
