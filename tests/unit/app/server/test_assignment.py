"""The deployment that would answer a key, and the reason."""

from typing import Any

import pytest

from app.config.schema import Endpoint
from app.errors import BadRequest
from app.exchange.snapshot import LiveRouting
from app.exposures.plans import plan_of
from app.routing.traffic import rendezvous
from app.server.experiments_api import explain

TRAFFIC = {"blue": 60, "green": 40, "red": 0}


def endpoint(**sticky: Any) -> Endpoint:
    return Endpoint.model_validate({"tasks": ["chat"], "traffic": TRAFFIC, **({"sticky": sticky} if sticky else {})})


def test_the_deployment_is_the_one_that_routing_chooses_and_has_the_highest_score() -> None:
    chat = endpoint(by="user")
    for key in ("ann", "bob", "cy", "dee"):
        answer = explain("chat", chat, key, unit=0xAB, failing=frozenset())
        scores = {it["deployment"]: it["score"] for it in answer["deployments"]}
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
    assert [it["weight"] for it in answer["deployments"]] == [60, 40, 0]


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
    assert [it["breaker_open"] for it in answer["deployments"]] == [it in failing for it in TRAFFIC]


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
