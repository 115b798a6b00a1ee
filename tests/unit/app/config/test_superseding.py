"""The effects of a file on running ramps, reported before the file is delivered."""

from typing import Any

import pytest

from app.config.loading import superseded
from app.config.schema import Config, parse

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
    assert ends.startswith("experiments.exp: it moves traffic, and this file ends its run")
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
