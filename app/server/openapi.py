"""The OpenAPI 3.1 document of every route, made of the dialects' routes and of the models that check their requests.

It describes the code, not the configuration: it names no endpoint and is the same for every caller.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import Dialect
from app.dialects.openapi_schemas import Body, Schemas, content
from app.exchange.response import REQUEST_ID_HEADER
from app.routing.traffic import DEPLOYMENT_HEADER

Operation = tuple[str, str, str, str, Sequence[Body]]
"""Method, path, the dialect's name, its name for the operation, and what the body may be."""

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")

_HEADERS: Mapping[str, str] = {
    DEPLOYMENT_HEADER: "The deployment to use",
    REQUEST_ID_HEADER: "An id for this request; the response and the log repeat it",
    "x-request-timeout-s": "How many seconds the client waits for the whole response",
}

_SECURITY: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def operations(dialects: Sequence[Dialect]) -> list[Operation]:
    """The dialects' operations."""
    return [
        (route.method, route.path, dialect.name, route.operation, dialect.bodies.get(route.operation, ()))
        for dialect in dialects
        for route in dialect.routes
    ]


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document. Dialects that share a method and path share its entry; the body is that of any of them."""
    schemas = Schemas()
    shared: dict[tuple[str, str], list[Operation]] = {}
    for operation in operations:
        shared.setdefault((operation[1], operation[0]), []).append(operation)
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), together in shared.items():
        paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})[method.lower()] = _described(path, together, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchyard",
            "version": "1",
            "description": "A field that is null counts as one that is left out.",
        },
        "security": [{}, *({name: []} for name in _SECURITY)],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "parameters": {name: _parameter("header", name, text) for name, text in _HEADERS.items()},
            "securitySchemes": _SECURITY,
        },
    }


def _described(path: str, together: Sequence[Operation], schemas: Schemas) -> dict[str, Any]:
    dialects = list(dict.fromkeys(dialect for _, _, dialect, _, _ in together))
    bodies = [schema for _, _, dialect, _, bodies in together for schema in schemas.references(dialect, bodies)]
    parameters: list[Mapping[str, Any]] = [_parameter("path", name) for name in _PARAMETER.findall(path)]
    if "azure" in dialects:
        parameters.append(_parameter("query", "api-version", "Marks the request as Azure's"))
    if bodies:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _HEADERS]
    operation: dict[str, Any] = {
        "tags": dialects,
        "summary": ", ".join(dict.fromkeys(f"{dialect}: {name}" for _, _, dialect, name, _ in together)),
        "parameters": parameters,
        "responses": {
            "200": {"description": "The response; an event stream if the request asks for one"},
            "default": {"description": "An error in the dialect's own format"},
        },
    }
    if bodies:
        operation["requestBody"] = {"required": True, "content": content(bodies)}
    return operation


def _parameter(place: str, name: str, description: str = "") -> dict[str, Any]:
    parameter = {"in": place, "name": name, "required": place == "path", "schema": {"type": "string"}}
    return parameter | ({"description": description} if description else {})
