"""Databricks' SDK manages endpoints on the real router, with and without a control plane."""

import json
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from threading import Timer
from typing import Any

import httpx
import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.errors import (
    BadRequest,
    DeadlineExceeded,
    InvalidParameterValue,
    OperationFailed,
    ResourceConflict,
    ResourceDoesNotExist,
)
from databricks.sdk.errors.base import DatabricksError
from databricks.sdk.service.serving import (
    AutoCaptureConfigInput,
    EndpointCoreConfigInput,
    EndpointStateConfigUpdate,
    EndpointStateReady,
    EndpointTag,
    PtEndpointCoreConfig,
    PtServedModel,
    RateLimit,
    RateLimitRenewalPeriod,
    Route,
    ServedEntityInput,
    TrafficConfig,
)

from app.control_plane import Delivery
from app.dialects.databricks.management import NOT_OFFERED_CALLS
from app.errors import TimedOut, Unavailable
from app.server.application import Router
from app.telemetry.logs import JsonFormatter
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

ROOT = "/api/2.0/serving-endpoints"
JSON = {"content-type": "application/json"}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def workspace(url: str) -> Any:
    return WorkspaceClient(config=Config(host=url, token="dapi-x", retry_timeout_seconds=2))


def traffic(**shares: int) -> TrafficConfig:
    return TrafficConfig(
        routes=[Route(served_entity_name=name, traffic_percentage=share) for name, share in shares.items()]
    )


def body(**shares: int) -> dict[str, Any]:
    return {"traffic_config": traffic(**shares).as_dict()}


def shares(endpoint: Any) -> dict[str, int]:
    return {route.served_entity_name: route.traffic_percentage for route in endpoint.config.traffic_config.routes}


class Managed:
    """A router with a control plane that delivers to it, and the SDK on it."""

    def __init__(self, rig: Rig) -> None:
        self.router = Router(RuntimeEnvironment(), control=(control := MemoryControl(rig.config, self.take)))
        self.router.reconfigure(rig.config)
        self.control = control
        self.url = ""

    def take(self, config: Any) -> None:
        self.router.reconfigure(config)

    @property
    def endpoints(self) -> Any:
        return workspace(self.url).serving_endpoints

    def served_by(self) -> str:
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=CHAT)
        return str(answer.headers["azureml-model-deployment"])


@pytest.fixture
def managed(rig: Rig, servers: ServerPool) -> Iterator[Managed]:
    managed = Managed(rig)
    with servers.host(managed.router.app) as managed.url:
        yield managed


# --- reads -----------------------------------------------------------------------------------------


def test_the_sdks_probe_is_answered_without_credentials(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        workspace(rig.url)
    assert caplog.text == ""
    assert httpx.get(f"{rig.url}/.well-known/databricks-config").json() == {}


def test_endpoints_are_listed(rig: Rig) -> None:
    endpoints = list(workspace(rig.url).serving_endpoints.list())
    assert [(endpoint.name, endpoint.task, endpoint.state.ready) for endpoint in endpoints] == [
        ("chat", "llm/v1/chat", EndpointStateReady.READY),
        ("embed", "llm/v1/embeddings", EndpointStateReady.READY),
    ]


@pytest.mark.parametrize("path", [f"{ROOT}/", f"{ROOT}/chat/", f"{ROOT}/chat/openapi/", f"{ROOT}/chat/metrics/"])
def test_a_trailing_slash_is_ignored(rig: Rig, path: str) -> None:
    with_it, without = (httpx.get(rig.url + suffix) for suffix in (path, path.rstrip("/")))
    assert with_it.status_code == without.status_code == 200
    assert with_it.headers["content-type"] == without.headers["content-type"]


def test_an_endpoint_is_described(rig: Rig) -> None:
    endpoint = workspace(rig.url).serving_endpoints.get("chat")
    assert shares(endpoint) == {"blue": 100, "green": 0}
    assert [(served_entity.name, served_entity.entity_name) for served_entity in endpoint.config.served_entities] == [
        ("blue", "blue-model"),
        ("green", "green-model"),
    ]
    assert endpoint.state.config_update is EndpointStateConfigUpdate.NOT_UPDATING
    assert endpoint.endpoint_url == f"{rig.url}/serving-endpoints/chat/invocations"


def test_a_sick_deployment_makes_its_endpoint_not_ready(rig: Rig) -> None:
    rig.blue.healthy = False
    endpoint = workspace(rig.url).serving_endpoints.get("chat")
    assert endpoint.state.ready is EndpointStateReady.NOT_READY
    assert [served_entity.state.deployment.value for served_entity in endpoint.config.served_entities] == [
        "DEPLOYMENT_RECOVERING",
        "DEPLOYMENT_READY",
    ]


def test_openapi_and_metrics_are_the_endpoints_own(rig: Rig) -> None:
    endpoints = workspace(rig.url).serving_endpoints
    httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT).raise_for_status()
    httpx.post(f"{rig.url}/v1/embeddings", json={"model": "embed", "input": "x"}).raise_for_status()
    document = json.loads(endpoints.get_open_api("embed").contents.read())
    assert document["info"]["title"] == "embed"
    text = endpoints.export_metrics("chat").contents.read().decode()
    labels = 'deployment="blue",dialect="openai",endpoint="chat",reason="traffic",status="200"'
    assert f"switchyard_requests_total{{{labels}}} 1.0" in text
    assert 'endpoint="embed"' not in text
    assert "# TYPE gen_ai_server_request_duration_seconds histogram" in text


@pytest.mark.parametrize("call", ["get", "get_open_api", "export_metrics", "delete"])
def test_an_unknown_endpoint_does_not_exist(rig: Rig, call: str) -> None:
    with pytest.raises(ResourceDoesNotExist, match="Endpoint with name 'gone' does not exist"):
        getattr(workspace(rig.url).serving_endpoints, call)("gone")


def test_management_is_counted_and_logged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "switchyard.access"):
        answer = httpx.get(f"{rig.url}{ROOT}/chat", headers={"x-request-id": "mine"})
        httpx.get(f"{rig.url}{ROOT}/gone", headers={"x-request-id": "not mine"})
        wait_until(lambda: len(caplog.records) == 2)  # a line is written once its answer has been sent
    assert answer.headers["x-request-id"] == "mine"
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["request_id"], line["operation"], line["endpoint"], line["status"]) for line in lines] == [
        ("mine", "get_endpoint", "chat", 200),
        (lines[1]["request_id"], "get_endpoint", "", 404),
    ]
    assert lines[1]["request_id"] != "not mine"


def test_before_the_first_configuration_it_is_unavailable(servers: ServerPool) -> None:
    with servers.host(Router(RuntimeEnvironment()).app) as url:
        answer = httpx.get(f"{url}{ROOT}")
        assert httpx.get(f"{url}/.well-known/databricks-config").status_code == 200
    assert (answer.status_code, answer.json()["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")
    assert answer.headers["retry-after"] == "1"


# --- calls that are not offered --------------------------------------------------------------------


def test_every_other_documented_call_is_an_error_that_it_is_not_offered(rig: Rig) -> None:
    for (method, path), why in NOT_OFFERED_CALLS.items():
        answer = httpx.request(method, rig.url + path.format(name="chat", entity="blue", id="0"), json={})
        assert (answer.status_code, answer.json()["error_code"]) == (400, "FEATURE_DISABLED")
        assert answer.json()["message"] == f"{why}."
        assert answer.json()["details"][0]["request_id"] == answer.headers["x-request-id"]


THROUGHPUT = PtEndpointCoreConfig(
    served_entities=[PtServedModel(entity_name="m", provisioned_model_units=1, entity_version="1")]
)

NOT_OFFERED: list[Any] = [
    lambda api: api.create("new", config=EndpointCoreConfigInput(name="new")),
    lambda api: api.create_provisioned_throughput_endpoint("new", THROUGHPUT),
    lambda api: api.update_provisioned_throughput_endpoint_config("chat", THROUGHPUT),
    lambda api: api.delete("chat"),
    lambda api: api.patch("chat", add_tags=[EndpointTag(key="a")]),
    lambda api: api.put("chat", rate_limits=[RateLimit(calls=1, renewal_period=RateLimitRenewalPeriod.MINUTE)]),
    lambda api: api.put_ai_gateway("chat"),
    lambda api: api.update_notifications("chat"),
    lambda api: api.logs("chat", "blue"),
    lambda api: api.build_logs("chat", "blue"),
    lambda api: api.get_permissions("0"),
    lambda api: api.get_permission_levels("0"),
]


def test_the_sdk_raises_what_is_not_offered(rig: Rig) -> None:
    endpoints = workspace(rig.url).serving_endpoints
    for call in NOT_OFFERED:
        with pytest.raises(BadRequest, match=r"not offered|Permissions are not kept") as raised:
            call(endpoints)
        assert raised.value.error_code == "FEATURE_DISABLED"


def test_an_undocumented_path_is_databricks_404(rig: Rig) -> None:
    for path in ("/api/2.0/clusters/list", f"{ROOT}/chat/unheard-of"):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            answer = httpx.request(method, rig.url + path)
            assert (answer.status_code, answer.json()["error_code"]) == (404, "FEATURE_DISABLED")
            what = f"This server has no '{method} {path}' of Databricks' API; use `/api/2.0/serving-endpoints`"
            assert answer.json()["message"] == what


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", ROOT, "GET, POST"),
        ("PUT", f"{ROOT}/chat", "DELETE, GET"),
        ("POST", f"{ROOT}/chat/openapi", "GET"),
        ("GET", f"{ROOT}/chat/config", "PUT"),
    ],
)
def test_another_method_of_a_known_path_is_not_allowed(rig: Rig, method: str, path: str, allowed: str) -> None:
    answer = httpx.request(method, rig.url + path)
    assert (answer.status_code, answer.headers["allow"], answer.json()["error_code"]) == (405, allowed, "BAD_REQUEST")
    assert answer.json()["message"] == f"{path} takes {allowed.replace(', ', ' or ')}, not {method}"


# --- traffic ---------------------------------------------------------------------------------------


def test_a_standalone_router_rejects_a_change_of_traffic(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="this router runs standalone"):
        workspace(rig.url).serving_endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))
    assert shares(workspace(rig.url).serving_endpoints.get("chat")) == {"blue": 100, "green": 0}


def test_traffic_moves_when_the_control_plane_delivers(managed: Managed) -> None:
    before = managed.endpoints.get("chat")
    wait = managed.endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))
    endpoint = wait.response
    assert endpoint.state.config_update is EndpointStateConfigUpdate.IN_PROGRESS
    assert shares(endpoint) == {"blue": 100, "green": 0}
    assert [route.traffic_percentage for route in endpoint.pending_config.traffic_config.routes] == [0, 100]
    assert managed.served_by() == "blue"
    managed.control.deliver()
    assert managed.served_by() == "green"
    after = wait.result(timeout=timedelta(seconds=10))
    assert shares(after) == {"blue": 0, "green": 100}
    assert after.pending_config is None
    assert after.config.config_version == endpoint.pending_config.config_version != before.config.config_version
    assert after.last_updated_timestamp > before.last_updated_timestamp
    assert after.creation_timestamp == before.creation_timestamp
    created = [entity.creation_timestamp for entity in (*before.config.served_entities, *after.config.served_entities)]
    assert set(created) == {before.creation_timestamp}


def test_an_endpoint_keeps_its_creation_when_the_control_plane_does_not_answer(managed: Managed) -> None:
    created = managed.endpoints.get("chat").creation_timestamp
    managed.control.failure = Unavailable("down")
    assert managed.endpoints.get("chat").creation_timestamp == created


def test_a_router_alone_has_an_endpoint_since_it_was_declared(rig: Rig) -> None:
    def seen() -> dict[str, tuple[int, int]]:
        listed = workspace(rig.url).serving_endpoints.list()
        return {endpoint.name: (endpoint.creation_timestamp, endpoint.last_updated_timestamp) for endpoint in listed}

    before = seen()
    time.sleep(0.01)
    rig.chat_endpoint(traffic={"blue": 0, "green": 100})
    rig.change(endpoints={"new": {"tasks": ["chat"], "traffic": {"blue": 100}}})
    after = seen()
    assert after["chat"][0] == before["chat"][0]
    assert after["chat"][1] > before["chat"][1]
    assert after["new"][0] == after["new"][1] > before["chat"][0]


def test_the_sdk_waits_until_it_is_delivered(managed: Managed) -> None:
    delivery = Timer(0.5, managed.control.deliver)
    delivery.start()
    endpoint = managed.endpoints.update_config_and_wait("chat", traffic_config=traffic(green=100))
    delivery.join()
    assert shares(endpoint) == {"blue": 0, "green": 100}
    assert endpoint.state.config_update is EndpointStateConfigUpdate.NOT_UPDATING


def test_the_configuration_of_get_can_be_put(managed: Managed) -> None:
    managed.control.delivers_at_once = True
    config = managed.endpoints.get("chat").config
    entities = [ServedEntityInput.from_dict(entity.as_dict()) for entity in config.served_entities]
    endpoint = managed.endpoints.update_config_and_wait(
        "chat", served_entities=entities, traffic_config=traffic(blue=30, green=70)
    )
    assert shares(endpoint) == {"blue": 30, "green": 70}


def test_the_traffic_that_is_there_already_changes_nothing(managed: Managed) -> None:
    endpoint = managed.endpoints.update_config_and_wait("chat", traffic_config=traffic(blue=100))
    assert endpoint.state.config_update is EndpointStateConfigUpdate.NOT_UPDATING
    assert managed.control.replaced == 0


def test_an_update_in_progress_is_a_conflict_unless_it_is_the_same(managed: Managed) -> None:
    managed.endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))
    with pytest.raises(ResourceConflict, match="in progress") as raised:
        managed.endpoints.update_config("chat", traffic_config=traffic(blue=50, green=50))
    assert raised.value.error_code == "RESOURCE_CONFLICT"
    managed.endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))
    managed.control.deliver()
    assert shares(managed.endpoints.get("chat")) == {"blue": 0, "green": 100}
    assert managed.control.replaced == 1


def test_a_router_that_is_behind_cannot_overwrite(managed: Managed) -> None:
    moved = {**managed.control.config["endpoints"]["chat"], "traffic": {"blue": 50, "green": 50}}
    elsewhere = {**managed.control.config, "endpoints": {**managed.control.config["endpoints"], "chat": moved}}
    managed.control.config = elsewhere
    with pytest.raises(ResourceConflict, match="has changed in the meantime"):
        managed.endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))
    assert managed.control.config is elsewhere


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"traffic_config": traffic(blue=10, green=10)}, "traffic_config.routes: the percentages sum to 20"),
        ({"traffic_config": traffic(mini=100)}, r"traffic_config.routes\[0\].served_entity_name"),
        ({"traffic_config": traffic(blue=101)}, r"traffic_config.routes\[0\].traffic_percentage"),
        ({"served_entities": [ServedEntityInput(name="new", entity_name="m")]}, r"served_entities\[0\].name"),
        ({"auto_capture_config": AutoCaptureConfigInput(enabled=True)}, "auto_capture_config"),
        ({}, "traffic_config: missing"),
    ],
)
def test_a_wrong_change_names_its_field_and_changes_nothing(
    managed: Managed, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidParameterValue, match=field):
        managed.endpoints.update_config("chat", **fields)
    assert managed.control.replaced == 0


def test_an_unknown_endpoint_has_no_traffic(managed: Managed) -> None:
    with pytest.raises(ResourceDoesNotExist):
        managed.endpoints.update_config("gone", traffic_config=traffic(blue=100))


def test_a_body_that_is_too_large_is_rejected(managed: Managed, rig: Rig) -> None:
    managed.router.reconfigure({**rig.config, "max_body_bytes": 1024})
    answer = httpx.put(f"{managed.url}{ROOT}/chat/config", content=b" " * 1025, headers=JSON)
    assert (answer.status_code, answer.json()["error_code"]) == (413, "BAD_REQUEST")


def test_headers_that_are_too_large_are_rejected(managed: Managed, rig: Rig) -> None:
    managed.router.reconfigure({**rig.config, "max_header_bytes": 1024})
    answer = httpx.get(f"{managed.url}{ROOT}", headers={"x-long": "x" * 1024})
    assert (answer.status_code, answer.json()["error_code"]) == (431, "BAD_REQUEST")


# --- when the control plane fails, or a router refuses ------------------------------------------------


def test_reads_survive_a_control_plane_that_does_not_answer(managed: Managed) -> None:
    managed.control.failure = Unavailable("away", retry_after=1)
    endpoint = managed.endpoints.get("chat")
    assert endpoint.state.config_update is EndpointStateConfigUpdate.IN_PROGRESS
    assert shares(endpoint) == {"blue": 100, "green": 0}
    assert len(list(managed.endpoints.list())) == 2


def test_a_change_that_cannot_be_sent_is_a_503_or_a_504(managed: Managed) -> None:
    managed.control.failure = Unavailable("away", retry_after=1)
    answer = httpx.put(f"{managed.url}{ROOT}/chat/config", json=body(blue=0, green=100))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    managed.control.failure = TimedOut("no answer yet")
    with pytest.raises(DeadlineExceeded, match="no answer yet"):
        managed.endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))


def test_a_configuration_that_the_router_rejected_has_failed(managed: Managed) -> None:
    managed.control.config = {**managed.control.config, "endpoints": {}}
    endpoint = managed.endpoints.get("chat")
    assert endpoint.state.config_update is EndpointStateConfigUpdate.UPDATE_FAILED
    with pytest.raises(OperationFailed):
        managed.endpoints.wait_get_serving_endpoint_not_updating("chat")
    with pytest.raises(ResourceConflict, match="last applied configuration is invalid"):
        managed.endpoints.update_config("chat", traffic_config=traffic(blue=0, green=100))


def test_a_failed_delivery_is_reported_and_can_be_replaced(managed: Managed) -> None:
    managed.control.delivery = Delivery.FAILED
    with pytest.raises(OperationFailed):
        managed.endpoints.wait_get_serving_endpoint_not_updating("chat")
    managed.control.delivers_at_once = True
    endpoint = managed.endpoints.update_config_and_wait("chat", traffic_config=traffic(blue=0, green=100))
    assert shares(endpoint) == {"blue": 0, "green": 100}


def test_a_defect_is_an_internal_error_without_its_cause(managed: Managed) -> None:
    managed.control.failure = ValueError("secret")  # type: ignore[assignment]
    with pytest.raises(DatabricksError) as raised:
        managed.endpoints.get("chat")
    assert raised.value.error_code == "INTERNAL_ERROR"
    assert "secret" not in str(raised.value)
