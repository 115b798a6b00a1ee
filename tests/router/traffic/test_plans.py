"""Plans over HTTP, on real routers with a control plane and a real controller of experiments."""

import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from app.access.keys import append, create
from app.config.schema import parse
from app.control_plane import Delivery, restore_expired, with_traffic
from app.errors import Unavailable
from app.exposures.wire import TrafficBlock
from app.server.application import Router
from app.server.traffic import DELIVERY_PATIENCE_S
from app.telemetry.logs import JsonFormatter
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

SEND_EVERY_S = 0.05
TRAFFIC = "/api/endpoints/chat/traffic"
ANY = {"if-match": "*"}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
SEED = {"blue": 90, "green": 10}
ANN = {"key": "ann", "caller": "chat team"}


class PlanRig:
    """Two routers with one control plane and one controller, a manager, and two teams."""

    def __init__(self, rig: Rig, directory: Path, *, delivery_patience_s: float = DELIVERY_PATIENCE_S) -> None:
        self.keys: dict[str, str] = {}
        file = directory / "keys.yaml"
        for name, endpoints in (("boss", []), ("chat team", ["chat"]), ("embed team", ["embed"])):
            self.keys[name], record = create(name, endpoints=endpoints)
            append(file, record.line)
        endpoints = rig.config["endpoints"]
        chat = {**endpoints["chat"], "traffic": SEED, "sticky": {"by": "user"}}
        self.config: dict[str, Any] = {
            **rig.config,
            "endpoints": {**endpoints, "chat": chat},
            "access": {"keys_file": str(file), "managers": ["boss"]},
        }
        self.control = MemoryControl(self.config, self.take)
        self.control.delivers_at_once = True
        self.controller = LiveController(directory / "ledger")
        self.routers = [
            Router(
                RuntimeEnvironment(internal_key="internal"),
                random=Random(number),
                control=self.control,
                controller=self.controller,
                send_every_s=SEND_EVERY_S,
                delivery_patience_s=delivery_patience_s,
            )
            for number in range(2)
        ]
        self.urls: list[str] = []
        self.take(self.config)

    def take(self, config: Any) -> None:
        for router in self.routers:
            router.reconfigure(config)
        self.controller.configure(parse(config))

    def deploy(self, **chat: Any) -> None:
        """Applies a file, as `make deploy` does."""
        endpoints = self.config["endpoints"]
        self.control.config = {**self.config, "endpoints": {**endpoints, "chat": {**endpoints["chat"], **chat}}}
        self.control.deliver()

    def call(self, method: str, path: str, key: str = "boss", *, router: int = 0, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[key]}", **more.pop("headers", {})}
        return httpx.request(method, self.urls[router] + path, headers=headers, timeout=60, **more)

    def get(self, key: str = "boss", **more: Any) -> dict[str, Any]:
        answer = self.call("GET", TRAFFIC, key, **more)
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        assert answer.headers["etag"] == f'"{shown["plan"]}"'
        return shown

    def put(self, document: dict[str, Any], tag: str | None = None, key: str = "boss", **more: Any) -> httpx.Response:
        tag = tag if tag is not None else f'"{self.get()["plan"]}"'
        return self.call("PUT", TRAFFIC, key, json=document, headers={"if-match": tag} if tag else {}, **more)

    def change(self, **document: Any) -> dict[str, Any]:
        """Changes the plan, and waits until new conversations follow it: routers that know of each other keep to the
        weights before until all have the new ones."""
        answer = self.put(document)
        assert answer.status_code == 200, answer.text
        time.sleep(4 * SEND_EVERY_S)
        shown: dict[str, Any] = answer.json()
        return shown

    def history(self) -> list[dict[str, Any]]:
        plans: list[dict[str, Any]] = self.call("GET", f"{TRAFFIC}/history").json()["plans"]
        return plans

    def ask(self, user: str = "ann", *, router: int = 0, **fields: Any) -> httpx.Response:
        body = {**CHAT, "user": user, **fields}
        return self.call("POST", "/v1/chat/completions", "chat team", router=router, json=body)


@pytest.fixture
def planned(rig: Rig, servers: ServerPool, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PlanRig]:
    """A parameter is the routers' `delivery_patience_s`."""
    planned = PlanRig(rig, tmp_path, delivery_patience_s=getattr(request, "param", DELIVERY_PATIENCE_S))
    with servers.host(planned.routers[0].app) as one, servers.host(planned.routers[1].app) as other:
        planned.urls = [one, other]
        yield planned
    planned.controller.close()


# --- reading ---------------------------------------------------------------------------------------


def test_a_plan_that_came_with_the_file_has_generation_0(planned: PlanRig) -> None:
    shown = planned.get("chat team")
    assert shown == {
        "endpoint": "chat",
        "plan": shown["plan"],
        "generation": 0,
        "sticky": {"by": "user"},
        "weights": SEED,
        "overrides": [],
        "expires": None,
        "by": None,
        "reason": None,
        "since": None,
        "pin_s": 1800.0,
        "earlier": [],
        "served": shown["plan"],
        "delivery": "settled",
    }
    assert shown == planned.get(router=1)


def test_every_answer_names_the_plan_in_all_dialects(planned: PlanRig, rig: Rig) -> None:
    plan = planned.get()["plan"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/completions", {"model": "chat", "prompt": "hi"}),
        ("/v1/messages", CHAT),
        ("/serving-endpoints/chat/invocations", CHAT),
    ]
    for path, body in calls:
        for router in range(2):
            answer = planned.call("POST", path, "chat team", router=router, json=body)
            assert answer.headers.get("x-switchyard-plan") == plan, (path, answer.text)
    rig.blue.answer = rig.green.answer = lambda body: Response(status_code=500)
    failed = planned.ask()
    assert (failed.status_code, failed.headers["x-switchyard-plan"]) == (503, plan)
    named = planned.call("POST", "/v1/chat/completions", json={**CHAT, "model": "green"})
    assert named.headers["x-switchyard-plan"] == plan
    unknown = planned.call("POST", "/v1/chat/completions", json={**CHAT, "model": "?"})
    assert "x-switchyard-plan" not in unknown.headers
    series = f'switchyard_plan_info{{endpoint="chat",plan="{plan}"}} 1.0'
    assert series in planned.call("GET", "/metrics").text


def test_reading_needs_access_and_changing_a_manager(planned: PlanRig) -> None:
    assert planned.call("GET", TRAFFIC, "embed team").status_code == 403
    assert planned.call("GET", f"{TRAFFIC}/history", "embed team").status_code == 403
    assert planned.call("GET", "/api/endpoints/gone/traffic").status_code == 404
    assert httpx.get(planned.urls[0] + TRAFFIC).status_code == 401
    for refused in (
        planned.put({"weights": {"blue": 100}}, key="chat team"),
        planned.put({"weights": {"blue": 100}}, key="chat team", params={"dry_run": "true"}),
        planned.call("POST", f"{TRAFFIC}/rollback", "chat team", json={"generation": 0}),
    ):
        assert refused.status_code == 403
        assert "access.managers" in refused.json()["error"]["message"]
    assert planned.control.replaced == 0


@pytest.mark.parametrize("dialect", ["switchyard", "databricks"])
def test_nobody_puts_a_deployment_behind_an_endpoint_that_only_others_endpoints_have(
    planned: PlanRig, dialect: str
) -> None:
    deployments = planned.config["deployments"]
    added = {"theirs": deployments["blue"], "nobodys": deployments["blue"]}
    theirs = {"tasks": ["chat"], "traffic": {"theirs": 100}}
    planned.keys["operator"] = planned.keys["chat team"]
    planned.config = {
        **planned.config,
        "deployments": {**deployments, **added},
        "endpoints": {**planned.config["endpoints"], "secret": theirs},
        "access": {**planned.config["access"], "operators": {"chat": ["chat team"]}},
    }
    planned.deploy()

    def put(key: str, name: str) -> httpx.Response:
        if dialect == "switchyard":
            return planned.put({"weights": {"blue": 50, name: 50}}, key=key)
        routes = [{"served_model_name": one, "traffic_percentage": 50} for one in ("blue", name)]
        path = "/api/2.0/serving-endpoints/chat/config"
        return planned.call("PUT", path, key, json={"traffic_config": {"routes": routes}})

    refused = put("operator", "theirs")
    assert refused.status_code == 403
    assert "'chat team' may use 'theirs' behind none of its endpoints" in refused.text
    assert planned.get()["weights"] == SEED
    assert put("operator", "nobodys").status_code == 200
    assert put("boss", "theirs").status_code == 200
    assert put("operator", "theirs").status_code == 200, "it is there already"
    wait_until(lambda: len(planned.history()) > 2, planned.history)
    last = planned.history()[0]["generation"]
    planned.deploy()  # the file's endpoint has never had it
    back = planned.call("POST", f"{TRAFFIC}/rollback", "operator", json={"generation": last}, headers=ANY)
    assert (back.status_code, planned.get()["weights"]) == (403, SEED)


# --- changing --------------------------------------------------------------------------------------


def test_a_change_is_the_next_generation_on_every_router(planned: PlanRig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "switchyard"):
        shown = planned.change(weights={"green": 100}, reason="green is better")
    assert (shown["generation"], shown["by"], shown["reason"]) == (1, "boss", "green is better")
    assert shown["weights"] == {"blue": 0, "green": 100}
    assert abs(shown["since"] - time.time()) < 60
    for router in range(2):
        answer = planned.ask(router=router)
        assert answer.headers["azureml-model-deployment"] == "green"
        assert answer.headers["x-switchyard-plan"] == shown["plan"] == planned.get(router=router)["plan"]
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["plan"] for line in lines if line["event"] == "traffic_changed"] == [shown["plan"]]


def test_the_same_document_again_is_the_same_generation(planned: PlanRig) -> None:
    document = {
        "weights": {"blue": 50, "green": 50},
        "ttl_s": 3600,
        "overrides": [{"unit_key": "ann", "caller": "chat team", "deployment": "green"}],
    }
    first = planned.change(**document)
    assert planned.change(**document) == first
    assert planned.change(**document, reason="another") == first
    assert planned.control.replaced == 1
    assert planned.change(weights=document["weights"])["generation"] == 2


def test_a_change_names_the_plan_that_it_was_made_for(planned: PlanRig) -> None:
    seen = planned.get()["plan"]
    missing = planned.put({"weights": {"green": 100}}, tag="")
    assert (missing.status_code, missing.json()["error"]["param"]) == (428, "If-Match")
    planned.change(weights={"blue": 80, "green": 20})
    stale = planned.put({"weights": {"green": 100}}, tag=f'"{seen}"')
    present = planned.get()
    assert stale.status_code == 412
    assert stale.headers["etag"] == f'"{present["plan"]}"'
    assert {**stale.json()["current"], "served": present["plan"], "delivery": "settled"} == present
    assert present["plan"] in stale.json()["error"]["message"]
    for tag in ("*", f'"0-00000000", "{present["plan"]}"'):
        assert planned.put({"weights": {"blue": 80, "green": 20}}, tag=tag).status_code == 200
    assert planned.put({"weights": {"green": 100}}, tag=f'"{seen}"', params={"dry_run": "true"}).status_code == 412
    assert planned.control.replaced == 1


def test_an_invalid_document_changes_nothing_and_all_its_problems_are_reported(planned: PlanRig) -> None:
    refused = planned.put({"weights": {"pink": 90}, "overrides": [{"deployment": "green"}], "ttl_s": -1})
    assert refused.status_code == 400
    assert [problem.partition(":")[0] for problem in refused.json()["problems"]] == [
        "ttl_s",
        "weights.pink",
        "weights",
        "overrides[0]",
    ]
    assert refused.json()["error"]["param"] == "ttl_s"
    assert planned.put({"weights": {"green": 100}}, params={"dryrun": "true"}).status_code == 400
    assert planned.put({"weights": {"green": 100}}, params={"dry_run": "yes"}).status_code == 400
    assert planned.control.replaced == 0


@pytest.mark.parametrize("planned", [0.0], indirect=True)
def test_a_change_that_is_not_delivered_in_time_is_a_conflict(planned: PlanRig) -> None:
    planned.control.delivers_at_once = False
    shown = planned.change(weights={"green": 100})
    assert (shown["delivery"], shown["served"]) == ("delivering", planned.ask().headers["x-switchyard-plan"])
    assert shown["served"] != shown["plan"]
    assert (planned.get()["plan"], planned.get()["delivery"]) == (shown["plan"], "delivering")
    busy = planned.put({"weights": {"blue": 100}})
    assert busy.status_code == 409
    assert "in progress" in busy.json()["error"]["message"]
    planned.control.deliver()
    assert planned.get()["served"] == shown["plan"]


def test_changes_wait_for_the_delivery_of_the_one_before(planned: PlanRig) -> None:
    planned.control.delivers_at_once = False
    first = planned.change(weights={"green": 100})
    delivery = threading.Timer(0.5, planned.control.deliver)
    delivery.start()
    second = planned.change(weights={"blue": 100}, reason="a mistake")
    assert not delivery.is_alive()
    assert (second["generation"], second["weights"]["blue"]) == (first["generation"] + 1, 100)

    def overtake() -> None:
        planned.control.config = with_traffic(planned.control.config, "chat", {"blue": 40, "green": 60})
        planned.control.deliver()

    threading.Timer(0.5, overtake).start()
    assert planned.put({"weights": {"green": 100}}).status_code == 412


def test_without_the_control_plane_plans_can_be_read(planned: PlanRig) -> None:
    planned.control.failure = Unavailable("down")
    assert planned.get()["delivery"] == "unsettled"
    assert planned.put({"weights": {"green": 100}}).status_code == 503


def test_a_configuration_that_no_router_takes_is_no_plan(planned: PlanRig) -> None:
    planned.control.config = with_traffic(planned.config, "chat", {"blue": 1})
    planned.control.delivery = Delivery.FAILED
    assert planned.get()["weights"] == SEED
    assert planned.put({"weights": {"green": 100}}).status_code == 409


def test_a_router_alone_is_changed_by_its_file(rig: Rig) -> None:
    shown = httpx.get(rig.url + TRAFFIC)
    assert (shown.status_code, shown.json()["delivery"]) == (200, "settled")
    for refused in (
        httpx.put(rig.url + TRAFFIC, json={"weights": {"green": 100}}, headers={"if-match": shown.headers["etag"]}),
        httpx.post(f"{rig.url}{TRAFFIC}/rollback", json={"generation": 0}),
    ):
        assert refused.status_code == 400
        assert "runs standalone" in refused.json()["error"]["message"]


# --- overrides -------------------------------------------------------------------------------------


def test_an_override_decides_for_its_unit_alone_until_it_ends(planned: PlanRig) -> None:
    planned.deploy(ledger="always")
    planned.change(weights={"blue": 100})
    assert planned.ask("ann").headers["azureml-model-deployment"] == "blue"
    override = {"unit_key": "ann", "caller": "chat team", "deployment": "green", "until": time.time() + 3600}
    shown = planned.change(weights={"blue": 100}, overrides=[override])
    for router in range(2):
        assert planned.ask("ann", router=router).headers["azureml-model-deployment"] == "green"
        assert planned.ask("bob", router=router).headers["azureml-model-deployment"] == "blue"
    explained = planned.call("GET", "/api/endpoints/chat/assignment", params=ANN).json()
    assert (explained["deployment"], explained["reason"]) == ("green", "override")
    assert explained["unit"] == shown["overrides"][0]["unit"]
    assert planned.get("chat team")["overrides"] == [{**shown["overrides"][0], "unit": None}]
    assert "ann" not in str(planned.control.config["endpoints"])
    planned.change(weights={"blue": 100}, overrides=[{**override, "until": time.time() + 0.2}])
    wait_until(lambda: planned.ask("ann").headers["azureml-model-deployment"] == "blue")


def test_requests_of_an_override_are_recorded_as_forced(planned: PlanRig) -> None:
    planned.deploy(ledger="always")
    planned.change(weights={"blue": 100}, overrides=[{"unit_key": "ann", "caller": "chat team", "deployment": "green"}])
    answer = planned.ask("ann")
    path = f"/api/requests/{answer.headers['x-request-id']}"

    def recorded() -> httpx.Response | None:
        answer = planned.call("GET", path)
        return answer if answer.status_code != 404 else None

    exposures = wait_until(recorded)
    (exposure,) = exposures.json()["exposures"]
    assert (exposure["assigned"], exposure["reason"]) == ("green", "override")
    assert "forced" in exposure["flags"]
    assert exposure["plan"]["id"] == answer.headers["x-switchyard-plan"]


# --- dry runs --------------------------------------------------------------------------------------


def test_a_dry_run_reports_what_would_move_and_changes_nothing(planned: PlanRig) -> None:
    planned.change(weights=SEED, overrides=[{"unit_key": "ann", "caller": "chat team", "deployment": "green"}])
    served = {f"user-{n}": planned.ask(f"user-{n}").headers["azureml-model-deployment"] for n in range(40)}
    replaced = planned.control.replaced
    document = {
        "weights": {"blue": 40, "green": 60},
        "overrides": [{"unit_key": "bob", "caller": "chat team", "deployment": "blue"}],
    }
    shown = planned.put(document, tag="", params={"dry_run": "true"}).json()
    assert (shown["before"]["generation"], shown["after"]["generation"]) == (1, 2)
    assert shown["after"]["weights"] == document["weights"]
    (pair,) = shown["moves"]["made_up_keys"]["pairs"]
    assert (pair["from"], pair["to"]) == ("blue", "green")
    assert abs(pair["share"] - 0.5) < 0.016
    recent = shown["moves"]["recent_keys"]
    assert [len(shown["overrides"][change]) for change in ("added", "removed", "changed")] == [1, 1, 0]
    assert planned.control.replaced == replaced
    assert planned.get()["plan"] == shown["before"]["plan"]
    planned.change(**document)
    moved = [user for user, was in served.items() if planned.ask(user).headers["azureml-model-deployment"] != was]
    assert recent == {
        "keys": 40,
        "share": len(moved) / 40,
        "pairs": [{"from": "blue", "to": "green", "share": len(moved) / 40}],
    }


def test_a_dry_run_names_the_stops_and_pins_that_it_touches(planned: PlanRig) -> None:
    planned.change(weights={"blue": 50, "green": 50})
    planned.controller.absent = True  # otherwise it would send that there is no stop
    for number in range(20):
        planned.ask(f"user-{number}", messages=[{"role": "user", "content": f"Question {number}"}])
    begun = planned.routers[0].state.pins.by_deployment("chat")
    assert list(begun) == ["green"], "only keys that the change moved"
    planned.routers[0].stop([TrafficBlock("1", "chat", "green", "blue")])
    document = {"weights": {"blue": 80, "green": 20}}
    shown = planned.put(document, tag="", params={"dry_run": "true"}).json()
    assert shown["stops"] == [{"deployment": "green", "control": "blue", "before": 50, "after": 20}]
    assert shown["pins"] == [{"deployment": "green", "conversations": begun["green"]}]
    assert shown["moves"]["made_up_keys"]["pairs"] == [], "while green is stopped, blue has them all"
    assert [replaced["weights"] for replaced in shown["after"]["earlier"]] == [SEED, {"blue": 50, "green": 50}]
    untouched = planned.put({"weights": {"blue": 50, "green": 50}}, tag="", params={"dry_run": "true"}).json()
    assert (untouched["stops"], untouched["pins"]) == ([], [])
    explained = planned.call("GET", "/api/endpoints/chat/assignment?key=ann").json()
    assert explained["stops"] == [{"deployment": "green", "control": "blue", "applied": True}]
    assert explained["pins"]["conversations"] == begun["green"]


def test_a_dry_run_of_the_present_plan_moves_nothing(planned: PlanRig) -> None:
    shown = planned.put({"weights": SEED}, params={"dry_run": "true"}).json()
    assert shown["before"] == shown["after"]
    assert shown["moves"]["made_up_keys"] == {"keys": 20_000, "share": 0.0, "pairs": []}


# --- history and rollback --------------------------------------------------------------------------


def test_the_history_has_every_plan_of_every_author(planned: PlanRig) -> None:
    first = planned.change(weights={"blue": 80, "green": 20}, reason="a step")
    body = {"traffic_config": {"routes": [{"served_entity_name": "green", "traffic_percentage": 100}]}}
    assert planned.call("PUT", "/api/2.0/serving-endpoints/chat/config", json=body).status_code == 200
    second = planned.get()
    planned.deploy(traffic={"blue": 30, "green": 70})
    planned.deploy(traffic={"blue": 30, "green": 70})
    third = planned.get()
    shown = [(plan["generation"], plan["plan"], plan.get("by"), plan.get("reason")) for plan in planned.history()]
    assert [row[::2] for row in shown] == [(3, None), (2, "boss"), (1, "boss"), (0, None)]
    assert [row[1] for row in shown[:3]] == [third["plan"], second["plan"], first["plan"]]
    assert shown[2][3] == "a step"
    assert planned.change(weights={"blue": 100})["generation"] == 4


def test_a_rollback_makes_a_generation_with_the_earlier_weights(planned: PlanRig) -> None:
    planned.change(weights={"green": 100}, overrides=[{"unit_key": "ann", "caller": "chat team", "deployment": "blue"}])
    answer = planned.call("POST", f"{TRAFFIC}/rollback", json={"generation": 0}, headers=ANY)
    shown = answer.json()
    assert (answer.status_code, shown["generation"], shown["weights"]) == (200, 2, SEED)
    assert (shown["reason"], len(shown["overrides"])) == ("back to generation 0", 1)
    again = planned.call("POST", f"{TRAFFIC}/rollback", json={"generation": 0, "reason": "x"}, headers=ANY)
    assert again.json()["plan"] == shown["plan"], "it is in force already"
    unknown = planned.call("POST", f"{TRAFFIC}/rollback", json={"generation": 9}, headers=ANY)
    assert unknown.status_code == 404
    assert "2, 1, 0" in unknown.json()["error"]["message"]
    stale = planned.call("POST", f"{TRAFFIC}/rollback", json={"generation": 1}, headers={"if-match": '"0-00000000"'})
    assert stale.status_code == 412
    for body in ({"generation": "0"}, {}, {"generation": 0, "more": 1}):
        assert planned.call("POST", f"{TRAFFIC}/rollback", json=body, headers=ANY).status_code == 400


def test_without_the_controller_there_is_no_history_and_changes_still_work(planned: PlanRig) -> None:
    planned.change(weights={"blue": 80, "green": 20})
    planned.controller.absent = True
    assert planned.call("GET", f"{TRAFFIC}/history").status_code == 503
    assert planned.call("POST", f"{TRAFFIC}/rollback", json={"generation": 0}, headers=ANY).status_code == 503
    temporary = planned.put({"weights": {"green": 100}, "ttl_s": 60})
    assert temporary.status_code == 503
    assert "ends temporary plans" in temporary.json()["error"]["message"]
    assert planned.change(weights={"green": 100})["generation"] == 2
    planned.controller.absent = False
    assert [plan["generation"] for plan in planned.history()] == [2, 1, 0]


def test_a_temporary_plan_waits_for_a_controller_that_computes(planned: PlanRig) -> None:
    planned.controller.late_s = 1.5
    assert planned.change(weights={"green": 100}, ttl_s=60)["expires"]["restores"]["generation"] == 0


def test_the_history_survives_the_controller(planned: PlanRig) -> None:
    planned.change(weights={"green": 100})
    before = planned.history()
    planned.controller.replaced()
    assert planned.history() == before


# --- temporary plans -------------------------------------------------------------------------------


async def test_a_temporary_plan_ends_in_the_one_before_and_the_history_shows_it(planned: PlanRig) -> None:
    shown = planned.change(weights={"green": 100}, ttl_s=3600)
    assert shown["expires"] == {"at": shown["since"] + 3600, "restores": {"generation": 0, "weights": SEED}}
    assert planned.ask().headers["azureml-model-deployment"] == "green"
    await restore_expired(planned.control, time.time())
    assert planned.get()["plan"] == shown["plan"]
    await restore_expired(planned.control, time.time() + 3601)
    present = planned.get()
    assert (present["generation"], present["weights"], present["expires"]) == (2, SEED, None)
    latest = planned.history()[0]
    assert (latest["generation"], latest["by"]) == (2, "boss")
    assert latest["reason"] == "generation 1 was temporary: generation 0 again"
