"""The OpenAPI 3.1 document of every route, made of the dialects' routes and of the models that check their requests.

It describes the code, not the configuration, but for its examples: `with_names` puts names there that the caller may
use.

The shapes of answers and errors in the OpenAPI document: the fields of every answer. The engine may add others.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from app.dialects.azure.dialect import EXTRA_PARAMETERS
from app.dialects.base import Dialect
from app.dialects.schemas import Body, Schema, Schemas, content
from app.exchange.response import REQUEST_ID_HEADER
from app.experiments.contract.journal import MEDIA_TYPES
from app.routing.traffic import DEPLOYMENT_HEADER
from app.server.openapi_examples import EXAMPLES, QUERIES, Example, endpoint_for, filled, in_path, missing
from app.version import own_version

JSON = "application/json"
TEXT = "text/plain"
EVENTS = "text/event-stream"
MARKDOWN = "text/markdown"


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer"}
_EVENTS: Schema = {"description": "Server-sent events"}
_ANY_TEXT: Schema = {"type": ["string", "null"]}
_OBJECT: Schema = {"type": "object"}
_LIST: Schema = {"type": "array"}
_HEAD: Mapping[str, Schema] = {"id": _TEXT, "object": _TEXT, "created": _COUNT, "model": _TEXT}
_USAGE = _object(prompt_tokens=_COUNT, total_tokens=_COUNT)

_CHAT = _object(
    **_HEAD,
    choices=_list(_object(index=_COUNT, message=_object(role=_TEXT), finish_reason=_ANY_TEXT)),
    usage=_USAGE,
)
_COMPLETION = _object(**_HEAD, choices=_list(_object(index=_COUNT, text=_TEXT, finish_reason=_ANY_TEXT)), usage=_USAGE)
_VECTOR: Schema = {"anyOf": [_list({"type": "number"}), {"type": "string", "description": "base64"}]}
_EMBEDDINGS = _object(
    object=_TEXT, model=_TEXT, data=_list(_object(object=_TEXT, index=_COUNT, embedding=_VECTOR)), usage=_USAGE
)
_RERANKED = _object(
    id=_TEXT, model=_TEXT, results=_list(_object(index=_COUNT, relevance_score={"type": "number"})), usage=_USAGE
)
_SCORES = _object(**_HEAD, data=_list(_object(object=_TEXT, index=_COUNT, score={"type": "number"})), usage=_USAGE)
_RESPONSE = _object(id=_TEXT, object=_TEXT, status=_TEXT, model=_TEXT, output=_list(_object(type=_TEXT)), usage=_OBJECT)
_MODEL = _object(id=_TEXT, object=_TEXT, created=_COUNT, owned_by=_TEXT)
_MODELS: Schema = {"type": "object", "required": ["data"], "properties": {"object": _TEXT, "data": _list(_OBJECT)}}
_GENERATION = _object(generated_text=_TEXT)
_GENERATIONS: Schema = {"anyOf": [_GENERATION, _list(_GENERATION)]}
_TOKENS = _object(tokens=_list(_COUNT))
_NUMBER: Schema = {"type": "number"}
_ANY_NUMBER: Schema = {"type": ["number", "null"]}
_CLASSIFIED = _object(object=_TEXT, data=_list(_object(index=_COUNT, probs=_list(_NUMBER))), usage=_USAGE)
_CLASSES = _list(_object(score=_NUMBER, label=_TEXT))
_FLAG: Schema = {"type": "boolean"}
_ARMS: Mapping[str, Schema] = {"control": _TEXT, "treatments": _list(_TEXT)}
_SUMMARY = _object(experiment=_TEXT, endpoint=_TEXT, state=_TEXT, **_ARMS, headline=_TEXT)
_RUNS = _object(experiment=_TEXT, runs=_COUNT, state=_TEXT, results=_LIST)
_PLAN = _object(endpoint=_TEXT, plan=_TEXT, generation=_COUNT, weights=_OBJECT, overrides=_LIST)
_COUNTS, _NUMBERS, _ANY_NUMBERS = _list(_COUNT), _list(_NUMBER), _list(_ANY_NUMBER)
_OUTAGES = _list(_object(**{"from": _NUMBER, "to": {**_ANY_NUMBER, "description": "Null: it goes on"}}))
_SERIES = _object(
    endpoint=_TEXT,
    deployment=_TEXT,
    requests_per_s=_NUMBERS,
    errors=_COUNTS,
    refused=_COUNTS,
    left=_COUNTS,
    lost={**_COUNTS, "description": "Streams whose engine has died"},
    output_tokens_per_s=_NUMBERS,
    first_token_p50_s=_ANY_NUMBERS,
    first_token_p95_s=_ANY_NUMBERS,
    down_s={**_NUMBERS, "description": "Seconds without a replica"},
    outages=_OUTAGES,
)
_DRY_RUN = _object(before=_OBJECT, after=_OBJECT, moves=_OBJECT, overrides=_OBJECT, stops=_LIST, pins=_LIST)

_SHARED: Mapping[str, Schema] = {
    "chat": _CHAT,
    "completions": _COMPLETION,
    "embeddings": _EMBEDDINGS,
    "responses": _RESPONSE,
    "models": _MODELS,
}
"""Operations that are OpenAI's in every dialect."""

_OWN: Mapping[str, Mapping[str, Schema]] = {
    "openai": {
        "list_models": _MODELS,
        "retrieve_model": _MODEL,
        "stored_response": _OBJECT,
        "input_tokens": _object(object=_TEXT, input_tokens=_COUNT),
        "tokenize": _object(count=_COUNT, tokens=_list(_COUNT)),
        "invocations": {"anyOf": [_CHAT, _COMPLETION]},
        "detokenize": _object(prompt=_TEXT),
        "classify": _CLASSIFIED,
        "version": _object(version=_TEXT),
        "tokenizer_info": _object(tokenizer_class=_TEXT),
        "pooling": _object(object=_TEXT, model=_TEXT, data=_list(_object(object=_TEXT, index=_COUNT)), usage=_USAGE),
        "cohere_embed": _object(id=_TEXT, embeddings=_OBJECT, response_type=_TEXT),
        "swagger": _object(openapi=_TEXT, paths=_OBJECT),
        "rerank": _RERANKED,
        "rerank_v2": {**_RERANKED, "properties": {**_RERANKED["properties"], "meta": _OBJECT}},
        "score": _SCORES,
    },
    "anthropic": {
        "hello": _object(message=_TEXT),
        "messages": _object(
            id=_TEXT,
            type=_TEXT,
            role=_TEXT,
            model=_TEXT,
            content=_list(_object(type=_TEXT)),
            stop_reason=_ANY_TEXT,
            usage=_object(input_tokens=_COUNT, output_tokens=_COUNT),
        ),
        "count_tokens": _object(input_tokens=_COUNT),
        "list_models": _object(data=_LIST, has_more={"type": "boolean"}, first_id=_ANY_TEXT, last_id=_ANY_TEXT),
        "retrieve_model": _object(type=_TEXT, id=_TEXT, display_name=_TEXT, created_at=_TEXT),
    },
    "azure": {
        "images": _OBJECT,
        "info": _object(model_name=_TEXT, model_type=_TEXT, model_provider_name=_TEXT),
    },
    "databricks": {
        "invocations": {"anyOf": [_CHAT, _COMPLETION, _EMBEDDINGS, _RESPONSE]},
        "list_endpoints": _object(endpoints=_list(_object(name=_TEXT))),
        "get_endpoint": _object(name=_TEXT, config=_OBJECT, state=_OBJECT),
        "get_openapi": _object(openapi=_TEXT, paths=_OBJECT),
        "update_config": _object(name=_TEXT, config=_OBJECT, state=_OBJECT),
        "probe": _OBJECT,
    },
    "friendli": {
        "completions": _object(choices=_list(_object(text=_TEXT)), usage=_OBJECT),
        "render": _object(text=_TEXT),
        "tokenize": _TOKENS,
        "detokenize": _object(text=_TEXT),
        "classify": _CLASSIFIED,
    },
    "tgi": {
        "root": {"anyOf": [*_GENERATIONS["anyOf"], _list(_list(_NUMBER)), _list(_NUMBER), _CLASSES, _list(_CLASSES)]},
        "generate": _GENERATION,
        "invocations": {"anyOf": [_GENERATION, _list(_GENERATION), _CHAT, _COMPLETION]},
        "vertex": _object(predictions=_LIST),
        "tokenize": _list(_object(id=_COUNT, text=_TEXT)),
        "embed": _list(_list(_NUMBER)),
        "embed_all": _list(_list(_list(_NUMBER))),
        "similarity": _list(_NUMBER),
        "predict": {"anyOf": [_CLASSES, _list(_CLASSES)]},
        "rerank": _list(_object(index=_COUNT, score=_NUMBER)),
        "chat_tokenize": _object(tokenize_response=_LIST, templated_text=_TEXT),
        "info": _object(model_id=_TEXT, max_total_tokens=_COUNT),
    },
    "switchyard": {
        "list_experiments": _object(experiments=_list(_SUMMARY)),
        "get_experiment": _SUMMARY,
        "decide": {"anyOf": [_SUMMARY, _object(revision=_COUNT, before=_OBJECT, after=_OBJECT, moves=_OBJECT)]},
        "check_experiment": _object(problems=_list(_TEXT), warnings=_list(_TEXT), yaml=_ANY_TEXT),
        "audit": _object(records=_LIST, before=_ANY_TEXT),
        "load": _object(server_load=_COUNT),
        "overview": _object(at=_NUMBER, window_s=_NUMBER, endpoints=_list(_object(endpoint=_TEXT, deployments=_LIST))),
        "report": _object(**_SUMMARY["properties"], primary=_LIST, secondary=_LIST, guardrails=_LIST, alarms=_LIST),
        "history": _object(experiment=_TEXT, metric=_TEXT, treatment=_TEXT, points=_LIST),
        "planner": _object(metric=_TEXT, effect=_NUMBER, power=_NUMBER, units=_COUNT, units_so_far=_COUNT),
        "aa_runs": _RUNS,
        "start_aa_runs": _RUNS,
        "assignment": _object(endpoint=_TEXT, deployment=_ANY_TEXT, reason=_TEXT, why=_TEXT, deployments=_LIST),
        "get_request": _object(request_id=_TEXT, exposures=_LIST),
        "list_keys": _object(days=_COUNT, why_not=_ANY_TEXT, keys=_list(_object(id=_TEXT, name=_TEXT, source=_TEXT))),
        "create_key": _object(key=_TEXT, id=_TEXT, name=_TEXT, revision=_TEXT),
        "change_key": _object(id=_TEXT, name=_TEXT, revision=_TEXT),
        "rotate_key": _object(key=_TEXT, id=_TEXT, name=_TEXT, previous_expires=_ANY_TEXT, revision=_TEXT),
        "revoke_key": _object(id=_TEXT, name=_TEXT, revoked=_FLAG),
        "list_loaded_models": _object(
            why_not=_ANY_TEXT,
            applications=_list(_object(application=_TEXT, replicas=_LIST, engines=_LIST)),
            elsewhere=_list(_object(deployment=_TEXT, model=_TEXT)),
        ),
        "list_requests": _object(view=_TEXT, requests=_LIST, groups=_LIST, matching=_COUNT, kept=_COUNT),
        "recorded_text": _object(request_id=_TEXT, endpoint=_TEXT, body=_OBJECT),
        "request_history": _object(
            view=_TEXT,
            range=_TEXT,
            step_s=_NUMBER,
            at={**_NUMBERS, "description": "When each point begins, in Unix seconds"},
            until={**_NUMBER, "description": "When the last point ends"},
            no_router={**_OUTAGES, "description": "When no router answered: nobody counted requests"},
            lost_routers={**_OUTAGES, "description": "When a router ended with requests that nobody counted"},
            lost_requests={
                **_list(_object(at=_NUMBER, endpoint=_TEXT, requests=_COUNT)),
                "description": "Requests that were lost with their router, which was heard last `at` this time",
            },
            since={**_ANY_NUMBER, "description": "Before this time there was no router yet; null: not known"},
            series={**_list(_SERIES), "description": "Lists have a value for each point"},
            grafana_url=_ANY_TEXT,
        ),
        "feedback": _object(accepted=_COUNT, pending={"type": ["integer", "null"]}, unknown_metric=_list(_TEXT)),
        "get_traffic": _PLAN,
        "put_traffic": {"anyOf": [_PLAN, _DRY_RUN]},
        "roll_back_traffic": _PLAN,
        "mirror": _object(
            endpoint=_TEXT, shadow=_TEXT, copies=_COUNT, skipped=_OBJECT, primaries=_LIST, headline=_TEXT
        ),
        "traffic_history": _object(endpoint=_TEXT, plans=_LIST),
        "me": _object(
            caller=_TEXT,
            anonymous=_FLAG,
            manages=_FLAG,
            limits_counted=_TEXT,
            server=_OBJECT,
            endpoints=_list(_object(endpoint=_TEXT)),
        ),
        "console_sign_in": _object(credentials=_FLAG, oidc={"type": ["object", "null"]}),
        "callers": _object(
            view=_TEXT,
            since=_NUMBER,
            callers=_list(_object(caller=_ANY_TEXT, endpoint=_ANY_TEXT)),
            keys=_list(_object(caller=_TEXT, expires=_ANY_NUMBER, last_used=_ANY_NUMBER)),
        ),
        "index": _object(name=_TEXT, base_urls=_OBJECT, routes=_OBJECT),
        "health": _object(status=_TEXT),
        "ready": _object(status=_TEXT),
        "openapi": _object(openapi=_TEXT, paths=_OBJECT),
        "metrics_targets": _list(_object(targets=_list(_TEXT), labels=_OBJECT)),
    },
}

_TEXTS = frozenset(
    {
        ("databricks", "export_metrics"),
        ("switchyard", "metrics"),
        ("switchyard", "metrics_cluster"),
        ("switchyard", "metrics_proxy"),
        ("switchyard", "metrics_replica"),
        ("switchyard", "tgi_metrics"),
        ("tgi", "alive"),
        ("tgi", "health"),
    }
)
_ALSO_WORDS = frozenset({"list_experiments", "get_experiment", "report", "history", "planner", "aa_runs", "mirror"})
"""Operations that answer as Markdown or text, too, if the request asks for it."""

_STREAM_ONLY = frozenset({("tgi", "generate_stream"), ("switchyard", "events")})
_STREAMING = frozenset({"chat", "completions", "invocations", "messages", "responses", "root"})


def answers(dialect: str, operation: str) -> dict[str, Schema]:
    """The operation's answers with status 200: media type to schema. Raises KeyError on an unknown operation."""
    if (dialect, operation) in _TEXTS:
        return {TEXT: _TEXT}
    if (dialect, operation) in {("switchyard", "docs"), ("switchyard", "console")}:
        return {"text/html": _TEXT}
    if (dialect, operation) in _STREAM_ONLY:
        return {EVENTS: _EVENTS}
    if (dialect, operation) == ("switchyard", "export_exposures"):
        return dict.fromkeys(MEDIA_TYPES.values(), _TEXT)
    schema = _OWN[dialect].get(operation) or _SHARED[operation]
    if (dialect, operation) == ("switchyard", "audit"):
        return {JSON: schema, "application/jsonl": _TEXT}
    if dialect == "switchyard" and operation in _ALSO_WORDS:
        return {JSON: schema, MARKDOWN: _TEXT, TEXT: _TEXT}
    return {JSON: schema} | ({EVENTS: _EVENTS} if operation in _STREAMING else {})


_OPENAI_ERROR = _object(message=_TEXT, type=_TEXT, param=_ANY_TEXT, code=_ANY_TEXT)

ERRORS: Mapping[str, Schema] = {
    "anthropic": _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)),
    "azure": {
        "type": "object",
        "required": ["error", "message", "status", "code"],
        "properties": {
            "error": {"anyOf": [_TEXT, _object(code=_TEXT, message=_TEXT)]},
            "message": _TEXT,
            "status": _COUNT,
            "code": _TEXT,
        },
    },
    "databricks": _object(error_code=_TEXT, message=_TEXT, details=_list(_OBJECT)),
    "friendli": _object(error=_OPENAI_ERROR, detail=_TEXT),
    "openai": _object(error=_OPENAI_ERROR),
    "switchyard": {"type": "object", "description": "OpenAI's form; of /ready, what it answers with status 200"},
    "tgi": {
        "type": "object",
        "required": ["error", "error_type"],
        "properties": {
            "error": {"anyOf": [_TEXT, _object(message=_TEXT, http_status_code=_COUNT, type=_TEXT)]},
            "error_type": _TEXT,
        },
    },
}
"""A dialect's error body."""


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


GROUPS: Mapping[str, tuple[str, str]] = {
    "openai": ("OpenAI", "OpenAI's API, also Azure OpenAI's, vLLM's and Cohere's routes"),
    "anthropic": ("Anthropic", "Messages"),
    "azure": ("Azure AI", "Azure AI Model Inference"),
    "databricks": ("Databricks", "Foundation Model APIs and serving endpoints"),
    "friendli": ("Friendli", "Serverless and dedicated endpoints"),
    "tgi": ("TGI", "Text Generation Inference, MindIE and Text Embeddings Inference"),
    "switchyard": ("Switchyard", "Traffic, experiments, callers and this server's own health"),
}
"""A dialect's title and description, in the order in which pages show them."""

_FIRST = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v2/rerank",
    "/v1/models",
    "/v1/messages",
    "/serving-endpoints/{name}/invocations",
    "/generate",
)
"""The paths that people look for, before the others of their groups."""

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
    for (path, method), together in sorted(shared.items(), key=_place_in_groups):
        described = {"operationId": ids[path, method], **_described(path, together, schemas)}
        paths.setdefault(_PARAMETER.sub(r"{\1}", path), {})[method.lower()] = described
    named = {operation.dialect for operation in operations}
    errors = {f"{dialect}.Error": schema for dialect, schema in ERRORS.items() if dialect in named}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Switchyard",
            "version": own_version() or "development",
            "description": "Every route of this server, by the API that it belongs to. `model` is the name of an "
            "endpoint, which `GET /v1/models` lists. A field that is null counts as one that is left out.",
        },
        "tags": [{"name": title, "description": text} for name, (title, text) in GROUPS.items() if name in named],
        "servers": [{"url": "/", "description": "The server that this document came from"}],
        "security": [{}, *({name: []} for name in _SECURITY)],
        "paths": paths,
        "components": {
            "schemas": {**schemas.components, **errors},
            "parameters": {name: _parameter("header", name, text, schema) for name, (text, schema) in _HEADERS.items()},
            "securitySchemes": _SECURITY,
        },
    }


def with_names(described: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A document whose examples have these names in place of what stands for them. Operations say which are missing."""
    paths = {
        path: {method: _with_names(operation, names) for method, operation in methods.items()}
        for path, methods in described["paths"].items()
    }
    return {**described, "paths": paths}


def _with_names(operation: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    parameters = [
        {**parameter, "example": filled(parameter["example"], names)} if "example" in parameter else parameter
        for parameter in operation["parameters"]
    ]
    addressed = {**operation, "parameters": parameters}
    request = operation.get("requestBody", {})
    body = request.get("content", {}).get(JSON, {})
    if "example" in body:
        example = filled(body["example"], names)
        addressed["requestBody"] = {**request, "content": {**request["content"], JSON: {**body, "example": example}}}
        tasks = missing([example, *(parameter.get("example") for parameter in parameters)])
        lacks = [
            f"`{endpoint_for(task)}` stands for an endpoint with the task `{task}`: none is known that you may use."
            for task in dict.fromkeys(tasks)
        ]
        if lacks:
            addressed["description"] = "\n\n".join(filter(None, [operation.get("description"), *lacks]))
    return addressed


def _described(path: str, together: Sequence[Operation], schemas: Schemas) -> dict[str, Any]:
    dialects = list(dict.fromkeys(operation.dialect for operation in together))
    bodies = [schema for operation in together for schema in schemas.references(operation.dialect, operation.bodies)]
    example = _example(together)
    parameters: list[Mapping[str, Any]] = [
        {**_parameter("path", name), "example": in_path(path, name, example)} for name in _PARAMETER.findall(path)
    ]
    queries = {name: schema for operation in together for name, schema in operation.query.items()}
    parameters += [
        _parameter("query", name, "", schema) | ({"example": QUERIES[name]} if name in QUERIES else {})
        for name, schema in queries.items()
    ]
    headers = {name: text for operation in together for name, text in operation.headers.items()}
    parameters += [_parameter("header", name, text) for name, text in headers.items()]
    if "azure" in dialects:
        version = _parameter("query", "api-version", "Marks the request as Azure's", _API_VERSION)
        parameters.append({**version, "required": dialects == ["azure"], "example": "2024-05-01-preview"})
        if bodies:
            modes: Schema = {"enum": [*EXTRA_PARAMETERS], "default": "error"}
            parameters.append(_parameter("header", "extra-parameters", _EXTRA_PARAMETERS, modes))
    if bodies:
        parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _HEADERS]
    described: dict[str, Any] = {
        "tags": [GROUPS[dialect][0] for dialect in dialects],
        "summary": " / ".join(dict.fromkeys(_in_words(operation.name) for operation in together)),
        "parameters": parameters,
        "responses": _responses(together, dialects),
    }
    if all(operation.open for operation in together):
        described["security"] = []
    if bodies:
        body = content(bodies)
        if example is not None:
            body[JSON]["example"] = example.body
            if description := _needs(path, example):
                described["description"] = description
        described["requestBody"] = {"required": True, "content": body}
    return described


def _place_in_groups(item: tuple[tuple[str, str], Sequence[Operation]]) -> int:
    (path, _), _ = item
    return _FIRST.index(path) if path in _FIRST else len(_FIRST)


def _in_words(operation: str) -> str:
    return operation.replace("_", " ").capitalize()


def _example(together: Sequence[Operation]) -> Example | None:
    """A request that is valid for this path: OpenAI's, where it shares it."""
    examples = {one.dialect: EXAMPLES.get(one.dialect, {}).get(one.name) for one in together}
    return examples.get("openai") or next(filter(None, examples.values()), None)


def _needs(path: str, example: Example) -> str:
    """What the example needs in order to be answered."""
    default = (
        f"The request names no model: the default endpoint for `{example.task}` answers it, which the configuration "
        f"names (`defaults: {{{example.task}: …}}`)."
    )
    is_unnamed = example.needs_default and not _PARAMETER.search(path)
    return "\n\n".join([*([default] if is_unnamed else []), *([f"{example.note}."] if example.note else [])])


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
            "content": {media_type: content(media)["application/json"] for media_type, media in whole.items()},
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
    of_openai = [pair for pair in dialects if pair[0] == "openai" and place[0].startswith("/v1/")]
    return (of_openai or dialects)[0]


def _words(path: str) -> list[str]:
    return [re.sub(r"\W+", "_", re.sub(r":\w+", "", part)).strip("_") for part in path.split("/") if part]


def _different(paths: Sequence[list[str]]) -> list[list[str]]:
    """The paths without the end that all of them have."""
    common = 0
    while all(len(path) > common for path in paths) and len({path[-common - 1] for path in paths}) == 1:
        common += 1
    return [path[: len(path) - common] for path in paths]
