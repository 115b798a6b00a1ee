"""Endpoints as Databricks' objects, and valid and invalid bodies of traffic updates."""

import json
import re
from typing import Any

import pytest
from databricks.sdk.service.serving import (
    EndpointStateConfigUpdate,
    EndpointStateReady,
    ListEndpointsResponse,
    ServedModelStateDeployment,
    ServingEndpointDetailed,
)
from hypothesis import given
from hypothesis import strategies as st

from app.config.schema import Config
from app.config.schema import parse as parse_config
from app.control_plane import Delivery
from app.dialects.databricks.management import View, endpoint_detail, endpoint_list, openapi, requested_traffic
from app.errors import BadRequest, NotFound

DATA: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat", "completions"], "traffic": {"blue": 90, "green": 10}},
        "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
        "agent": {"tasks": ["responses"], "traffic": {"blue": 100}},
        "text": {"tasks": ["completions"], "traffic": {"blue": 100}},
        "rank": {"tasks": ["rerank"], "traffic": {"cross": 100}},
    },
    "deployments": {
        "blue": {"app": "blue", "model": "small"},
        "green": {"app": "green", "model": "small"},
        "red": {"app": "red", "model": "small"},
        "half": {"app": "half", "model": "small", "tasks": ["chat"]},
        "mini": {"app": "mini", "model": "mini-lm", "tasks": ["embeddings"]},
        "cross": {"app": "cross", "model": "x", "tasks": ["rerank"]},
    },
}
CONFIG = parse_config(DATA)
HEALTHY = dict.fromkeys(DATA["deployments"], True)


def moved(blue: int, green: int) -> Config:
    chat = {**DATA["endpoints"]["chat"], "traffic": {"blue": blue, "green": green}}
    return parse_config({**DATA, "endpoints": {**DATA["endpoints"], "chat": chat}})


def view(**fields: Any) -> View:
    times = {"since_ms": 1_700_000_000_000, "created_ms": {"chat": 1_600_000_000_000}}
    known = {"config": CONFIG, "healthy": HEALTHY, **times}
    return View(**{**known, "url": "http://h:1/", **fields})


def endpoint_object(name: str, **fields: Any) -> Any:
    return ServingEndpointDetailed.from_dict(json.loads(json.dumps(endpoint_detail(name, view(**fields)))))


# --- reads ---------------------------------------------------------------------------------------


def test_the_sdk_reads_an_endpoint() -> None:
    endpoint = endpoint_object("chat")
    assert (endpoint.name, endpoint.task, endpoint.last_updated_timestamp) == ("chat", "llm/v1/chat", 1_700_000_000_000)
    assert endpoint.creation_timestamp == 1_600_000_000_000
    assert {entity.creation_timestamp for entity in endpoint.config.served_entities} == {1_600_000_000_000}
    assert endpoint.state.ready is EndpointStateReady.READY
    assert endpoint.state.config_update is EndpointStateConfigUpdate.NOT_UPDATING
    assert endpoint.pending_config is None
    assert endpoint.endpoint_url == "http://h:1/serving-endpoints/chat/invocations"
    entities = [
        (served_entity.name, served_entity.entity_name, served_entity.entity_version)
        for served_entity in endpoint.config.served_entities
    ]
    models = [
        (served_model.name, served_model.model_name, served_model.model_version)
        for served_model in endpoint.config.served_models
    ]
    assert entities == models == [("blue", "small", "1"), ("green", "small", "1")]
    assert {served_entity.state.deployment for served_entity in endpoint.config.served_entities} == {
        ServedModelStateDeployment.DEPLOYMENT_READY
    }
    routes = [
        (route.served_entity_name, route.served_model_name, route.traffic_percentage)
        for route in endpoint.config.traffic_config.routes
    ]
    assert routes == [("blue", "blue", 90), ("green", "green", 10)]


def test_the_sdk_reads_the_list() -> None:
    endpoints: Any = ListEndpointsResponse.from_dict(json.loads(json.dumps(endpoint_list(view())))).endpoints
    assert [(endpoint.name, endpoint.task) for endpoint in endpoints] == [
        ("chat", "llm/v1/chat"),
        ("embed", "llm/v1/embeddings"),
        ("agent", "agent/v1/responses"),
        ("text", "llm/v1/completions"),
        ("rank", None),
    ]
    assert [served_entity.name for served_entity in endpoints[0].config.served_entities] == ["blue", "green"]
    assert len({endpoint.id for endpoint in endpoints}) == 5


def test_an_unknown_endpoint_is_not_found() -> None:
    with pytest.raises(NotFound, match="Endpoint with name 'gone' does not exist"):
        endpoint_detail("gone", view())


@pytest.mark.parametrize(
    ("sick", "ready"), [("green", EndpointStateReady.NOT_READY), ("mini", EndpointStateReady.READY)]
)
def test_an_endpoint_is_ready_if_every_deployment_with_traffic_is_healthy(sick: str, ready: EndpointStateReady) -> None:
    endpoint = endpoint_object("chat", healthy={**HEALTHY, sick: False})
    assert endpoint.state.ready is ready
    states = {served_entity.name: served_entity.state for served_entity in endpoint.config.served_entities}
    assert (states["green"].deployment is ServedModelStateDeployment.DEPLOYMENT_RECOVERING) is (sick == "green")


def test_an_unhealthy_deployment_without_traffic_does_not_matter() -> None:
    endpoint = endpoint_object("chat", config=moved(100, 0), healthy={**HEALTHY, "green": False})
    assert endpoint.state.ready is EndpointStateReady.READY


@pytest.mark.parametrize(
    ("delivery", "state"),
    [
        (Delivery.DELIVERING, EndpointStateConfigUpdate.IN_PROGRESS),
        (Delivery.UNSETTLED, EndpointStateConfigUpdate.IN_PROGRESS),
        (Delivery.FAILED, EndpointStateConfigUpdate.UPDATE_FAILED),
    ],
)
def test_a_pending_configuration_is_returned_until_it_is_in_force(
    delivery: Delivery, state: EndpointStateConfigUpdate
) -> None:
    endpoint = endpoint_object("chat", delivery=delivery, pending=moved(0, 100))
    assert endpoint.state.config_update is state
    assert [route.traffic_percentage for route in endpoint.config.traffic_config.routes] == [90, 10]
    assert [route.traffic_percentage for route in endpoint.pending_config.traffic_config.routes] == [0, 100]
    assert endpoint.pending_config.config_version != endpoint.config.config_version


def test_a_pending_configuration_that_cannot_be_read_is_left_out() -> None:
    assert endpoint_object("chat", delivery=Delivery.FAILED, pending=None).pending_config is None


def test_the_version_changes_only_with_the_endpoints_own_configuration() -> None:
    versions = [
        endpoint_object("chat", config=config).config.config_version
        for config in (CONFIG, moved(80, 20), moved(90, 10))
    ]
    assert versions[0] == versions[2] != versions[1]
    assert (
        endpoint_object("embed").config.config_version
        == endpoint_object("embed", config=moved(80, 20)).config.config_version
    )


@pytest.mark.parametrize(
    ("name", "fields"),
    [("chat", {"messages", "prompt"}), ("embed", {"input"}), ("agent", {"input"}), ("text", {"prompt"})],
)
def test_openapi_has_a_schema_for_each_task(name: str, fields: set[str]) -> None:
    text = json.dumps(openapi(name, CONFIG.endpoints[name], "http://h:1/"))
    document = json.loads(text)
    assert document["servers"] == [{"url": f"http://h:1/serving-endpoints/{name}"}]
    post = document["paths"]["/invocations"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    schemas = document["components"]["schemas"]
    requests = [schemas[choice["$ref"].rpartition("/")[2]] for choice in schema.get("anyOf", [schema])]
    assert {field for request in requests for field in request["required"]} == fields
    answers = post["responses"]["200"]["content"]["application/json"]["schema"]
    assert len(answers.get("anyOf", [answers])) == len(CONFIG.endpoints[name].tasks)
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert referred == set(schemas)


def test_openapi_has_the_bounds_that_requests_are_checked_by() -> None:
    assert openapi("rank", CONFIG.endpoints["rank"], "http://h:1/")["paths"] == {}
    document = json.loads(json.dumps(openapi("chat", CONFIG.endpoints["chat"], "http://h:1/")))
    schemas = document["components"]["schemas"]
    assert schemas["databricks.Chat"]["properties"]["top_logprobs"]["anyOf"][0] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 20,
    }
    roles = schemas["databricks.Chat.Message"]["properties"]["role"]["enum"]
    assert roles == ["system", "user", "assistant", "tool"]


# --- traffic updates -----------------------------------------------------------------------------


def route(name: str, share: Any) -> dict[str, Any]:
    return {"served_model_name": name, "traffic_percentage": share}


def routes(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"traffic_config": {"routes": [route(name, share) for name, share in pairs]}}


def update(body: Any, name: str = "chat") -> dict[str, int]:
    return requested_traffic(name, json.dumps(body).encode(), CONFIG)


MOVE = routes(("blue", 0), ("green", 100))
BLUE, GREEN = {"name": "blue"}, {"name": "green"}
FULL = {"name": "blue", "entity_name": "small", "entity_version": "1"}
LEGACY = {"name": "blue", "model_name": "small", "model_version": "1"}

VALID: list[tuple[Any, dict[str, int]]] = [
    (MOVE, {"blue": 0, "green": 100}),
    (routes(("green", 100)), {"blue": 0, "green": 100}),
    (routes(("red", 5), ("blue", 95)), {"blue": 95, "green": 0, "red": 5}),
    (
        {"traffic_config": {"routes": [{"served_entity_name": "blue", "traffic_percentage": 100}]}},
        {"blue": 100, "green": 0},
    ),
    (
        {"traffic_config": {"routes": [{**route("blue", 100), "served_entity_name": "blue"}]}},
        {"blue": 100, "green": 0},
    ),
    ({**MOVE, "name": "chat"}, {"blue": 0, "green": 100}),
    ({**MOVE, "auto_capture_config": None, "served_models": None}, {"blue": 0, "green": 100}),
    ({**MOVE, "served_entities": [FULL, GREEN]}, {"blue": 0, "green": 100}),
    ({**MOVE, "served_models": [LEGACY, {**GREEN, "model_version": None}]}, {"blue": 0, "green": 100}),
    ({"served_entities": [GREEN, BLUE]}, {"blue": 90, "green": 10}),
    ({"served_entities": [BLUE, GREEN, {"name": "red"}]}, {"blue": 90, "green": 10, "red": 0}),
]


@pytest.mark.parametrize(("body", "traffic"), VALID)
def test_a_valid_body_is_a_whole_traffic(body: Any, traffic: dict[str, int]) -> None:
    assert update(body) == traffic


INVALID: list[tuple[Any, str, str]] = [
    ({}, "traffic_config", "missing"),
    ({"traffic_config": None}, "traffic_config", "missing"),
    ({"traffic_config": []}, "traffic_config", "should be an object"),
    ({"traffic_config": {}}, "traffic_config.routes", "missing"),
    ({"traffic_config": {"routes": {}}}, "traffic_config.routes", "list"),
    ({"traffic_config": {"routes": []}}, "traffic_config.routes", "at least 1"),
    ({"traffic_config": {"routes": ["blue"]}}, "traffic_config.routes[0]", "should be an object"),
    ({"traffic_config": {"routes": [], "sticky": 1}}, "traffic_config.routes", "at least 1"),
    ({"traffic_config": {**routes(("blue", 100))["traffic_config"], "Sticky": 1}}, "traffic_config.Sticky", "unknown"),
    ({"traffic_config": {"routes": [BLUE]}}, "traffic_config.routes[0].traffic_percentage", "missing"),
    (
        {"traffic_config": {"routes": [{"traffic_percentage": 100}]}},
        "traffic_config.routes[0].served_entity_name",
        "missing",
    ),
    (
        {"traffic_config": {"routes": [{**route("blue", 100), "weight": 1}]}},
        "traffic_config.routes[0].weight",
        "unknown",
    ),
    (
        {"traffic_config": {"routes": [{**route("blue", 100), "served_entity_name": "green"}]}},
        "traffic_config.routes[0].served_model_name",
        "'green'",
    ),
    *[
        (routes(("blue", 0), ("green", share)), "traffic_config.routes[1].traffic_percentage", "")
        for share in (-1, 101, 50.5, 100.0, "100", True, None, [100])
    ],
    (routes(("blue", 90), ("green", 9)), "traffic_config.routes", "sum to 99"),
    (routes(("blue", 90), ("green", 11)), "traffic_config.routes", "sum to 101"),
    (routes(("blue", 50), ("blue", 50)), "traffic_config.routes[1].served_model_name", "already"),
    (routes(("gone", 100)), "traffic_config.routes[0].served_model_name", "it can be: blue, green, red"),
    (routes(("mini", 100)), "traffic_config.routes[0].served_model_name", "'mini' serves embeddings"),
    (
        routes(("half", 100)),
        "traffic_config.routes[0].served_model_name",
        "'half' serves chat, but the endpoint serves chat, comp",
    ),
    (routes((1, 100)), "traffic_config.routes[0].served_model_name", "string"),  # type: ignore[arg-type]
    ({**MOVE, "name": "embed"}, "name", "chat"),
    ({**MOVE, "auto_capture_config": {"enabled": False}}, "auto_capture_config", "leave it out"),
    ({**MOVE, "tags": []}, "tags", "unknown"),
    ({**MOVE, "served_entities": {}}, "served_entities", "serve_config.yaml"),
    ({**MOVE, "served_entities": []}, "served_entities", "'blue' is missing"),
    ({**MOVE, "served_entities": [GREEN]}, "served_entities", "'blue' is missing"),
    ({**MOVE, "served_entities": [{}]}, "served_entities[0].name", "missing"),
    ({**MOVE, "served_entities": [BLUE, BLUE, GREEN]}, "served_entities[1].name", "twice"),
    ({**MOVE, "served_entities": [{"name": "new"}, BLUE, GREEN]}, "served_entities[0].name", "no deployment 'new'"),
    ({**MOVE, "served_entities": [BLUE, GREEN, {"name": "mini"}]}, "served_entities[2].name", "serves embeddings"),
    ({**MOVE, "served_entities": [{**BLUE, "entity_name": "big"}, GREEN]}, "served_entities[0].entity_name", "'small'"),
    ({**MOVE, "served_entities": [{**BLUE, "entity_version": "2"}, GREEN]}, "served_entities[0].entity_version", "'1'"),
    (
        {**MOVE, "served_entities": [{**BLUE, "workload_size": "Small"}, GREEN]},
        "served_entities[0].workload_size",
        "serve_config.yaml",
    ),
    ({**MOVE, "served_models": [{**BLUE, "model_name": "big"}, GREEN]}, "served_models[0].model_name", "'small'"),
    ({**MOVE, "served_models": [{**BLUE, "entity_name": "small"}, GREEN]}, "served_models[0].entity_name", "unknown"),
    ({**routes(("red", 100)), "served_entities": [BLUE, GREEN]}, "traffic_config.routes", "'red' is not among"),
]


@pytest.mark.parametrize(("body", "field", "message"), INVALID)
def test_an_invalid_body_is_an_error_that_names_the_field(body: Any, field: str, message: str) -> None:
    with pytest.raises(BadRequest) as raised:
        update(body)
    assert raised.value.param == field
    assert raised.value.message.startswith(f"{field}: ")
    assert message in raised.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"traffic_config": NaN}'])
def test_a_body_that_is_no_json_object_is_rejected(body: bytes) -> None:
    with pytest.raises(BadRequest):
        requested_traffic("chat", body, CONFIG)


def test_an_unknown_endpoint_is_found_before_its_body_is_read() -> None:
    with pytest.raises(NotFound):
        requested_traffic("gone", b"", CONFIG)


WORDS = st.sampled_from(
    "traffic_config routes served_model_name served_entity_name traffic_percentage served_entities served_models name "
    "entity_name entity_version model_name auto_capture_config blue green red mini gone chat".split()
)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 105) | st.floats(allow_nan=False) | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from(["blue", "green", "red", "mini", "gone", 1, None])
ROUTES = st.lists(
    st.fixed_dictionaries(
        {"traffic_percentage": st.sampled_from([0, 10, 50, 90, 100, 101, "1", None])},
        optional={"served_model_name": NAMES, "served_entity_name": NAMES},
    ),
    max_size=3,
)
BODIES = JSON | st.fixed_dictionaries(
    {"traffic_config": st.fixed_dictionaries({"routes": ROUTES})},
    optional={"served_entities": JSON, "served_models": st.lists(st.fixed_dictionaries({"name": NAMES}), max_size=3)},
)


@given(body=BODIES.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=50))
def test_any_body_is_a_traffic_that_can_be_served_or_a_bad_request(body: bytes) -> None:
    try:
        traffic = requested_traffic("chat", body, CONFIG)
    except BadRequest:
        return
    chat = {**DATA["endpoints"]["chat"], "traffic": traffic}
    parse_config({**DATA, "endpoints": {**DATA["endpoints"], "chat": chat}})
    assert {"blue", "green"} <= traffic.keys() <= {"blue", "green", "red"}
