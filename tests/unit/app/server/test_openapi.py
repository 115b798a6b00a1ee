"""The OpenAPI document: it is complete, and has every route that is served."""

import re
from functools import cache
from importlib.metadata import version
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic_core import from_json
from starlette.testclient import TestClient

from app.dialects.registry import DIALECTS
from app.dialects.schemas import ALLOWED
from app.server.application import Router
from app.server.openapi import document, operations
from app.server.openapi_examples import EXAMPLES
from app.upstream.target import RuntimeEnvironment


@cache
def shown() -> dict[str, Any]:
    """The document of a router without a configuration: it does not depend on one. No test changes it."""
    answer = TestClient(Router(RuntimeEnvironment()).app).get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    described: dict[str, Any] = from_json(answer.content)
    return described


def test_every_route_of_every_dialect_is_described() -> None:
    paths = shown()["paths"]
    for dialect in DIALECTS:
        for route in dialect.routes:
            operation = paths[route.path.replace(":path}", "}")][route.method.lower()]
            assert any(tag.lower().startswith(dialect.name) for tag in operation["tags"])
            assert route.operation.replace("_", " ") in operation["summary"].lower()


def test_groups_and_what_people_look_for_come_first() -> None:
    titles = [tag["name"] for tag in shown()["tags"]]
    assert titles == ["OpenAI", "Anthropic", "Azure AI", "Databricks", "Friendli", "TGI", "Switchyard"]
    assert {tag for _, _, operation in described_operations() for tag in operation["tags"]} == set(titles)
    of_openai = [path for _, path, operation in described_operations() if "OpenAI" in operation["tags"]]
    assert of_openai[:4] == ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    assert shown()["info"]["version"] == version("switchyard")


def test_operations_that_read_a_body_describe_it() -> None:
    for dialect in DIALECTS:
        posted = {route.operation for route in dialect.routes if route.method == "POST" and not route.local}
        assert dialect.bodies.keys() == posted, dialect.name


def test_the_management_api_and_the_routers_own_operations_are_described() -> None:
    paths = shown()["paths"]
    assert "requestBody" in paths["/api/2.0/serving-endpoints/{name}/config"]["put"]
    assert {"/health", "/ready", "/metrics", "/openapi.json"} <= paths.keys()
    assert "/api/2.0/{path}" not in paths, "refused fields are not documented"


def test_the_api_of_experiments_is_described_with_its_parameters_and_bodies() -> None:
    paths = shown()["paths"]
    report = paths["/api/experiments/{name}/report"]["get"]
    parameters = {parameter["name"]: parameter for parameter in report["parameters"]}
    assert parameters.keys() == {"name", "format"}, "a server reports the present"
    assert parameters["format"]["schema"]["enum"] == ["json", "markdown", "text"]
    assert not parameters["format"]["required"]
    one, several = paths["/api/feedback"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert [reference["$ref"].rpartition("/")[2] for reference in (one, several)] == [
        "switchyard.Feedback",
        "switchyard.FeedbackList",
    ]
    assert paths["/api/requests/{id}"]["get"]["operationId"] == "switchyard_get_request"


def test_the_traffic_api_is_described_with_the_header_that_a_change_needs() -> None:
    change = shown()["paths"]["/api/endpoints/{endpoint}/traffic"]["put"]
    parameters = {parameter["name"]: parameter["in"] for parameter in change["parameters"] if "name" in parameter}
    assert parameters == {"endpoint": "path", "dry_run": "query", "If-Match": "header"}
    assert change["operationId"] == "switchyard_put_traffic"
    (body,) = change["requestBody"]["content"]["application/json"]["schema"].values()
    assert body.endswith("switchyard.TrafficDocument")


def test_every_reference_leads_somewhere_and_every_schema_is_referred_to() -> None:
    described = document(operations(DIALECTS))
    referred = set(re.findall(r"'#/components/schemas/([^']+)'", str(described)))
    assert referred == set(described["components"]["schemas"])
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in referred)


def test_dialects_that_share_a_path_share_its_description() -> None:
    shared = shown()["paths"]["/v1/chat/completions"]["post"]
    assert (shared["tags"], shared["summary"]) == (["Friendli", "TGI", "OpenAI"], "Chat")
    choices = shared["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert [choice["$ref"].rpartition("/")[2] for choice in choices] == [
        "friendli.Chat",
        "tgi.Chat",
        "openai.Chat",
    ]


def test_fields_that_pass_unchecked_are_described_and_others_are_not_allowed() -> None:
    chat = shown()["components"]["schemas"]["openai.Chat"]
    assert chat["properties"]["structured_outputs"] == {}
    assert chat["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert chat["properties"]["priority"] == {"description": ALLOWED}
    assert chat["additionalProperties"] is False


def test_paths_list_their_parameters() -> None:
    (parameter,) = shown()["paths"]["/v1/models/{model}"]["get"]["parameters"]
    model = {"in": "path", "name": "model", "required": True, "schema": {"type": "string"}}
    assert parameter == {**model, "example": "<an endpoint>"}


def described_operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation) for path, methods in shown()["paths"].items() for method, operation in methods.items()
    ]


def test_every_operation_has_a_readable_id_of_its_own() -> None:
    ids = {(method, path): operation["operationId"] for method, path, operation in described_operations()}
    assert len(set(ids.values())) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", id_) for id_ in ids.values())
    assert ids["post", "/v1/chat/completions"] == "openai_chat"
    assert ids["post", "/openai/v1/chat/completions"] == "openai_chat_openai_v1"
    assert ids["delete", "/v1/responses/{id}"] == "openai_delete_stored_response"
    assert ids["post", "/v1/messages"] == "anthropic_messages"
    assert ids["put", "/api/2.0/serving-endpoints/{name}/config"] == "databricks_update_config"


def texts(value: Any) -> set[str]:
    """All of the texts in an example."""
    if isinstance(value, dict):
        return {*value, *(text for item in value.values() for text in texts(item))}
    if isinstance(value, list):
        return {text for item in value for text in texts(item)}
    return {value} if isinstance(value, str) else set()


def test_every_body_has_an_example_that_its_schema_allows() -> None:
    components, wrong = shown()["components"], []
    for method, path, operation in described_operations():
        if (request := operation.get("requestBody")) is None:
            continue
        body = request["content"]["application/json"]
        schema = Draft202012Validator({**body["schema"], "components": components})
        wrong += [(method, path, error.message) for error in schema.iter_errors(body["example"])]
        assert "string" not in texts(body["example"]), path
    assert wrong == []


def test_no_example_is_of_an_operation_that_there_is_not() -> None:
    known = {dialect.name: set(dialect.bodies) for dialect in DIALECTS}
    managed = {
        one["operationId"] for _, path, one in described_operations() if path[:5] == "/api/" if "requestBody" in one
    }
    for dialect, name in (id_.split("_", 1) for id_ in managed):
        known.setdefault(dialect, set()).add(name)
    assert {dialect: set(examples) for dialect, examples in EXAMPLES.items()} == known


def test_every_parameter_that_a_request_needs_has_an_example() -> None:
    for _, path, operation in described_operations():
        for parameter in operation["parameters"]:
            if parameter.get("required"):
                assert parameter["example"] not in ("", "string"), path


def test_the_endpoint_of_a_path_is_one_for_its_operations_task() -> None:
    paths = shown()["paths"]
    embeddings = paths["/endpoints/{endpoint}/embeddings"]["post"]["parameters"][0]
    of_azure = paths["/openai/deployments/{deployment}/embeddings"]["post"]["parameters"][0]
    assert embeddings["example"] == of_azure["example"] == "<an endpoint for embeddings>"
    named = {one["name"]: one["example"] for one in served_model(paths) if one.get("in") == "path"}
    assert named == {"name": "<an endpoint for chat>", "deployment": "<a deployment>"}


def served_model(paths: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameters of a path with an endpoint and one of its deployments."""
    operation = paths["/serving-endpoints/{name}/served-models/{deployment}/invocations"]["post"]
    parameters: list[dict[str, Any]] = operation["parameters"]
    return parameters


ACCEPTING = ("/api/experiments/{name}/aa", "/api/feedback")
"""Operations that answer before their work is done."""


def test_every_operation_has_the_shapes_of_its_answers_and_errors() -> None:
    document = shown()
    for method, path, operation in described_operations():
        responses = operation["responses"]
        (success,) = responses.keys() - {"4XX", "5XX"}
        expected = {"/api/keys": "201", **dict.fromkeys(ACCEPTING, "202")} if method == "post" else {}
        assert success == expected.get(path, "200")
        assert all(content["schema"] for content in responses[success]["content"].values()), path
        errors = responses["4XX"]["content"]["application/json"]["schema"]
        for schema in errors.get("anyOf", [errors]):
            assert schema["$ref"].rpartition("/")[2] in document["components"]["schemas"]
    streamed = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert streamed.keys() == {"application/json", "text/event-stream"}


def test_open_routes_need_no_credentials_and_others_may() -> None:
    document = shown()
    assert document["servers"][0]["url"] == "/"
    assert document["security"] == [{}, {"bearer": []}, {"api-key": []}, {"x-api-key": []}]
    open_paths = {path for _, path, operation in described_operations() if operation.get("security") == []}
    assert {"/health", "/docs", "/tgi/health", "/.well-known/databricks-config"} <= open_paths
    assert not {"/v1/chat/completions", "/v1/models", "/api/2.0/serving-endpoints"} & open_paths


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ("databricks.Responses", "input"),
        ("friendli.Completions", "prompt"),
        ("openai.Embeddings", "input"),
        ("openai.Responses", "input"),
        ("tgi.GenerateRequest", "inputs"),
    ],
)
def test_a_text_that_is_rejected_when_empty_has_a_minimum_length(schema: str, field: str) -> None:
    described = shown()["components"]["schemas"][schema]["properties"][field]
    (text,) = [choice for choice in described.get("anyOf", [described]) if choice.get("type") == "string"]
    assert text["minLength"] == 1


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        ("1", True),
        ("0.5", True),
        (".5", True),
        ("10.25", True),
        ("", False),
        ("0", False),
        ("0.0", False),
        ("x", False),
    ],
)
def test_the_timeout_header_is_a_number_above_0(value: str, valid: bool) -> None:
    pattern = shown()["components"]["parameters"]["x-request-timeout-s"]["schema"]["pattern"]
    assert bool(re.search(pattern, value)) == valid


def test_api_version_is_a_date_and_required_where_only_azure_is() -> None:
    paths = shown()["paths"]
    shared, own = (paths[path]["post"]["parameters"][0] for path in ("/chat/completions", "/azure/images/embeddings"))
    assert (shared["name"], shared["required"], own["required"]) == ("api-version", False, True)
    assert re.search(shared["schema"]["pattern"], "2024-05-01-preview")
    assert not re.search(shared["schema"]["pattern"], "")


def test_the_header_for_azures_extra_parameters_is_described_where_a_body_is() -> None:
    paths, schemas = shown()["paths"], shown()["components"]["schemas"]
    for path, method in (("/azure/chat/completions", "post"), ("/chat/completions", "post"), ("/azure/info", "get")):
        headers = {
            parameter["name"]: parameter["schema"]
            for parameter in paths[path][method]["parameters"]
            if parameter.get("in") == "header"
        }
        values = headers.get("extra-parameters", {}).get("enum", [])
        assert values == (["error", "drop", "ignore", "pass-through", "allow"] if method == "post" else [])
    assert schemas["azure.Chat"]["additionalProperties"] is False
    assert "extra-parameters" in schemas["azure.Chat"]["description"]


def test_no_two_models_share_a_schema() -> None:
    models: dict[str, set[object]] = {}
    for operation in operations(DIALECTS):
        for body in operation.bodies:
            models.setdefault(f"{operation.dialect}.{body.model.__name__.lstrip('_')}", set()).add(body.model)
    assert {name: classes for name, classes in models.items() if len(classes) > 1} == {}
