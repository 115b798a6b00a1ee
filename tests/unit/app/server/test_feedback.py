"""The body of `POST /api/feedback`, checked against the running experiments."""

import json
from typing import Any

import pytest

from app.config.schema import Config, parse
from app.errors import BadRequest
from app.exposures.identity import request_hash
from app.exposures.wire import FeedbackItem
from app.server.experiment_requests import checked

EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    "feedback": {"thumbs": {}, "stars": {"type": "number", "min": 1, "max": 5}},
}


def config(**experiments: Any) -> Config:
    return parse(
        {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}},
                "other": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}},
            },
            "deployments": {
                name: {"url": f"http://127.0.0.1:1/{name}", "model": "m", "tasks": ["chat"]}
                for name in ("blue", "green")
            },
            "experiments": experiments or {"first": EXPERIMENT},
        }
    )


def check(body: Any, config: Config = config()) -> tuple[list[FeedbackItem], list[str]]:  # noqa: B008
    return checked(json.dumps(body).encode(), config, 7, 1000.0)


def item(metric: str = "thumbs", value: Any = True, **other: Any) -> dict[str, Any]:
    return {"request_id": "r1", "metric": metric, "value": value, **other}


def test_a_score_becomes_an_item_without_the_id() -> None:
    assert check(item()) == ([FeedbackItem(1000.0, request_hash("r1"), 7, "thumbs", 1.0)], [])
    assert check(item(value=False))[0][0].value == 0.0
    assert check(item("stars", 4))[0][0].value == 4.0


def test_a_list_may_hold_several_metrics() -> None:
    items, unknown = check([item(), item("stars", 4.5), item("thumb"), item("thumb"), item("ttft")])
    assert [(it.metric, it.value) for it in items] == [("thumbs", 1.0), ("stars", 4.5)]
    assert unknown == ["thumb", "ttft"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (item("stars", 6), "value"),
        (item("stars", 0.5), "value"),
        (item("stars", True), "value"),
        (item(value=2), "value"),
        (item(value="yes"), "value"),
        ([item(), item(value=0.5)], "[1].value"),
        (item(user="u"), "user"),
        ({"metric": "thumbs", "value": True}, "request_id"),
        (item(request_id=""), "request_id"),
        ([item(), {"request_id": "r"}], "[1].metric"),
        ([], None),
        ([item()] * 1001, None),
        ("text", None),
        (None, None),
    ],
)
def test_mistakes_are_named_and_no_score_counts(body: Any, path: str | None) -> None:
    with pytest.raises(BadRequest) as raised:
        check(body)
    assert raised.value.param == path
    assert path is None or raised.value.message.startswith(f"{path}: ")


@pytest.mark.parametrize("body", [b"", b"{", b'{"request_id": "r", "metric": "stars", "value": NaN}', b"\xff"])
def test_a_body_that_is_no_json(body: bytes) -> None:
    with pytest.raises(BadRequest):
        checked(body, config(), 7, 1000.0)


@pytest.mark.parametrize("state", ["draft", "stopped"])
def test_metrics_of_experiments_that_do_not_run_are_unknown(state: str) -> None:
    assert check(item(), config(first={**EXPERIMENT, "state": state})) == ([], ["thumbs"])


def test_metrics_of_endpoints_that_the_caller_may_not_use_are_unknown() -> None:
    whole = config()
    seen = whole.model_copy(update={"endpoints": {"other": whole.endpoints["other"]}})
    assert check(item(), seen) == ([], ["thumbs"])


def test_two_experiments_may_declare_a_metric_differently() -> None:
    both = config(
        first=EXPERIMENT,
        second={**EXPERIMENT, "endpoint": "other", "feedback": {"thumbs": {"type": "number", "min": -1, "max": 1}}},
    )
    assert [check(item(value=value), both)[0][0].value for value in (True, -0.5)] == [1.0, -0.5]
    with pytest.raises(BadRequest, match=r"^value: must be true or false or a number from -1 to 1, not 2$"):
        check(item(value=2), both)
