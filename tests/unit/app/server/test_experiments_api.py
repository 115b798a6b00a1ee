"""The API of experiments: access, and how the controller's answers are passed on.

The deployment that would answer a key, and the reason.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config.schema import Endpoint
from app.errors import BadRequest
from app.exchange.snapshot import LiveRouting
from app.exposures.identity import own_key, request_hash
from app.exposures.plans import plan_of
from app.routing.traffic import rendezvous
from app.server.experiments_api import explain
from tests.support.experiments.reports import SHIP
from tests.support.experiments.rig import BLUE, GREEN, HASHES, Rig, refusal


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


REPORT = "/api/experiments/green-float32/report"


def test_experiments_are_listed_to_those_who_may_use_their_endpoint(rig: Rig) -> None:
    for key in ("boss", "chat team"):
        listed = rig.get("/api/experiments", key).json()["experiments"]
        assert [summary["experiment"] for summary in listed] == ["green-float32", "next"]
    assert rig.get("/api/experiments", "embed team").json() == {"experiments": []}
    assert refusal(rig.get("/api/experiments", ""))[0] == 401


def test_the_list_has_three_formats(rig: Rig) -> None:
    assert rig.get("/api/experiments", format="text").text.startswith("EXPERIMENT")
    markdown = rig.get("/api/experiments", format="markdown")
    assert markdown.headers["content-type"] == "text/markdown; charset=utf-8"
    assert markdown.text.startswith("| experiment | endpoint |")
    assert refusal(rig.get("/api/experiments", format="pdf"))[::2] == (400, "format")


def test_the_controllers_answers_are_passed_on(rig: Rig) -> None:
    assert rig.get(REPORT, "chat team").json()["headline"] == SHIP.headline
    view = rig.get(REPORT, format="text")
    assert view.headers["content-type"] == "text/plain; charset=utf-8"
    assert view.text.startswith(SHIP.headline)
    assert rig.get("/api/experiments/green-float32").json()["decision"] == "ship"
    assert len(rig.get("/api/experiments/green-float32/history", metric="ttft").json()["points"]) == 3
    assert rig.get("/api/experiments/green-float32/planner", effect="0.1").json()["effect"] == 0.1


def test_another_teams_experiment_is_forbidden_and_an_unknown_one_not_found(rig: Rig) -> None:
    status, message, param = refusal(rig.get(REPORT, "embed team"))
    assert (status, param) == (403, "name")
    assert message == "'embed team' may not use the endpoint of the experiment 'green-float32'"
    status, message, param = refusal(rig.get("/api/experiments/red/report", "embed team"))
    assert (status, message, param) == (404, "No experiment 'red'; known: none", "name")


def test_the_controllers_refusals_name_the_parameter(rig: Rig) -> None:
    assert refusal(rig.get("/api/experiments/green-float32/planner", power="2"))[::2] == (400, "power")
    assert refusal(rig.get(REPORT, at="yesterday"))[::2] == (400, "at")
    assert refusal(rig.get("/api/experiments/green-float32/aa"))[0] == 404


def test_a_parameter_that_is_not_read_is_refused(rig: Rig) -> None:
    assert refusal(rig.get(REPORT, metrc="ttft"))[::2] == (400, "metrc")
    assert refusal(rig.get("/api/requests/r1", format="text"))[::2] == (400, "format")


def test_only_managers_start_aa_runs(rig: Rig) -> None:
    path = "/api/experiments/green-float32/aa"
    assert refusal(rig.call("POST", path, "chat team", json={"runs": 3}))[0] == 403
    assert rig.call("POST", path, json={"runs": 3}).status_code == 202
    assert refusal(rig.call("POST", path, json={"runs": 0}))[::2] == (400, "runs")


def test_a_controller_that_does_not_answer_is_a_503_with_the_reason(rig: Rig) -> None:
    assert rig.controller is not None
    rig.controller.absent = True
    status, message, _ = refusal(rig.get(REPORT))
    assert (status, message) == (503, "The controller of experiments cannot be reached")
    rig.controller = None
    assert refusal(rig.get("/api/experiments"))[0] == 503


def test_without_a_configuration_everything_is_a_503(rig: Rig) -> None:
    rig.views = None
    for path in ("/api/experiments", REPORT, "/api/requests/r1", "/api/endpoints/chat/assignment"):
        assert refusal(rig.get(path, ""))[0] == 503


def test_without_experiments_no_controller_is_needed(rig: Rig) -> None:
    rig.configure({**rig.plain, "experiments": {}})
    rig.controller = None
    assert rig.get("/api/experiments").json() == {"experiments": []}
    assert rig.get("/api/experiments", format="text").text == "No experiments are declared.\n"
    assert rig.call("POST", "/api/feedback", json=score()).json()["unknown_metric"] == ["thumbs"]


# --- requests --------------------------------------------------------------------------------------


PLAN = {"endpoint": "chat"}


def with_exposure(rig: Rig, caller: str) -> None:
    assert rig.controller is not None
    row = {"assigned": BLUE, "plan": PLAN, "caller": f"{HASHES.caller(rig.id_of(caller)):016x}"}
    rig.controller.reader.rows[request_hash("chatcmpl-1/2")] = [row]


def test_a_caller_sees_its_own_requests_and_a_manager_all(rig: Rig) -> None:
    with_exposure(rig, "chat team")
    for key in ("chat team", "boss"):
        shown = rig.get("/api/requests/chatcmpl-1/2", key).json()
        assert shown == {"request_id": "chatcmpl-1/2", "exposures": [{"assigned": BLUE, "plan": PLAN}]}
    assert refusal(rig.get("/api/requests/chatcmpl-1/2", "embed team"))[::2] == (404, "id")


def test_a_request_that_was_not_recorded_is_not_found(rig: Rig) -> None:
    status, message, _ = refusal(rig.get("/api/requests/r1"))
    assert status == 404
    assert "still running" in message
    rig.ledger.hashes = None
    assert refusal(rig.get("/api/requests/r1"))[0] == 404


# --- feedback --------------------------------------------------------------------------------------


def score(metric: str = "thumbs", value: Any = True) -> dict[str, Any]:
    return {"request_id": "r1", "metric": metric, "value": value}


def test_feedback_goes_into_the_ledger_with_the_callers_hash(rig: Rig) -> None:
    answer = rig.call("POST", "/api/feedback", "chat team", json=score())
    assert (answer.status_code, answer.json()) == (202, {"accepted": 1, "pending": 1, "late": 0, "unknown_metric": []})
    (item,) = rig.ledger.items
    assert (item.request, item.metric, item.value) == (request_hash("r1"), "thumbs", 1.0)
    assert item.caller == HASHES.caller(rig.id_of("chat team"))


def test_a_manager_scores_every_answer(rig: Rig) -> None:
    rig.call("POST", "/api/feedback", json=score())
    assert rig.ledger.items[0].caller == 0


def test_a_known_request_is_not_pending(rig: Rig) -> None:
    assert rig.controller is not None
    rig.controller.reader.judged.requests.add(request_hash("r1"))
    assert rig.call("POST", "/api/feedback", json=[score(), score("stars", 3)]).json()["pending"] == 0


def test_feedback_is_kept_while_the_controller_is_away(rig: Rig) -> None:
    assert rig.controller is not None
    rig.controller.absent = True
    assert rig.call("POST", "/api/feedback", json=score()).json() == {
        "accepted": 1,
        "pending": None,
        "late": None,
        "unknown_metric": [],
    }
    assert len(rig.ledger.items) == 1


def test_unknown_metrics_are_reported_and_the_others_count(rig: Rig) -> None:
    answer = rig.call("POST", "/api/feedback", json=[score(), score("thumb")]).json()
    assert (answer["accepted"], answer["unknown_metric"]) == (1, ["thumb"])
    assert rig.call("POST", "/api/feedback", "embed team", json=score()).json()["unknown_metric"] == ["thumbs"]


def test_wrong_feedback_is_refused_as_a_whole(rig: Rig) -> None:
    answer = rig.call("POST", "/api/feedback", json=[score(), score("stars", 9)])
    assert refusal(answer) == (400, "[1].value: must be a number from 1 to 5, not 9", "[1].value")
    assert rig.ledger.items == []
    assert refusal(rig.call("POST", "/api/feedback", "", json=score()))[0] == 401


@pytest.mark.parametrize(("value", "stored"), [(True, 1.0), (False, 0.0), (1, 1.0), (0, 0.0), (1.0, 1.0)])
def test_a_boolean_metric_takes_1_and_0_too(rig: Rig, value: Any, stored: float) -> None:
    assert rig.call("POST", "/api/feedback", json=score(value=value)).status_code == 202
    assert rig.ledger.items[0].value == stored


@pytest.mark.parametrize(
    ("metric", "value", "message"),
    [
        ("thumbs", 2, "must be true or false, not 2"),
        ("thumbs", "yes", "must be true or false, not a text"),
        ("stars", "yes", "must be a number from 1 to 5, not a text"),
        ("stars", True, "must be a number from 1 to 5, not true"),
        ("stars", None, "must be a number from 1 to 5, not null"),
        ("stars", [3], "must be a number from 1 to 5, not a list"),
    ],
)
def test_the_error_names_the_type_that_the_metric_has(rig: Rig, metric: str, value: Any, message: str) -> None:
    answer = rig.call("POST", "/api/feedback", json=score(metric, value))
    assert refusal(answer) == (400, f"value: {message}", "value")


def test_where_nothing_is_recorded_feedback_is_a_503(rig: Rig) -> None:
    rig.ledger.hashes = None
    assert refusal(rig.call("POST", "/api/feedback", json=score()))[0] == 503


# --- assignment ------------------------------------------------------------------------------------


def test_a_key_is_explained_to_those_who_may_use_the_endpoint(rig: Rig) -> None:
    path = "/api/endpoints/chat/assignment"
    view = rig.get(path, "chat team", key="session-1").json()
    assert view["deployment"] in (BLUE, GREEN)
    assert view["unit"] is None, "only managers may look for a unit in the ledger"
    own = own_key(rig.id_of("boss"), "session-1")
    assert rig.get(path, key="session-1").json()["unit"] == f"{HASHES.unit(own):016x}"
    assert refusal(rig.get(path, "embed team", key="session-1"))[0] == 403
    assert refusal(rig.get("/api/endpoints/red/assignment"))[::2] == (404, "endpoint")
    assert refusal(rig.get(path))[::2] == (400, "key")


def test_a_manager_asks_about_other_callers_keys_and_others_about_their_own(rig: Rig) -> None:
    path = "/api/endpoints/chat/assignment"
    theirs = rig.get(path, key="session-1", caller="chat team").json()
    key = own_key(rig.id_of("chat team"), "session-1")
    assert theirs["unit"] == f"{HASHES.unit(key):016x}"
    assert theirs["deployment"] == rig.get(path, "chat team", key="session-1").json()["deployment"]
    assert refusal(rig.get(path, "chat team", key="session-1", caller="boss"))[::2] == (403, "caller")
    assert refusal(rig.get(path, key="session-1", caller="nobody"))[::2] == (400, "caller")


def test_an_endpoint_that_is_sticky_by_api_key_takes_the_callers_own(rig: Rig) -> None:
    path = "/api/endpoints/keyed/assignment"
    boss, team = (f"{HASHES.unit(own_key(rig.id_of(name), '')):016x}" for name in ("boss", "chat team"))
    assert rig.get(path).json()["unit"] == rig.get(path, key="boss").json()["unit"] == boss
    assert rig.get(path, key="chat team").json()["unit"] == team
    assert refusal(rig.get(path, key="nobody"))[::2] == (400, "key")


def test_an_open_breaker_is_reported(rig: Rig) -> None:
    view = rig.get("/api/endpoints/chat/assignment", key="x").json()
    assert {deployment["deployment"]: deployment["breaker_open"] for deployment in view["deployments"]} == {
        BLUE: False,
        GREEN: True,
    }


def test_every_operation_is_counted_but_among_no_endpoints_requests(rig: Rig) -> None:
    rig.get(REPORT)
    assert 'deployment="",dialect="switchyard",endpoint="",' in rig.telemetry.expose().decode()
    assert 'dialect="switchyard"' not in rig.telemetry.expose(["chat"]).decode()


def test_bodies_are_not_echoed(rig: Rig) -> None:
    answer = rig.call("POST", "/api/feedback", content=json.dumps({"request_id": "secret-id"}))
    assert "secret-id" not in answer.text


TRAFFIC = {"blue": 60, "green": 40, "red": 0}


def endpoint(**sticky: Any) -> Endpoint:
    return Endpoint.model_validate({"tasks": ["chat"], "traffic": TRAFFIC, **({"sticky": sticky} if sticky else {})})


def test_the_deployment_is_the_one_that_routing_chooses_and_has_the_highest_score() -> None:
    chat = endpoint(by="user")
    for key in ("ann", "bob", "cy", "dee"):
        answer = explain("chat", chat, key, unit=0xAB, failing=frozenset())
        scores = {deployment["deployment"]: deployment["score"] for deployment in answer["deployments"]}
        assert answer["deployment"] == rendezvous(key, TRAFFIC) == max(scores, key=lambda name: scores[name])
        assert scores["red"] == 0.0
        assert (answer["reason"], answer["plan"], answer["unit"]) == (
            "sticky",
            plan_of("chat", chat).id,
            "00000000000000ab",
        )


def test_without_stickiness_every_request_is_drawn() -> None:
    answer = explain("chat", endpoint(), None, unit=None, failing=frozenset())
    assert (answer["deployment"], answer["reason"], answer["sticky"], answer["unit"]) == (None, "traffic", None, None)
    assert [deployment["weight"] for deployment in answer["deployments"]] == [60, 40, 0]


def test_an_override_answers_regardless_of_the_score() -> None:
    answer = explain("chat", endpoint(by="user"), "ann", unit=None, failing=frozenset(), override="red")
    assert (answer["deployment"], answer["reason"]) == ("red", "override")
    assert "override" in answer["why"]


@pytest.mark.parametrize(
    ("failing", "fallback", "reason"),
    [
        ({"green"}, None, "failover"),
        ({"green"}, ["red"], "failover"),
        ({"green"}, [], "sticky"),
        ({"green", "blue"}, None, "sticky"),
        ({"green", "red"}, ["red"], "sticky"),
    ],
)
def test_an_open_breaker_is_the_reason_if_another_deployment_can_answer(
    failing: set[str], fallback: list[str] | None, reason: str
) -> None:
    chat = endpoint(by="user").model_copy(update={"fallback": fallback})
    key = next(key for key in ("ann", "bob", "cy", "dee", "eve", "fay") if rendezvous(key, TRAFFIC) == "green")
    answer = explain("chat", chat, key, unit=None, failing=failing)
    assert (answer["deployment"], answer["reason"]) == ("green", reason)
    assert "circuit breaker is open" in answer["why"]
    assert ("another deployment answers" in answer["why"]) == (reason == "failover")
    assert [deployment["breaker_open"] for deployment in answer["deployments"]] == [
        entry in failing for entry in TRAFFIC
    ]


def test_a_stop_gives_the_key_to_control_unless_controls_breaker_is_open() -> None:
    chat = endpoint(by="user")
    key = next(key for key in ("ann", "bob", "cy", "dee", "eve", "fay") if rendezvous(key, TRAFFIC) == "green")
    now = LiveRouting(stops={"green": "blue"})
    answer = explain("chat", chat, key, unit=None, failing=frozenset(), now=now)
    assert (answer["deployment"], answer["reason"]) == ("blue", "sticky")
    assert "green is stopped: blue answers in its place" in answer["why"]
    assert answer["stops"] == [{"deployment": "green", "control": "blue", "applied": True}]
    assert answer["plan"] == plan_of("chat", chat, {"green": "blue"}).id
    open_breaker = explain("chat", chat, key, unit=None, failing={"blue"}, now=now)
    assert (open_breaker["deployment"], open_breaker["plan"]) == ("green", plan_of("chat", chat).id)
    assert "until the circuit breaker of blue has closed" in open_breaker["why"]
    assert open_breaker["stops"][0]["applied"] is False
    own = explain("chat", chat, key, unit=None, failing=frozenset(), override="green", now=now)
    assert (own["deployment"], own["reason"]) == ("blue", "override")


def test_pins_of_running_conversations_are_reported() -> None:
    now = LiveRouting(pins={"green": 2, "blue": 5}, until=2000.0)
    answer = explain("chat", endpoint(by="user"), "ann", unit=None, failing=frozenset(), now=now)
    assert answer["pins"] == {"conversations": 7, "until": 2000.0}
    assert "keeps its deployment for now" in answer["why"]
    quiet = explain("chat", endpoint(by="user"), "ann", unit=None, failing=frozenset())
    assert (quiet["pins"], quiet["stops"]) == (None, [])


@pytest.mark.parametrize(
    ("sticky", "words"),
    [
        ({"by": "header", "name": "x-tenant"}, "the header x-tenant"),
        ({"by": "user"}, "a user"),
        ({"by": "api_key"}, "an API key"),
        ({"by": "conversation"}, "the header x-session-id"),
    ],
)
def test_a_missing_key_is_an_error_that_describes_the_endpoints_key(sticky: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequest, match=f"^key: name .*{words}"):
        explain("chat", endpoint(**sticky), None, unit=None, failing=frozenset())


def test_a_key_for_an_endpoint_that_is_not_sticky_is_refused() -> None:
    with pytest.raises(BadRequest, match="not sticky"):
        explain("chat", endpoint(), "ann", unit=None, failing=frozenset())
