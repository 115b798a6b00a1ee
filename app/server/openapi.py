"""The OpenAPI 3.1 document of every route, made of the dialects' routes and of the models that check their requests.

It describes the code, not the configuration: it names no endpoint and is the same for every caller.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.dialects.azure.dialect import EXTRA_PARAMETERS
from app.dialects.base import Dialect
from app.dialects.schemas import Body, Schema, Schemas, content
from app.exchange.response import REQUEST_ID_HEADER
from app.routing.traffic import DEPLOYMENT_HEADER
from app.server.openapi_answers import ERRORS, answers


class Operation(NamedTuple):
    """An operation of a dialect: its name for it, and what the body may be. `open` needs no credentials.

    `query` are its optional parameters, `headers` those that only it reads, and `status` is that of a success.
    """

    method: str
    path: str
    dialect: str
    name: str
    bodies: Sequence[Body] = ()
    open: bool = False
    query: Mapping[str, Schema] = {}
    status: int = 200
    headers: Mapping[str, str] = {}


_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")

_HEADERS: Mapping[str, tuple[str, Schema]] = {
    DEPLOYMENT_HEADER: ("The deployment to use", {"minLength": 1}),
    REQUEST_ID_HEADER: ("An id for this request; the response and the log repeat it", {}),
    "x-request-timeout-s": (
        "Seconds that the client waits for the whole response: a number above 0",
        {"pattern": r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|0*\.[0-9]*[1-9][0-9]*)$", "maxLength": 100},
    ),
}

_API_VERSION: Schema = {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}(-preview)?$"}

_EXTRA_PARAMETERS = (
    "For Azure's dialect: what happens to fields that Azure does not document. `error`, the default, rejects the "
    "request; `drop` and `ignore` leave them out; `pass-through` and `allow` send them to the engine"
)

_SECURITY: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key or a JWT; every dialect reads it"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key", "description": "Azure's header"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "Anthropic's header"},
}


def operations(dialects: Sequence[Dialect]) -> list[Operation]:
    """The dialects' operations."""
    return [
        Operation(
            route.method,
            route.path,
            dialect.name,
            route.operation,
            dialect.bodies.get(route.operation, ()),
            route.open,
        )
        for dialect in dialects
        for route in dialect.routes
    ]


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document. Dialects that share a method and path share its entry; the body is that of any of them."""
    schemas = Schemas()
    shared: dict[tuple[str, str], list[Operation]] = {}
    for operation in operations:
        shared.setdefault((operation.path, operation.method), []).append(operation)
    ids = _operation_ids({place: [(one.dialect, one.name) for one in together] for place, together in shared.items()})
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), together in shared.items():
        described = {"operationId": ids[path, method], **_described(path, together, schemas)}
        paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})[method.lower()] = described
    named = {operation.dialect for operation in operations}
    errors = {f"{dialect}.Error": schema for dialect, schema in ERRORS.items() if dialect in named}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchyard",
            "version": "1",
            "description": "A field that is null counts as one that is left out.",
        },
        "servers": [{"url": "/", "description": "The server that this document came from"}],
        "security": [{}, *({name: []} for name in _SECURITY)],
        "paths": paths,
        "components": {
            "schemas": {**schemas.components, **errors},
            "parameters": {name: _parameter("header", name, text, schema) for name, (text, schema) in _HEADERS.items()},
            "securitySchemes": _SECURITY,
        },
    }


def _described(path: str, together: Sequence[Operation], schemas: Schemas) -> dict[str, Any]:
    dialects = list(dict.fromkeys(operation.dialect for operation in together))
    bodies = [schema for operation in together for schema in schemas.references(operation.dialect, operation.bodies)]
    parameters: list[Mapping[str, Any]] = [_parameter("path", name) for name in _PARAMETER.findall(path)]
    queries = {name: schema for operation in together for name, schema in operation.query.items()}
    parameters += [_parameter("query", name, "", schema) for name, schema in queries.items()]
    headers = {name: text for operation in together for name, text in operation.headers.items()}
    parameters += [_parameter("header", name, text) for name, text in headers.items()]
    if "azure" in dialects:
        version = _parameter("query", "api-version", "Marks the request as Azure's", _API_VERSION)
        parameters.append({**version, "required": dialects == ["azure"]})
        if bodies:
            modes: Schema = {"enum": [*EXTRA_PARAMETERS], "default": "error"}
            parameters.append(_parameter("header", "extra-parameters", _EXTRA_PARAMETERS, modes))
    if bodies:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _HEADERS]
    described: dict[str, Any] = {
        "tags": dialects,
        "summary": ", ".join(dict.fromkeys(f"{operation.dialect}: {operation.name}" for operation in together)),
        "parameters": parameters,
        "responses": _responses(together, dialects),
    }
    if all(operation.open for operation in together):
        described["security"] = []
    if bodies:
        described["requestBody"] = {"required": True, "content": content(bodies)}
    return described


def _responses(together: Sequence[Operation], dialects: Sequence[str]) -> dict[str, Any]:
    """Each operation's answers, and the dialects' forms of errors."""
    whole: dict[str, list[Schema]] = {}
    for operation in together:
        for media_type, schema in answers(operation.dialect, operation.name).items():
            whole.setdefault(media_type, []).append(schema)
    errors = content([{"$ref": f"#/components/schemas/{dialect}.Error"} for dialect in dialects])
    return {
        str(together[0].status): {
            "description": "The answer; an event stream if the request asks for one",
            "content": {media_type: content(found)["application/json"] for media_type, found in whole.items()},
        },
        "4XX": {"description": "The request cannot be served as it is", "content": errors},
        "5XX": {"description": "The deployment failed, or is overloaded", "content": errors},
    }


def _parameter(place: str, name: str, description: str = "", schema: Schema | None = None) -> dict[str, Any]:
    parameter = {
        "in": place,
        "name": name,
        "required": place == "path",
        "schema": {"type": "string", **(schema or {})},
    }
    return parameter | ({"description": description} if description else {})


Place = tuple[str, str]
"""Path and method."""


def _operation_ids(places: Mapping[Place, Sequence[tuple[str, str]]]) -> dict[Place, str]:
    """A readable, unique operationId for each path and method, given the dialects there and their names for it.

    Generators make the names of methods from it.

    ``openai_chat`` is the operation's plain path; at another one the id ends in the differing part of that path, as
    ``openai_chat_openai_v1``. Where several methods have one name, the method is part of it.
    """
    groups: dict[tuple[str, str], list[Place]] = {}
    for place, dialects in places.items():
        groups.setdefault(_owner(place, dialects), []).append(place)
    ids: dict[Place, str] = {}
    for (dialect, name), group in groups.items():
        several = len({method for _, method in group}) > 1
        for method in dict.fromkeys(method for _, method in group):
            its = [place for place in group if place[1] == method]
            stem = f"{dialect}_{method.lower()}_{name}" if several else f"{dialect}_{name}"
            rests = _different([_words(path) for path, _ in its])
            plain = rests.index([]) if [] in rests else 0
            for index, (place, rest) in enumerate(zip(its, rests, strict=True)):
                ids[place] = stem if index == plain else "_".join([stem, *rest])
    return ids


def _owner(place: Place, dialects: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Paths below /v1 are OpenAI's first; others belong to the first dialect that has them."""
    of_openai = [it for it in dialects if it[0] == "openai" and place[0].startswith("/v1/")]
    return (of_openai or dialects)[0]


def _words(path: str) -> list[str]:
    return [re.sub(r"\W+", "_", re.sub(r":\w+", "", part)).strip("_") for part in path.split("/") if part]


def _different(paths: Sequence[list[str]]) -> list[list[str]]:
    """The paths without the end that all of them have."""
    common = 0
    while all(len(path) > common for path in paths) and len({path[-common - 1] for path in paths}) == 1:
        common += 1
    return [path[: len(path) - common] for path in paths]
