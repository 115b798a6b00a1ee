"""A plan as callers write it: all problems are reported together."""

from typing import Any

import pytest

from app.config.endpoints import Override
from app.config.schema import Config, parse
from app.control_plane import WantedPlan
from app.dialects.bodies import json_object_with_nulls
from app.errors import BadRequest
from app.exposures.identity import Hashes, own_key
from app.server.traffic_document import InvalidDocument, plan_view, wanted_plan

UNIT = Hashes(b"secret").unit
ANN = f"{UNIT('ann'):016x}"
NOW = 1000.0
IDS = {"shop": "key-shop", "desk": "key-desk"}


def config(plan: dict[str, Any] | None = None, *, keys: bool = False, **endpoint: Any) -> Config:
    chat = {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, "sticky": {"by": "user"}, "plan": plan or {}}
    deployments: dict[str, Any] = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green", "red")}
    deployments["mini"] = {"url": "http://mini", "model": "m", "tasks": ["embeddings"]}
    access = {"keys_file": "keys.yaml"} if keys else {}
    return parse({"endpoints": {"chat": {**chat, **endpoint}}, "deployments": deployments, "access": access})


def wanted(content: dict[str, Any], **endpoint: Any) -> WantedPlan:
    return wanted_plan(content, "chat", config(**endpoint), UNIT, IDS.get, NOW)


def problems(content: dict[str, Any], **endpoint: Any) -> list[str]:
    with pytest.raises(InvalidDocument) as raised:
        wanted(content, **endpoint)
    assert raised.value.message == "; ".join(raised.value.problems)
    return raised.value.problems


def test_a_deployment_that_is_left_out_gets_0() -> None:
    assert wanted({"weights": {"red": 100}}) == WantedPlan({"blue": 0, "green": 0, "red": 100})
    assert wanted({"weights": {"blue": 100}, "ttl_s": 60, "reason": "why"}) == WantedPlan(
        {"blue": 100, "green": 0}, ttl_s=60, reason="why"
    )


def test_an_override_names_a_key_or_its_hash_and_only_the_hash_is_kept() -> None:
    by_key = {"unit_key": "ann", "deployment": "green"}
    by_hash = {"unit": "0" * 16, "deployment": "blue", "until": 2000.5}
    plan = wanted({"weights": {"blue": 100}, "overrides": [by_key, by_hash]}).overrides
    assert plan == (
        Override(unit="0" * 16, deployment="blue", until=2000.5),
        Override(unit=ANN, deployment="green"),
    )
    assert plan == wanted({"weights": {"blue": 100}, "overrides": [by_hash, {**by_key, "until": None}]}).overrides


def test_where_callers_have_keys_an_override_names_the_caller() -> None:
    override = {"unit_key": "ann", "deployment": "green"}

    def units(*overrides: dict[str, Any], **endpoint: Any) -> list[str]:
        plan = wanted({"weights": {"blue": 100}, "overrides": list(overrides)}, keys=True, **endpoint)
        return [override.unit for override in plan.overrides]

    shop, desk = ({**override, "caller": name} for name in ("shop", "desk"))
    own = [f"{UNIT(own_key(id, 'ann')):016x}" for id in ("key-shop", "key-desk")]
    assert set(units(shop, desk)) == set(own)
    assert units({"unit": ANN, "deployment": "green"}) == [ANN]
    by_key = {"unit_key": "shop", "deployment": "green"}
    assert units(by_key, sticky={"by": "api_key"}) == [f"{UNIT(own_key('key-shop', '')):016x}"]
    (problem,) = problems({"weights": {"blue": 100}, "overrides": [override]}, keys=True, sticky={"by": "api_key"})
    assert problem == "overrides[0].unit_key: is no name of an API key, and no token's principal"
    for content, said in (
        (override, "overrides[0].caller: missing; name the caller whose key it is"),
        ({**override, "caller": "who"}, "overrides[0].caller: no key has the name 'who'"),
        ({"unit": ANN, "deployment": "green", "caller": "shop"}, "overrides[0].caller: leave it out"),
    ):
        (problem,) = problems({"weights": {"blue": 100}, "overrides": [content]}, keys=True)
        assert problem.startswith(said)
    (problem,) = problems({"weights": {"blue": 100}, "overrides": [shop]})
    assert problem.startswith("overrides[0].caller: leave it out")


def test_a_document_that_was_returned_can_be_sent_back() -> None:
    plan = {"overrides": [{"unit": ANN, "deployment": "green", "until": 5000.0}]}
    answer = plan_view("chat", config(plan).endpoints["chat"], with_units=True)
    again = {name: answer[name] for name in ("weights", "overrides", "reason")}
    assert wanted_plan(again, "chat", config(plan), UNIT, IDS.get, NOW) == WantedPlan(
        {"blue": 90, "green": 10}, config(plan).endpoints["chat"].plan.overrides
    )


def test_units_are_shown_to_managers_only() -> None:
    plan = {"overrides": [{"unit": ANN, "deployment": "green"}]}
    answer = plan_view("chat", config(plan).endpoints["chat"], with_units=False)
    assert answer["overrides"] == [{"unit": None, "deployment": "green", "until": None}]


def test_a_temporary_plan_shows_its_end() -> None:
    expires = {"at": 2000.0, "generation": 3, "weights": {"blue": 100}}
    answer = plan_view("chat", config({"generation": 4, "expires": expires}).endpoints["chat"], with_units=True)
    assert answer["expires"] == {"at": 2000.0, "restores": {"generation": 3, "weights": {"blue": 100}}}


def test_all_problems_are_reported_together_with_their_paths() -> None:
    override = {"unit_key": "ann", "deployment": "green"}
    assert problems(
        {
            "weights": {"blue": 50, "mini": 20, "pink": 20},
            "overrides": [
                override,
                {**override, "unit": ANN},
                {"deployment": "red", "unit_key": "bob"},
                {**override, "unit_key": "cy", "until": 999.0},
            ],
            "ttl_s": 0,
            "raeson": "x",
        }
    ) == [
        "ttl_s: expected more than 0, not 0",
        "raeson: unknown key; did you mean reason?",
        "weights.mini: 'mini' does not do chat, which the endpoint does; leave it out",
        "weights.pink: no deployment 'pink' is declared; it can be: blue, green, red",
        "weights: the percentages sum to 90, they must sum to 100: add 10",
        "overrides[1]: name either `unit_key` or `unit`",
        "overrides[2].deployment: 'red' is not in the weights; add it there, with 0 if it gets no more",
        "overrides[3].until: is over; remove the override",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "weights: Field required"),
        ({"weights": {}}, "weights: expected at least 1, not 0"),
        ({"weights": {"blue": 99.5, "green": 0.5}}, "weights.blue: expected a whole number, not 99.5"),
        ({"weights": {"blue": 101}}, "weights.blue: expected at most 100, not 101"),
        ({"weights": {"blue": 100, "green": 10}}, "weights: the percentages sum to 110, they must sum to 100: take"),
        ({"weights": {"blue": 100}, "overrides": [{"unit_key": "a"}]}, "overrides[0].deployment: Field required"),
        ({"weights": {"blue": 100}, "overrides": [{"unit": "x", "deployment": "blue"}]}, "overrides[0].unit: String"),
        ({"weights": {"blue": 100}, "reason": ""}, "reason: String should have at least 1 character"),
        ({"weights": {"blue": 100}, "ttl_s": 1e9}, "ttl_s: expected at most 7776000, not"),
    ],
)
def test_a_wrong_document_is_refused(content: dict[str, Any], said: str) -> None:
    assert problems(content)[0].startswith(said)


def test_a_unit_has_one_override() -> None:
    override = {"deployment": "green"}
    said = problems(
        {"weights": {"blue": 100}, "overrides": [{**override, "unit_key": "ann"}, {**override, "unit": ANN}]}
    )
    assert said == ["overrides[1]: the same unit as overrides[0]; remove one"]


def test_without_stickiness_there_are_no_units() -> None:
    override = {"unit_key": "ann", "deployment": "green"}
    (said,) = problems({"weights": {"blue": 100}, "overrides": [override]}, sticky=None)
    assert said.startswith("overrides: 'chat' is not sticky")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'{"a": NaN}', b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"^The body"):
        json_object_with_nulls(body)
