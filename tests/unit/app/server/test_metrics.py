"""A router's metrics of its own present state.

The targets of a Prometheus server.
"""

from collections.abc import Collection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from app.access.caller import ConfigViews
from app.config.schema import Config, parse
from app.exchange.snapshot import Snapshot
from app.routing.admission import AdmissionQueue
from app.server.fleet import STOPPING, Fleet, Replica
from app.server.metrics import GAUGES, MAX_ENDPOINTS, VisibleTargets, present_state

CONFIG = parse(
    {
        "endpoints": {
            "chat": {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}, "admission": {"max_concurrent": 3}},
            "other": {"tasks": ["chat"], "traffic": {"blue": 100}},
        },
        "deployments": {name: {"url": "http://127.0.0.1:1", "model": "m"} for name in ("blue", "green")},
    }
)
ENDPOINTS = CONFIG.endpoints.keys()
SNAPSHOT = Snapshot(CONFIG, {}, ConfigViews(CONFIG), 0, plans={"chat": "0-11111111", "other": "3-22222222"})


Samples = dict[str, dict[tuple[str, ...], float]]
"""The samples by name, then by the values of the labels, in the order of the labels' names."""


def samples(endpoints: Collection[str] | None = None, **queues: AdmissionQueue) -> Samples:
    text = present_state(SNAPSHOT, queues, endpoints).decode()
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_plans_shares_and_queues_are_shown() -> None:
    values = samples(chat=AdmissionQueue(running=2))
    assert values.keys() == GAUGES.keys()
    assert values["switchyard_plan_info"] == {("chat", "0-11111111"): 1.0, ("other", "3-22222222"): 1.0}
    assert values["switchyard_traffic_share"][("green", "chat")] == 10.0
    assert values["switchyard_admission_slots"] == {("chat",): 3.0}
    assert values["switchyard_admission_running"] == {("chat",): 2.0}
    assert values["switchyard_admission_waiting"] == {("chat",): 0.0}


def test_before_the_first_request_the_queue_is_empty() -> None:
    assert samples()["switchyard_admission_running"] == {("chat",): 0.0}


def test_a_reader_of_some_endpoints_sees_these() -> None:
    values = samples(["other"])
    assert {"other"} == {
        name for family in values.values() for labels in family for name in labels if name in ENDPOINTS
    }


HOST = "llm.example:8000"
FLEET = Fleet(
    replicas=[
        Replica("r1", "router", "10.0.0.1"),
        Replica("r2", "router", "10.0.0.2"),
        Replica("b1", "blue-app", "10.0.0.2", state=STOPPING),
        Replica("s1", "spare", "10.0.0.3"),
        Replica("e1", "experiments", "10.0.0.1"),
        Replica("o1", "somebody-elses", "10.0.0.1"),
    ],
    proxies=["10.0.0.2", "10.0.0.1"],
)


def config(**changes: Any) -> Config:
    return parse(
        {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {"blue": 100}, "fallback": ["spare"]},
                "other": {"tasks": ["chat"], "traffic": {"blue": 100}},
            },
            "deployments": {
                "blue": {"app": "blue-app", "model": "m"},
                "spare": {"app": "spare", "model": "m"},
                "elsewhere": {"url": "http://127.0.0.1:1", "model": "m"},
            },
            **changes,
        }
    )


def labels(*, is_restricted: bool = False, seen: Config | None = None) -> dict[str, dict[str, str]]:
    """The targets by path."""
    groups = VisibleTargets(seen or config(), is_restricted=is_restricted).targets(HOST, FLEET)
    assert {tuple(group["targets"]) for group in groups} == {(HOST,)}, "all at the address at which the list was read"
    return {
        group["labels"]["__metrics_path__"]: {k: v for k, v in group["labels"].items() if k[0] != "_"}
        for group in groups
    }


def test_every_replica_and_proxy_is_a_target_with_its_node() -> None:
    by_path = labels()
    assert by_path["/metrics/replicas/r2"] == {
        "component": "router",
        "application": "router",
        "node": "10.0.0.2",
        "replica": "r2",
    }
    assert by_path["/metrics/proxies/10.0.0.1"] == {"component": "proxy", "node": "10.0.0.1"}
    assert by_path["/metrics/cluster"] == {"component": "cluster"}
    assert {path: group["component"] for path, group in by_path.items() if group.get("replica")} == {
        "/metrics/replicas/r1": "router",
        "/metrics/replicas/r2": "router",
        "/metrics/replicas/b1": "engine",
        "/metrics/replicas/s1": "engine",
        "/metrics/replicas/e1": "experiments",
        "/metrics/replicas/o1": "other",
    }
    assert len(by_path) == 9


def test_no_two_targets_have_the_same_labels() -> None:
    by_path = [tuple(sorted(label.items())) for label in labels().values()]
    assert len(set(by_path)) == len(by_path)


def test_an_engine_has_its_deployment_and_its_endpoints() -> None:
    by_path = labels()
    assert by_path["/metrics/replicas/b1"]["deployment"] == "blue"
    assert by_path["/metrics/replicas/b1"]["endpoint"] == "chat,other"
    assert by_path["/metrics/replicas/s1"]["endpoint"] == "chat", "a fallback serves the endpoint, too"


def test_labels_do_not_change_while_a_replica_drains() -> None:
    assert "draining" not in str(labels()["/metrics/replicas/b1"])


def test_a_deployment_behind_very_many_endpoints_has_no_endless_label() -> None:
    endpoints = {f"e{n}": {"tasks": ["chat"], "traffic": {"blue": 100}} for n in range(MAX_ENDPOINTS + 1)}
    by_path = labels(seen=config(endpoints=endpoints))
    assert by_path["/metrics/replicas/b1"]["deployment"] == "blue"
    assert "endpoint" not in by_path["/metrics/replicas/b1"]
    assert "endpoint" not in by_path["/metrics/replicas/s1"], "nor one that serves none"


def test_a_reader_of_some_endpoints_sees_routers_and_the_engines_behind_them() -> None:
    seen = config(
        endpoints={"other": {"tasks": ["chat"], "traffic": {"blue": 100}}},
        deployments={"blue": {"app": "blue-app", "model": "m"}},
    )
    by_path = labels(is_restricted=True, seen=seen)
    assert by_path.keys() == {
        "/metrics/cluster",
        "/metrics/replicas/r1",
        "/metrics/replicas/r2",
        "/metrics/replicas/b1",
    }
    assert by_path["/metrics/replicas/b1"]["endpoint"] == "other", "without the names of the others"


def test_a_router_alone_is_its_only_target() -> None:
    (only,) = VisibleTargets(config(), is_restricted=False).targets(HOST, None)
    assert only == {"targets": [HOST], "labels": {"__metrics_path__": "/metrics", "component": "router"}}
