"""Decisions over HTTP: by managers, about the state that they saw.

The body of `POST /api/feedback`, checked against the running experiments.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config.schema import Config, parse
from app.errors import BadRequest, Unavailable
from app.exposures.identity import request_hash
from app.exposures.wire import FeedbackItem
from app.server.experiment_requests import checked
from tests.support.experiments.deciding_controller import DecidingController
from tests.support.experiments.rig import BLUE, GREEN, Rig, refusal

EXPERIMENT = "/api/experiments/green-float32"
DECISION = f"{EXPERIMENT}/decision"
PAUSE = {"action": "pause", "reason": "looks odd"}


@pytest.fixture
def controller() -> DecidingController:
    return DecidingController()


@pytest.fixture
def rig(tmp_path: Path, controller: DecidingController) -> Rig:
    rig = Rig(tmp_path)
    rig.controller = controller
    return rig


def decide(rig: Rig, body: Any = PAUSE, tag: str | None = '"7"', key: str = "boss") -> Any:
    headers = {"authorization": f"Bearer {rig.keys[key][0]}"} | ({"if-match": tag} if tag is not None else {})
    return rig.client.post(DECISION, json=body, headers=headers)


def test_a_manager_decides_about_the_state_that_was_seen(rig: Rig, controller: DecidingController) -> None:
    seen = rig.get(EXPERIMENT)
    assert seen.headers["etag"] == '"7"'
    assert seen.json()["acting"]["next_share"] == 25
    made = decide(rig, {"action": "promote", "reason": "good", "treatment": "smollm2-green"}, seen.headers["etag"])
    assert (made.status_code, made.headers["etag"]) == (200, '"8"')
    assert made.json()["acting"]["by"] == "boss"
    wanted = {"action": "promote", "reason": "good", "treatment": "smollm2-green", "by": "boss", "revision": 7}
    assert controller.decisions == [wanted]


@pytest.mark.parametrize("tag", ['"6", "7"', ' "7" '])
def test_tags_that_name_the_present_state(rig: Rig, controller: DecidingController, tag: str) -> None:
    assert decide(rig, tag=tag).status_code == 200
    assert controller.decisions[0]["revision"] == 7


@pytest.mark.parametrize("tag", ['"6"', "7", '"17"', '"7', ""])
def test_another_state_is_refused_with_the_present_one(rig: Rig, controller: DecidingController, tag: str) -> None:
    stale = decide(rig, tag=tag)
    assert stale.status_code == 412
    assert stale.headers["etag"] == '"7"'
    content = stale.json()
    assert content["current"]["acting"]["revision"] == 7
    assert content["error"]["param"] == "If-Match"
    assert controller.decisions == []


def test_without_a_tag_nothing_is_decided(rig: Rig, controller: DecidingController) -> None:
    assert refusal(decide(rig, tag=None))[::2] == (428, "If-Match")
    assert controller.decisions == []


def test_an_overtaken_decision_is_refused_with_the_new_state(rig: Rig, controller: DecidingController) -> None:
    controller.overtaken = True
    stale = decide(rig)
    assert (stale.status_code, stale.headers["etag"]) == (412, '"8"')
    assert stale.json()["current"]["acting"]["state"] == "paused"


def test_a_decision_about_any_state_is_not_overtaken(rig: Rig, controller: DecidingController) -> None:
    controller.overtaken = True
    assert decide(rig, tag=" * ").status_code == 200
    assert "revision" not in controller.decisions[0]


def test_a_dry_run_says_what_would_move_and_does_nothing(rig: Rig, controller: DecidingController) -> None:
    def dry(body: Any = PAUSE, key: str = "boss") -> Any:
        return rig.call("POST", DECISION, key, json=body, params={"dry_run": "true"})

    found = dry({"action": "advance", "reason": "good"})
    assert (found.status_code, found.headers["etag"]) == (200, '"7"')
    answer = found.json()
    assert (answer["before"], answer["after"]) == ({BLUE: 95, GREEN: 5}, {BLUE: 75, GREEN: 25})
    made_up = answer["moves"]["made_up_keys"]
    assert [(pair["from"], pair["to"]) for pair in made_up["pairs"]] == [(BLUE, GREEN)]
    assert made_up["share"] == pytest.approx(0.2, abs=0.02)
    assert answer["moves"]["recent_keys"]["keys"] == 0
    assert refusal(dry({"action": "advance"}))[::2] == (400, "reason")
    assert refusal(dry(key="chat team"))[0] == 403
    controller.refuse("The ramp is at its last step")
    assert refusal(dry())[:2] == (409, "The ramp is at its last step")
    controller.acting = None
    assert refusal(dry())[0] == 409
    assert controller.decisions == []


def test_only_managers_decide(rig: Rig, controller: DecidingController) -> None:
    assert refusal(decide(rig, key="chat team"))[0] == 403
    assert refusal(decide(rig, key="embed team"))[0] == 403
    assert controller.decisions == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"action": "destroy", "reason": "why not"}, "action"),
        ({"action": "pause"}, "reason"),
        ({"action": "pause", "reason": ""}, "reason"),
        ({"action": "pause", "reason": "x" * 501}, "reason"),
        ({"action": "pause", "reason": "x", "by": "somebody else"}, "by"),
        ([], None),
    ],
)
def test_a_wrong_body_names_its_field(rig: Rig, controller: DecidingController, body: Any, param: str | None) -> None:
    assert refusal(decide(rig, body))[::2] == (400, param)
    assert controller.decisions == []


def test_an_inapplicable_decision_is_a_conflict_in_the_controllers_words(
    rig: Rig, controller: DecidingController
) -> None:
    controller.refuse("The experiment runs: there is nothing to resume")
    assert refusal(decide(rig))[:2] == (409, "The experiment runs: there is nothing to resume")


def test_nothing_acts_on_a_draft_and_so_there_is_nothing_to_decide(rig: Rig, controller: DecidingController) -> None:
    controller.acting = None
    assert "etag" not in rig.get(EXPERIMENT).headers
    status, message, _ = refusal(decide(rig, tag="*"))
    assert (status, "it is an A/A test" in message) == (409, True)


def test_without_the_controller_nothing_is_decided(rig: Rig, controller: DecidingController) -> None:
    controller.absent = True
    assert refusal(decide(rig))[0] == Unavailable.status


def test_answers_as_text_have_no_tag(rig: Rig) -> None:
    for form in ("text", "markdown"):
        assert "etag" not in rig.get(EXPERIMENT, format=form).headers


EXPERIMENT_FEEDBACK: dict[str, Any] = {
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
            "experiments": experiments or {"first": EXPERIMENT_FEEDBACK},
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
    assert [(item.metric, item.value) for item in items] == [("thumbs", 1.0), ("stars", 4.5)]
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
    assert check(item(), config(first={**EXPERIMENT_FEEDBACK, "state": state})) == ([], ["thumbs"])


def test_metrics_of_endpoints_that_the_caller_may_not_use_are_unknown() -> None:
    whole = config()
    seen = whole.model_copy(update={"endpoints": {"other": whole.endpoints["other"]}})
    assert check(item(), seen) == ([], ["thumbs"])


def test_two_experiments_may_declare_a_metric_differently() -> None:
    both = config(
        first=EXPERIMENT_FEEDBACK,
        second={
            **EXPERIMENT_FEEDBACK,
            "endpoint": "other",
            "feedback": {"thumbs": {"type": "number", "min": -1, "max": 1}},
        },
    )
    assert [check(item(value=value), both)[0][0].value for value in (True, -0.5)] == [1.0, -0.5]
    with pytest.raises(BadRequest, match=r"^value: must be true or false or a number from -1 to 1, not 2$"):
        check(item(value=2), both)
