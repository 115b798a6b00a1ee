"""Who would answer, and why."""

from typing import Any

import pytest

from app.config.schema import Endpoint
from app.errors import BadRequest
from app.ledger.plans import plan_of
from app.routing.traffic import rendezvous
from app.server.assignment import explain

TRAFFIC = {"blue": 60, "green": 40, "red": 0}


def endpoint(**sticky: Any) -> Endpoint:
    return Endpoint.model_validate({"tasks": ["chat"], "traffic": TRAFFIC, **({"sticky": sticky} if sticky else {})})


def test_the_deployment_is_the_one_that_routing_chooses_and_has_the_highest_score() -> None:
    chat = endpoint(by="user")
    for key in ("ann", "bob", "cy", "dee"):
        told = explain("chat", chat, key, unit=0xAB, failing=())
        scores = {it["deployment"]: it["score"] for it in told["deployments"]}
        assert told["deployment"] == rendezvous(key, TRAFFIC) == max(scores, key=lambda name: scores[name])
        assert scores["red"] == 0.0
        assert (told["reason"], told["plan"], told["unit"]) == ("sticky", plan_of("chat", chat).id, "00000000000000ab")


def test_without_stickiness_every_request_is_drawn() -> None:
    told = explain("chat", endpoint(), None, unit=None, failing=())
    assert (told["deployment"], told["reason"], told["sticky"], told["unit"]) == (None, "traffic", None, None)
    assert [it["weight"] for it in told["deployments"]] == [60, 40, 0]


def test_an_override_answers_whatever_the_score_is() -> None:
    told = explain("chat", endpoint(by="user"), "ann", unit=None, failing=(), override="red")
    assert (told["deployment"], told["reason"]) == ("red", "override")
    assert "override" in told["why"]


def test_an_open_breaker_is_told() -> None:
    told = explain("chat", endpoint(by="user"), "ann", unit=None, failing={"blue", "green"})
    assert "circuit breaker is open" in told["why"]
    assert [it["breaker_open"] for it in told["deployments"]] == [True, True, False]


@pytest.mark.parametrize(
    ("sticky", "words"),
    [
        ({"by": "header", "name": "x-tenant"}, "the header x-tenant"),
        ({"by": "user"}, "a user"),
        ({"by": "api_key"}, "an API key"),
        ({"by": "conversation"}, "the header x-session-id"),
    ],
)
def test_a_missing_key_is_asked_for_in_the_endpoints_words(sticky: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequest, match=f"^key: name .*{words}"):
        explain("chat", endpoint(**sticky), None, unit=None, failing=())


def test_a_key_for_an_endpoint_that_is_not_sticky_is_refused() -> None:
    with pytest.raises(BadRequest, match="not sticky"):
        explain("chat", endpoint(), "ann", unit=None, failing=())
