"""Unchanged items are not parsed again, and the result is the same.

The effects of a file on running ramps, reported before the file is delivered.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.base import ConfigError
from app.config.loading import Parser, superseded
from app.config.schema import Config, parse

_DRAFT = {"state": "draft", "primary": [{"metric": "ttft", "minimal_effect": 0.05}]}


def document(*shares: int) -> dict[str, Any]:
    return {
        "endpoints": {
            f"e{number}": {"tasks": ["chat"], "traffic": {"blue": 100 - share, "green": share}}
            for number, share in enumerate(shares)
        },
        "deployments": {name: {"app": name, "model": "m"} for name in ("blue", "green")},
        "experiments": {"x": {"endpoint": "e0", "control": "blue", "treatments": ["green"], **_DRAFT}},
    }


def outcome(parse: Callable[[Any], Config], data: Any) -> Config | list[str]:
    try:
        return parse(data)
    except ConfigError as error:
        return error.problems


@given(st.lists(st.lists(st.integers(0, 101), min_size=1, max_size=4), max_size=6))
def test_the_result_is_that_of_a_full_parse(documents: list[list[int]]) -> None:
    """101 % is invalid, and the reported problems are the same as those of a full parse."""
    parser = Parser()
    for shares in documents:
        data = document(*shares)
        loaded, expected = outcome(parser.parse, data), outcome(parse, data)
        assert loaded == expected
        assert isinstance(loaded, list) == (101 in shares)


def test_only_what_has_changed_is_parsed() -> None:
    parser = Parser()
    first, second = parser.parse(document(10, 20)), parser.parse(document(11, 20))
    assert second.endpoints["e0"].traffic == {"blue": 89, "green": 11}
    assert second.endpoints["e1"] is first.endpoints["e1"]
    assert second.deployments["blue"] is first.deployments["blue"]
    assert second.experiments["x"] is first.experiments["x"]


def test_a_change_in_place_is_a_change() -> None:
    parser, data = Parser(), document(10)
    parser.parse(data)
    data["endpoints"]["e0"]["traffic"] = {"blue": 50, "green": 50}
    assert parser.parse(data).endpoints["e0"].traffic == {"blue": 50, "green": 50}


@pytest.mark.parametrize("number", [True, 1.0], ids=repr)
def test_equal_numbers_of_another_type_are_parsed(number: object) -> None:
    """`1 == True` in Python, but a percentage must be an integer."""
    parser, data = Parser(), document(1)
    parser.parse(data)
    changed = copy.deepcopy(data)
    changed["endpoints"]["e0"]["traffic"]["green"] = number
    with pytest.raises(ConfigError, match=r"endpoints\.e0\.traffic\.green"):
        parser.parse(changed)


def test_the_order_of_deployments_is_kept() -> None:
    """The order is that of the fallbacks."""
    parser, data = Parser(), document(50)
    parser.parse(data)
    data["endpoints"]["e0"]["traffic"] = {"green": 50, "blue": 50}
    assert list(parser.parse(data).endpoints["e0"].traffic) == ["green", "blue"]


def test_references_are_checked_every_time() -> None:
    parser, data = Parser(), document(10)
    parser.parse(data)
    del data["deployments"]["green"]
    with pytest.raises(ConfigError, match="unknown deployment 'green'"):
        parser.parse(data)
    assert parser.parse(document(10)) == parse(document(10))


@pytest.mark.parametrize("data", [None, [], {"endpoints": {1: {}}}, {"endpoints": {"e": object()}}])
def test_other_data_is_rejected_as_by_a_full_parse(data: object) -> None:
    with pytest.raises(ConfigError):
        Parser().parse(data)


RAMPED: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    "ramp": {},
}
BY_HAND = {name: value for name, value in RAMPED.items() if name != "ramp"}
MOVED = {"generation": 3, "by": "experiment exp", "since": 1.0}


def config(green: int, experiments: dict[str, Any], plan: dict[str, Any] | None = None, other: int = 0) -> Config:
    traffic = {"blue": 90 - green, "green": green, "other": other, "more": 10 - other}
    endpoint = {"tasks": ["chat"], "traffic": traffic, "sticky": {"by": "conversation"}, "plan": plan or {}}
    deployments = {name: {"app": name, "model": "m"} for name in traffic}
    return parse({"endpoints": {"chat": endpoint}, "deployments": deployments, "experiments": experiments})


def test_a_file_that_changes_the_share_of_a_ramp() -> None:
    assert superseded(config(25, {"exp": RAMPED}, MOVED), config(1, {"exp": RAMPED})) == [
        "endpoints.chat.traffic: 'exp' has brought it to blue 65 %, green 25 %; this file says blue 89 %, green 1 %, "
        "which wins and pauses the experiment; to keep the present split, write it into the file"
    ]


def test_a_ramp_that_has_not_moved_yet() -> None:
    (line,) = superseded(config(1, {"exp": RAMPED}), config(10, {"exp": RAMPED}))
    assert line.startswith("endpoints.chat.traffic: the ramp of 'exp' runs, at blue 89 %, green 1 %; this file says ")


def test_a_rollback_that_a_file_undoes() -> None:
    (line,) = superseded(config(0, {"exp": BY_HAND}, MOVED), config(50, {"exp": BY_HAND}))
    assert "'exp' has brought it to blue 90 %, green 0 %" in line


@pytest.mark.parametrize("state", ["draft", "stopped", None])
def test_a_file_that_ends_the_run(state: str | None) -> None:
    wanted = {} if state is None else {"exp": {**RAMPED, "state": state}}
    ends, moves = superseded(config(25, {"exp": RAMPED}, MOVED), config(1, wanted))
    assert ends.startswith("experiments.exp: it moves traffic, and this file interrupts its run")
    assert "which wins; to keep" in moves
    assert superseded(config(25, {"exp": RAMPED}, MOVED), config(25, wanted)) == [ends]


def test_a_file_that_undoes_nothing_is_not_reported() -> None:
    ramped = config(25, {"exp": RAMPED}, MOVED)
    assert superseded(ramped, config(25, {"exp": RAMPED})) == []
    assert superseded(config(25, {"exp": RAMPED}, MOVED, other=5), config(25, {"exp": RAMPED}, other=7)) == []
    assert superseded(config(25, {"exp": BY_HAND}), config(1, {"exp": BY_HAND})) == []
    assert superseded(config(25, {"exp": {**RAMPED, "state": "draft"}}), config(1, {})) == []
    assert superseded(config(25, {}), config(1, {"exp": RAMPED})) == []


def test_an_endpoint_that_a_file_removes() -> None:
    applied = config(25, {"exp": RAMPED}, MOVED)
    wanted = applied.model_copy(update={"endpoints": {}, "experiments": {}})
    assert [line.partition(":")[0] for line in superseded(applied, wanted)] == ["experiments.exp"]
