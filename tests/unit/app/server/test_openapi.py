"""The OpenAPI document: it is whole, and it has every route that is served."""

import re
from typing import Any

from pydantic_core import from_json
from starlette.testclient import TestClient

from app.dialects.registry import DIALECTS
from app.server.application import Router
from app.server.openapi import document, operations
from app.upstream.target import RuntimeEnvironment


def told() -> dict[str, Any]:
    """What a router without a configuration answers: the document does not depend on one."""
    answer = TestClient(Router(RuntimeEnvironment()).app).get("/openapi.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    described: dict[str, Any] = from_json(answer.content)
    return described


def test_every_route_of_every_dialect_is_described() -> None:
    paths = told()["paths"]
    for dialect in DIALECTS:
        for route in dialect.routes:
            operation = paths[route.path.replace(":path}", "}")][route.method.lower()]
            assert dialect.name in operation["tags"]
            assert f"{dialect.name}: {route.operation}" in operation["summary"]


def test_what_a_deployment_or_the_router_reads_has_a_body() -> None:
    for dialect in DIALECTS:
        posted = {route.operation for route in dialect.routes if route.method == "POST" and not route.local}
        assert dialect.bodies.keys() == posted, dialect.name


def test_the_management_api_and_the_routers_own_operations_are_described() -> None:
    paths = told()["paths"]
    assert "requestBody" in paths["/api/2.0/serving-endpoints/{name}/config"]["put"]
    assert {"/health", "/ready", "/metrics", "/openapi.json"} <= paths.keys()
    assert "/api/2.0/{path}" not in paths, "what is refused is not offered"


def test_every_reference_leads_somewhere_and_every_schema_is_referred_to() -> None:
    described = document(operations(DIALECTS))
    referred = set(re.findall(r"'#/components/schemas/([^']+)'", str(described)))
    assert referred == set(described["components"]["schemas"])
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in referred)


def test_dialects_that_share_a_path_share_its_description() -> None:
    shared = told()["paths"]["/v1/chat/completions"]["post"]
    assert shared["tags"] == ["friendli", "tgi", "openai"]
    choices = shared["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert [it["$ref"].rpartition("/")[2] for it in choices] == [
        "friendli.Chat",
        "tgi.Chat",
        "openai.Chat",
    ]


def test_fields_that_pass_unchecked_are_described_and_others_are_not_allowed() -> None:
    chat = told()["components"]["schemas"]["openai.Chat"]
    assert chat["properties"]["structured_outputs"] == {}
    assert chat["properties"]["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert chat["additionalProperties"] is False


def test_paths_list_their_parameters() -> None:
    (parameter,) = told()["paths"]["/v1/models/{model}"]["get"]["parameters"]
    assert parameter == {"in": "path", "name": "model", "required": True, "schema": {"type": "string"}}


def test_no_two_models_share_a_schema() -> None:
    models: dict[str, set[object]] = {}
    for _, _, dialect, _, bodies in operations(DIALECTS):
        for body in bodies:
            models.setdefault(f"{dialect}.{body.model.__name__.lstrip('_')}", set()).add(body.model)
    assert {name: found for name, found in models.items() if len(found) > 1} == {}
