"""Every method of the vendors' Python clients, against the real router: it works, is refused with what to use instead,
or does not apply. `make clients` writes the table in `docs/reference/clients.md`.

A method gets the arguments in `ARGUMENTS`, or made-up ones of the right kind: what only the vendor's server has is
refused before its arguments matter.
"""

import inspect
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import openai
from anthropic._resource import SyncAPIResource as AnthropicResource
from azure.ai.inference import ChatCompletionsClient, EmbeddingsClient, ImageEmbeddingsClient
from azure.core.credentials import AzureKeyCredential
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.service.serving import (
    ChatMessage,
    ChatMessageRole,
    ExternalFunctionRequestHttpMethod,
    PtEndpointCoreConfig,
)
from friendli.core.basesdk import SyncSDK
from friendli.friendli import SyncFriendli
from huggingface_hub import InferenceClient
from openai._resource import SyncAPIResource as OpenAIResource
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.engine.fake_engine import CARD, Answer, FakeEngine, frame, stream
from tests.support.engine.other_answers import every_route

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "clients.md"
BEGIN, END = "<!-- methods: begin (made by `make clients`) -->\n", "<!-- methods: end -->\n"

WORKS = "works"
IN_A_CLUSTER = "works with Ray Serve; a router alone reads its traffic from its file"
HELPER = "does not apply: no request, or a request to a path that the caller names"
OTHER_TASK = "does not apply: TGI generates text for it, too"
REFUSALS = re.compile(
    r"This server has no .*?; use .*|this server stores no responses|does not serve image embeddings"
    r"|.*not (?:offered|kept).*"
)
MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT: Mapping[str, Any] = {"model": "chat", "messages": MESSAGES}
CLAUDE: Mapping[str, Any] = {**CHAT, "max_tokens": 9}
FILE = ("a.txt", b"x")

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "OpenAI chat.completions.create": CHAT,
    "OpenAI chat.completions.parse": CHAT,
    "OpenAI chat.completions.stream": CHAT,
    "OpenAI completions.create": {"model": "chat", "prompt": "hi"},
    "OpenAI embeddings.create": {"model": "embed", "input": "hi"},
    "OpenAI models.retrieve": {"model": "chat"},
    "OpenAI responses.create": {"model": "chat", "input": "hi"},
    "OpenAI responses.parse": {"model": "chat", "input": "hi"},
    "OpenAI responses.stream": {"model": "chat", "input": "hi"},
    "OpenAI responses.input_tokens.count": {"model": "chat", "input": "hi"},
    "OpenAI admin.organization.external_keys.create": {
        "external_id": "x",
        "kms_arn": "x",
        "name": "x",
        "role_arn": "x",
        "type": "aws_kms",
    },
    "OpenAI agents.automations.create": {"name": "x", "target": {}, "type": "once", "run_at": 1},
    "OpenAI agents.environments.files.create": {
        "environment_id": "x",
        "file_id": "x",
        "path": "/workspace/a",
        "type": "file_id",
    },
    "OpenAI agents.environments.files.upload": {"environment_id": "x", "path": "/workspace/a", "file": b"x"},
    "OpenAI agents.sessions.stream": {"session_id": "x", "input": "hi"},
    "OpenAI audio.voice_consents.create": {"language": "en", "name": "x", "recording": FILE},
    "OpenAI audio.voices.create": {"audio_sample": FILE, "consent": "x", "name": "x"},
    "OpenAI uploads.parts.create": {"upload_id": "x", "data": FILE},
    "OpenAI uploads.upload_file_chunked": {
        "file": b"x",
        "filename": "a.txt",
        "bytes": 1,
        "mime_type": "text/plain",
        "purpose": "batch",
    },
    "OpenAI vector_stores.file_batches.upload_and_poll": {"vector_store_id": "x", "files": [FILE]},
    "Anthropic messages.create": CLAUDE,
    "Anthropic messages.parse": CLAUDE,
    "Anthropic messages.stream": CLAUDE,
    "Anthropic messages.tool_runner": {**CLAUDE, "tools": []},
    "Anthropic messages.count_tokens": CHAT,
    "Anthropic models.retrieve": {"model_id": "chat"},
    "Anthropic beta.organization.plugin_marketplaces.validate_archive": {"archive": FILE},
}
"""Client and method, without a leading `beta.`, to the arguments."""


def is_resource(value: Any) -> bool:
    """Whether an attribute of OpenAI's or Anthropic's client is a group of methods."""
    return isinstance(value, OpenAIResource | AnthropicResource)


class Row(NamedTuple):
    """A method and its answer."""

    client: str
    method: str
    answer: str


def methods(resource: Any, is_group: Callable[[Any], bool], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The public methods of a client's resources, with their paths."""
    for name in dir(type(resource)):
        if name.startswith(("_", "with_")) or name in ("close", "copy"):
            continue
        attribute = inspect.getattr_static(type(resource), name)
        if inspect.isfunction(attribute):
            yield prefix + name, getattr(resource, name)
        elif not isinstance(attribute, type) and is_group(inner := getattr(resource, name)):
            yield from methods(inner, is_group, f"{prefix}{name}.")


def made_up(method: Callable[..., Any]) -> dict[str, Any]:
    """Arguments for the parameters that a method requires."""
    return {
        name: _value(name, str(parameter.annotation))
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _value(name: str, kind: str) -> Any:
    if "FileTypes" in kind or name in ("file", "image", "video"):
        return FILE
    if re.search(r"Iterable|[Ll]ist\[|Sequence", kind):
        return []
    if "Dict" in kind:
        return {}
    return 1 if re.fullmatch(r"'?int'?", kind) else "x"


def answer(call: Callable[[], Any]) -> str:
    """What a call comes to: WORKS, the refusal, or the error that says neither."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            result = call()
            if "Manager" in type(result).__name__:
                with result as events:
                    list(events)
            elif inspect.isgenerator(result) or "Runner" in type(result).__name__:
                list(result)
    except Exception as error:  # noqa: BLE001  every client has its own
        text = message_of(error)
        refusal = REFUSALS.search(text)
        return f"refused: {refusal[0].strip()}" if refusal else f"unclear: {type(error).__name__}: {text[:200]}"
    return WORKS


def message_of(error: Exception) -> str:
    """The server's message in a client's exception, else the exception's own text."""
    body = getattr(error, "body", None) or getattr(getattr(error, "response", None), "body", None)
    with suppress(ValueError):
        body = json.loads(body) if isinstance(body, str | bytes | bytearray) else body
    if isinstance(body, dict):
        told = body.get("error", body)
        return str(told.get("message", told) if isinstance(told, dict) else told)
    return str(error)


def walked(client: str, named: Iterator[tuple[str, Any]], apart: Mapping[str, str]) -> Iterator[Row]:
    """The rows of a client. `apart`: methods that are not called, by expression, and their answers."""
    for name, method in named:
        known = next((text for expression, text in apart.items() if re.fullmatch(expression, name)), None)
        if known is None:
            given = ARGUMENTS.get(f"{client} {name}", ARGUMENTS.get(f"{client} {name.removeprefix('beta.')}"))
            known = answer(partial(method, **(made_up(method) if given is None else given)))
        yield Row(client, name, known)


def of_openai(rig: Rig) -> Iterator[Row]:
    with openai.OpenAI(
        base_url=f"{rig.url}/v1",
        websocket_base_url=f"{rig.url.replace('http', 'ws')}/v1",
        api_key="k",
        admin_api_key="k",
        max_retries=0,
    ) as client:
        apart = {
            r"\w+": HELPER,
            r"webhooks\.(unwrap|verify_signature)": HELPER,
            r"beta\.agents\.environments\.files\.prepare(_directory)?": HELPER,
            r"beta\.agents\.sessions\.artifacts\.for_result": HELPER,
        }
        yield from walked("OpenAI", methods(client, is_resource), apart)


def of_anthropic(rig: Rig) -> Iterator[Row]:
    with anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0) as client:
        apart = {r"\w+": HELPER, r"beta\.webhooks\.\w+": HELPER, r"beta\.messages\.thread": HELPER}
        yield from walked("Anthropic", methods(client, is_resource), apart)


def of_azure(rig: Rig) -> Iterator[Row]:
    key = AzureKeyCredential("k")
    for kind, arguments in (
        (ChatCompletionsClient, {"messages": MESSAGES}),
        (EmbeddingsClient, {"input": ["hi"]}),
        (ImageEmbeddingsClient, {"input": []}),
    ):
        with kind(rig.url, key, retry_total=0) as client:
            calls: Mapping[str, Mapping[str, Any]] = {"complete": arguments, "embed": arguments, "get_model_info": {}}
            named = ((f"{kind.__name__}.{name}", method) for name, method in methods(client, lambda inner: False))
            for name, method in named:
                given = calls.get(name.partition(".")[2])
                result = HELPER if given is None else answer(partial(method, **given))
                yield Row("azure-ai-inference", name, result)


_DATABRICKS: Mapping[str, Mapping[str, Any]] = {
    "query": {"name": "chat", "messages": [ChatMessage(role=ChatMessageRole.USER, content="hi")]},
    "export_metrics": {"name": "chat"},
    "get": {"name": "chat"},
    "get_open_api": {"name": "chat"},
    "build_logs": {"name": "chat", "served_model_name": "blue"},
    "logs": {"name": "chat", "served_model_name": "blue"},
    "http_request": {"conn": "c", "method": ExternalFunctionRequestHttpMethod.GET, "path": "/"},
    "create_provisioned_throughput_endpoint": {"name": "x", "config": PtEndpointCoreConfig()},
    "create_provisioned_throughput_endpoint_and_wait": {"name": "x", "config": PtEndpointCoreConfig()},
    "update_provisioned_throughput_endpoint_config": {"name": "chat", "config": PtEndpointCoreConfig()},
    "update_provisioned_throughput_endpoint_config_and_wait": {"name": "chat", "config": PtEndpointCoreConfig()},
    "wait_get_serving_endpoint_not_updating": {"name": "chat"},
}


_DATABRICKS_APART: Mapping[str, str] = {
    "get_langchain_chat_open_ai_client": HELPER,
    "get_open_ai_client": HELPER,
    "update_config": IN_A_CLUSTER,
    "update_config_and_wait": IN_A_CLUSTER,
}


def of_databricks(rig: Rig) -> Iterator[Row]:
    workspace = WorkspaceClient(config=Config(host=rig.url, token="dapi-x", retry_timeout_seconds=2))
    endpoints = workspace.serving_endpoints
    for name, method in methods(endpoints, lambda inner: False):
        if apart := _DATABRICKS_APART.get(name):
            yield Row("databricks-sdk", f"serving_endpoints.{name}", apart)
            continue
        given = _DATABRICKS.get(name) or {**made_up(method), **{"name": "chat"}}
        takes = inspect.signature(method).parameters
        call = {key: value for key, value in given.items() if key in takes}
        yield Row("databricks-sdk", f"serving_endpoints.{name}", answer(partial(method, **call)))
    yield Row("databricks-sdk", "clusters.list", answer(lambda: list(workspace.clusters.list())))


_PROMPT: Mapping[str, Any] = {"model": "chat", "prompt": "hi"}
_DAYS: Mapping[str, Any] = {name: datetime(2026, 1, 1, tzinfo=UTC) for name in ("start_time", "end_time")}
_UPLOAD: Mapping[str, Any] = {"file_name": "a", "content": b"x"}
_FRIENDLI: Mapping[str, Mapping[str, Any]] = {
    "chat.complete": CHAT,
    "chat_render.render": CHAT,
    "serverless.completions.complete": {"serverless_completions_body": _PROMPT},
    "dedicated.completions.complete": {"dedicated_completions_body": _PROMPT},
    "container.completions.complete": {"request": _PROMPT},
    "embeddings.embeddings": {"model": "embed", "input_": "hi"},
    "text_classification.classify": {"model": "mood", "input_": "hi"},
    "endpoint.create": {
        "project_id": "x",
        "name": "x",
        "instance_option_id": "x",
        "advanced": {"tokenizer_skip_special_tokens": True, "tokenizer_add_special_tokens": True},
    },
    "messages.messages": CLAUDE,
    "responses.responses": {"model": "chat", "input_": "hi"},
    "token.tokenize": _PROMPT,
    "token.detokenize": {"model": "chat", "tokens": [1]},
    "audio.transcribe": {"model": "x", "file": _UPLOAD},
    "image.edit": {"model": "x", "prompt": "x", "image": {"image": "x"}},
    "cost.get_cost": _DAYS,
    "usage.get_usage": _DAYS,
}
"""By the method's path, with or without its first part."""


def of_friendli(rig: Rig) -> Iterator[Row]:
    with SyncFriendli(token="flp_x", server_url=rig.url, retry_config=None) as client:
        for top in ("serverless", "dedicated", "container", "usage", "cost"):
            outer = getattr(client, top)
            groups = {f"{top}.{name}.": inner for name, inner in vars(outer).items() if name != "parent_ref"}
            for prefix, group in {f"{top}.": outer, **groups}.items():
                if not isinstance(group, SyncSDK):
                    continue
                for name, method in methods(group, lambda inner: False, prefix):
                    if name.endswith("do_request"):
                        continue
                    given = _FRIENDLI.get(name) or _FRIENDLI.get(name.partition(".")[2]) or made_up(method)
                    call = {key: value for key, value in given.items() if key in inspect.signature(method).parameters}
                    call |= {"server_url": rig.url, "retries": None}
                    result = answer(partial(method, **call))
                    yield Row("friendli", name, result)


def of_hugging_face(rig: Rig) -> Iterator[Row]:
    url = f"{rig.url}/tgi/chat"
    client = InferenceClient(model=url, provider="hf-inference")
    calls: Mapping[str, Mapping[str, Any]] = {
        "chat_completion": {"messages": MESSAGES},
        "text_generation": {"prompt": "hi"},
        "feature_extraction": {"text": "hi", "model": f"{rig.url}/tgi/embed"},
        "sentence_similarity": {"sentence": "hi", "other_sentences": ["ho"], "model": f"{rig.url}/tgi/embed"},
        "text_classification": {"text": "hi", "model": f"{rig.url}/tgi/mood"},
        "get_endpoint_info": {"model": f"{rig.url}/tgi/embed"},
        "health_check": {"model": f"{rig.url}/tgi/embed"},
    }
    for name, method in methods(client, lambda inner: False):
        given = calls.get(name)
        result = OTHER_TASK if given is None else answer(partial(method, **given))
        yield Row("huggingface_hub", name, result)


CLIENTS = (of_openai, of_anthropic, of_azure, of_databricks, of_friendli, of_hugging_face)


def response_events(body: Mapping[str, Any]) -> Response:
    """A stream of a response without output."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
    events = [("created", "in_progress"), ("completed", "completed")]
    return stream(
        [
            f"event: response.{kind}\n"
            + frame({"type": f"response.{kind}", "sequence_number": number, "response": {**response, "status": status}})
            for number, (kind, status) in enumerate(events)
        ]
    )


def listed(data: Sequence[Mapping[str, Any]]) -> Response:
    """vLLM's answer with a result for each text."""
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return JSONResponse({"id": "l", "object": "list", "created": 1, "model": "m", "data": data, "usage": usage})


def engine_answers(engine: FakeEngine) -> Answer:
    """Every route of vLLM's that the clients reach."""
    others = every_route(engine)

    def answers(body: dict[str, Any]) -> Response:
        match engine.paths[-1]:
            case "/v1/messages/count_tokens":
                return JSONResponse({"input_tokens": 3})
            case "/tokenize":
                return JSONResponse({"count": 3, "tokens": [1, 2, 3], "max_model_len": 99})
            case "/classify":
                return listed([{"index": 0, "label": "a", "probs": [1.0, 0.0], "num_classes": 2}])
            case "/v1/embeddings" if isinstance(body["input"], list):
                return listed([{"index": number, "embedding": [0.5, 1.0]} for number in range(len(body["input"]))])
            case "/v1/responses" if body.get("stream"):
                return response_events(body)
            case "/v1/chat/completions/render":
                return JSONResponse({"token_ids": [1]})
        return others(body)

    return answers


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown: methods with one answer together, by resource."""
    together: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        resource, _, name = row.method.rpartition(".")
        shown = resource if row.answer == WORKS else ".".join(resource.split(".")[: 1 + resource.startswith("beta.")])
        together.setdefault((row.client, row.answer), {}).setdefault(shown, []).append(name)
    lines = ["| client | methods | answer |", "| --- | --- | --- |"]
    for (client, outcome), resources in sorted(
        together.items(), key=lambda group: (group[0][0], group[0][1] != WORKS, group[0][1])
    ):
        groups = (
            f"`{resource}`: {', '.join(names)}" if outcome == WORKS or not resource else f"`{resource}` ({len(names)})"
            for resource, names in sorted(resources.items())
        )
        lines.append(f"| {client} | {'; '.join(groups).replace('``: ', '')} | {outcome} |")
    return "\n".join(lines) + "\n"


def test_every_method_works_is_refused_clearly_or_does_not_apply(rig: Rig) -> None:
    mini = {**rig.config["deployments"]["mini"], "tasks": ["embeddings", "classify"]}
    rig.change(
        deployments={**rig.config["deployments"], "mini": mini},
        endpoints={**rig.config["endpoints"], "mood": {"tasks": ["classify"], "traffic": {"mini": 100}}},
        defaults={"chat": "chat", "completions": "chat", "embeddings": "embed", "classify": "mood"},
    )
    for engine in (rig.blue, rig.mini):
        engine.card, engine.answer = CARD, engine_answers(engine)
    rows = [row for of_client in CLIENTS for row in of_client(rig)]
    unclear = [row for row in rows if row.answer.startswith("unclear")]
    assert not unclear, "\n".join(map(str, unclear))
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    written = f"{head}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}"
    if os.environ.get("WRITE_CLIENTS"):
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "`make clients` writes the table anew"
