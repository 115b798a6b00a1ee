"""Plans, and what is recorded for each endpoint."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from app.config.schema import Config, parse
from app.exposures.plans import NEVER, RecordingScope, plan_of, plans_of, scopes
from tests.support.processes.project import ROOT

EXPERIMENT: dict[str, Any] = {
    "endpoint": "chat",
    "control": "blue",
    "treatments": ["green"],
    "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
}


def config(experiment: dict[str, Any] | None = None, **endpoint: Any) -> Config:
    chat = {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, **endpoint}
    deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green")}
    experiments = {"first": {**EXPERIMENT, **experiment}} if experiment is not None else {}
    endpoints = {"chat": chat, "other": {"tasks": ["chat"], "traffic": {"blue": 100}}}
    return parse({"endpoints": endpoints, "deployments": deployments, "experiments": experiments})


def plan_id(**endpoint: Any) -> str:
    return plan_of("chat", config(**endpoint).endpoints["chat"]).id


def test_a_plan_is_the_same_everywhere_and_changes_with_anything_that_decides_the_assignment() -> None:
    assert plan_id() == plan_id(traffic={"green": 10, "blue": 90}) == plan_id(fallback=["green"], ledger="always")
    others = {plan_id(traffic={"blue": 80, "green": 20}), plan_id(sticky={"by": "user"})}
    others |= {plan_id(sticky={"by": "conversation"}), plan_id(sticky={"by": "header", "name": "x"})}
    override = {"unit": "00000000000000ab", "deployment": "green"}
    others |= {plan_id(plan={"overrides": [override]}), plan_id(plan={"overrides": [{**override, "until": 2e9}]})}
    lasting = {"at": 2e9, "generation": 0, "weights": {"blue": 100}}
    others |= {plan_id(plan={"expires": lasting}), plan_id(plan={"expires": {**lasting, "at": 3e9}})}
    others |= {plan_id(mirror={"deployment": "green", "percent": percent}) for percent in (5, 10)}
    assert len(others | {plan_id()}) == 11
    same = plan_id(plan={"by": "alice", "reason": "more green", "since": 1e9, "generation": 0})
    assert same == plan_id(plan={}) == plan_id()
    for number in (0, 7):
        generation, _, digest = plan_id(plan={"generation": number}).partition("-")
        assert (generation, len(digest), int(digest, 16) >= 0) == (str(number), 8, True)


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_every_process_agrees_on_the_id(seed: str) -> None:
    code = (
        "import json, sys; from app.config.schema import parse; from app.exposures.plans import plan_of; "
        "print(plan_of('chat', parse(json.load(sys.stdin)).endpoints['chat']).id)"
    )
    overrides = [{"unit": f"{number:016x}", "deployment": "green"} for number in range(3)]
    here = config(sticky={"by": "user"}, plan={"generation": 4, "overrides": overrides})
    said = subprocess.run(
        [sys.executable, "-c", code],
        input=here.model_dump_json(exclude_defaults=True),
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == plan_of("chat", here.endpoints["chat"]).id


def recorded(config: Config, carried_until: Mapping[str, float] = {}) -> dict[str, RecordingScope]:
    """The scopes under the configuration's own plans."""
    return scopes(config, plans_of(config), carried_until)


def test_endpoints_with_an_active_experiment_or_a_mirror_are_recorded() -> None:
    assert recorded(config()) == {}
    assert list(recorded(config({}))) == ["chat"]
    assert list(recorded(config({"state": "paused"}))) == ["chat"]
    assert list(recorded(config({"state": "draft"}))) == list(recorded(config({"state": "stopped"}))) == []
    always = recorded(config(ledger="always"))
    assert (list(always), always["chat"].slow, always["chat"].unfinished) == (["chat"], (), ())
    assert list(recorded(config(mirror={"deployment": "green", "percent": 5}))) == ["chat"]


@pytest.mark.parametrize(
    ("experiment", "slow", "answers", "unfinished"),
    [
        ({}, (10.0,), (20.0,), (120.0,)),
        ({"guardrails": []}, (), (), ()),
        (
            {
                "guardrails": [
                    {"event": "slow", "ttft_above_s": 5},
                    {"event": "slow", "ttft_above_s": 2, "answer_above_s": 8},
                    {"event": "unfinished", "unfinished_above_s": 60},
                ]
            },
            (2.0, 5.0),
            (8.0, 20.0),
            (60.0,),
        ),
        ({"guardrails": [], "secondary": [{"metric": "unfinished", "minimal_effect": 0.1}]}, (), (), (600.0,)),
    ],
)
def test_the_limits_come_from_the_guardrails(
    experiment: dict[str, Any], slow: tuple[float, ...], answers: tuple[float, ...], unfinished: tuple[float, ...]
) -> None:
    scope = recorded(config(experiment), {"chat": 3.0})["chat"]
    assert (scope.slow, scope.answers, scope.unfinished, scope.carried_until) == (slow, answers, unfinished, 3.0)
    whole, stream = scope.first_due
    assert whole == min((*answers, *unfinished), default=NEVER)
    assert stream == min((*slow, *unfinished), default=NEVER)


def test_a_stop_makes_another_plan_unless_its_deployment_has_no_share() -> None:
    chat = config().endpoints["chat"]
    shares = dict(chat.traffic)
    stopped, control = max(shares, key=shares.__getitem__), min(shares, key=shares.__getitem__)
    plan, with_stop = plan_of("chat", chat), plan_of("chat", chat, {stopped: control})
    assert with_stop.id != plan.id
    assert with_stop.id.partition("-")[0] == plan.id.partition("-")[0], "the generation stays"
    assert with_stop.weights == {stopped: 0, control: 100}
    done = chat.model_copy(update={"traffic": {stopped: 0, control: 100}})
    assert plan_of("chat", done, {stopped: control}) == plan_of("chat", done)
