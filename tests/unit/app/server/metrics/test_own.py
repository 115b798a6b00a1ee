"""A router's metrics of its own present state."""

from collections.abc import Collection

from prometheus_client.parser import text_string_to_metric_families

from app.access.caller import ConfigViews
from app.config.schema import parse
from app.exchange.snapshot import Snapshot
from app.routing.admission import AdmissionQueue
from app.server.metrics import GAUGES, present_state

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
        family.name: {tuple(it.labels.values()): it.value for it in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_plans_shares_and_queues_are_shown() -> None:
    found = samples(chat=AdmissionQueue(running=2))
    assert found.keys() == GAUGES.keys()
    assert found["switchyard_plan_info"] == {("chat", "0-11111111"): 1.0, ("other", "3-22222222"): 1.0}
    assert found["switchyard_traffic_share"][("green", "chat")] == 10.0
    assert found["switchyard_admission_slots"] == {("chat",): 3.0}
    assert found["switchyard_admission_running"] == {("chat",): 2.0}
    assert found["switchyard_admission_waiting"] == {("chat",): 0.0}


def test_before_the_first_request_the_queue_is_empty() -> None:
    assert samples()["switchyard_admission_running"] == {("chat",): 0.0}


def test_a_reader_of_some_endpoints_sees_these() -> None:
    found = samples(["other"])
    assert {"other"} == {name for family in found.values() for labels in family for name in labels if name in ENDPOINTS}
