"""API keys with every dialect's clients: who may call which endpoints, and that no key leaks."""

import asyncio
import json
import logging
import re
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest
from azure.ai.inference import ChatCompletionsClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from app.access.keys import append, create
from app.config.base import ConfigError
from app.server.application import Router
from app.telemetry.logs import JsonFormatter
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import PROMPT, Rig
from tests.support.clients.samples import tokenizer
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

MESSAGES = [{"role": "user", "content": "hi"}]
PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Keys:
    """A keys file, and the keys in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all = self.new("all")
        self.chat = self.new("chat team", endpoints=["chat"])
        self.embed = self.new("embed team", endpoints=["embed"])
        self.expired = self.new("gone team", expires=PAST)
        self.wrong, _ = create("unknown")

    def new(self, name: str, **fields: Any) -> str:
        key, record = create(name, **fields)
        append(self.path, record.line)
        return key


@pytest.fixture(autouse=True)
def tokenizers(rig: Rig, tmp_path: Path) -> None:
    """TGI calls its credentials tokens."""
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    deployments = rig.config["deployments"]
    rig.change(deployments={name: {**deployments[name], "tokenizer_dir": str(tmp_path)} for name in ("blue", "green")})


@pytest.fixture
def keys(rig: Rig, tmp_path: Path) -> Keys:
    """A rig that requires keys."""
    keys = Keys(tmp_path / "keys.yaml")
    rig.change(access={"keys_file": str(keys.path)})
    return keys


class DialectRequest(NamedTuple):
    """One dialect's request to the endpoint `chat`, and its error format."""

    path: str
    body: dict[str, Any]
    headers: Callable[[str], dict[str, str]]
    error: Callable[[httpx.Response], tuple[Any, ...]]
    unauthorized: tuple[Any, ...]
    forbidden: tuple[Any, ...]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _openai_error(answer: httpx.Response) -> tuple[Any, ...]:
    error = answer.json()["error"]
    return error["type"], error["code"], error["param"]


def _azure_error(answer: httpx.Response) -> tuple[Any, ...]:
    body = answer.json()
    assert answer.headers["x-ms-error-code"] == body["code"]
    return body["error"], body["code"], body["status"]


CHAT = {"model": "chat", "messages": MESSAGES, "max_tokens": 3}
OPENAI: Any = {
    "error": _openai_error,
    "unauthorized": ("invalid_request_error", "invalid_api_key", None),
    "forbidden": ("invalid_request_error", "permission_denied", "model"),
}
DIALECTS = {
    "openai": DialectRequest("/v1/chat/completions", CHAT, bearer, **OPENAI),
    "azure openai": DialectRequest(
        "/openai/deployments/chat/chat/completions?api-version=2024-06-01",
        {"messages": MESSAGES},
        lambda key: {"api-key": key},
        **OPENAI,
    ),
    "azure": DialectRequest(
        "/endpoints/chat/chat/completions?api-version=2024-05-01-preview",
        {"messages": MESSAGES},
        lambda key: {"api-key": key, **bearer(key)},
        _azure_error,
        ("Unauthorized", "Unauthorized", 401),
        ("Forbidden", "Forbidden", 403),
    ),
    "anthropic": DialectRequest(
        "/v1/messages",
        CHAT,
        lambda key: {"x-api-key": key},
        lambda answer: (answer.json()["type"], answer.json()["error"]["type"]),
        ("error", "authentication_error"),
        ("error", "permission_error"),
    ),
    "databricks": DialectRequest(
        "/serving-endpoints/chat/invocations",
        {"messages": MESSAGES},
        bearer,
        lambda answer: (answer.json()["error_code"],),
        ("UNAUTHENTICATED",),
        ("PERMISSION_DENIED",),
    ),
    "tgi": DialectRequest(
        "/tgi/chat/v1/chat/completions",
        {"messages": MESSAGES, "max_tokens": 3},
        bearer,
        lambda answer: (answer.json()["error_type"],) if answer.content else ("no body",),
        ("no body",),
        ("refused",),
    ),
}

every_dialect = pytest.mark.parametrize("spoken", DIALECTS.values(), ids=DIALECTS.keys())


def ask(rig: Rig, spoken: DialectRequest, key: str | None) -> httpx.Response:
    headers = spoken.headers(key) if key is not None else {}
    return httpx.post(rig.url + spoken.path, json=spoken.body, headers=headers)


@every_dialect
@pytest.mark.parametrize("which", ["all", "chat"])
def test_a_key_opens_its_endpoints(rig: Rig, keys: Keys, spoken: DialectRequest, which: str) -> None:
    answer = ask(rig, spoken, getattr(keys, which))
    assert answer.status_code == 200, answer.text


@every_dialect
@pytest.mark.parametrize("which", [None, "wrong", "expired"])
def test_without_a_valid_key_every_dialect_answers_401_in_its_format(
    rig: Rig, keys: Keys, spoken: DialectRequest, which: str | None
) -> None:
    key = getattr(keys, which) if which else None
    answer = ask(rig, spoken, key)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "retry-after" not in answer.headers
    assert spoken.error(answer) == spoken.unauthorized
    assert key is None or key not in answer.text
    assert rig.blue.requests == []


@every_dialect
def test_a_key_for_another_endpoint_gets_403_in_the_dialects_format(
    rig: Rig, keys: Keys, spoken: DialectRequest
) -> None:
    answer = ask(rig, spoken, keys.embed)
    assert answer.status_code == 403
    assert spoken.error(answer) == spoken.forbidden
    assert "'embed team' may not use 'chat'; it may use: embed" in answer.text
    assert rig.blue.requests == []


MISSPELT = [
    *DIALECTS.values(),
    DIALECTS["openai"]._replace(path="/dedicated/v1/chat/completions"),  # Friendli's
    DIALECTS["databricks"]._replace(path="/serving-endpoints/chat/completions", body=CHAT),
]


@pytest.mark.parametrize("spoken", MISSPELT, ids=lambda spoken: spoken.path)
def test_a_misspelt_model_is_a_404_that_names_the_nearest_one_that_the_caller_may_use(
    rig: Rig, keys: Keys, spoken: DialectRequest
) -> None:
    body = {**spoken.body, "model": "caht"} if "model" in spoken.body else spoken.body
    path = spoken.path if "model" in spoken.body else spoken.path.replace("/chat/", "/caht/", 1)
    misspelt = spoken._replace(path=path, body=body)
    for key in (keys.all, keys.chat):
        answer = ask(rig, misspelt, key)
        assert (answer.status_code, "(did you mean 'chat'?)" in answer.text) == (404, True), answer.text
    answer = ask(rig, misspelt, keys.embed)
    assert (answer.status_code, "did you mean" in answer.text) == (404, False), answer.text
    assert "'chat'" not in answer.text


def test_a_misspelt_model_of_a_list_is_a_404_that_names_the_nearest_one(rig: Rig, keys: Keys) -> None:
    for path, extra in {
        "/v1/models/caht": {},
        "/anthropic/v1/models/caht": {"anthropic-version": "2023-06-01"},
    }.items():
        for key, meant in ((keys.chat, True), (keys.embed, False)):
            answer = httpx.get(rig.url + path, headers={**bearer(key), **extra})
            assert (answer.status_code, "(did you mean 'chat'?)" in answer.text) == (404, meant), answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/2.0/serving-endpoints/caht",
        "/api/endpoints/caht/traffic",
        "/api/endpoints/caht/mirror",
        "/api/endpoints/caht/assignment?key=a",
        "/load?model=caht",
    ],
)
def test_a_misspelt_endpoint_of_the_management_names_the_nearest_one_that_the_caller_may_use(
    rig: Rig, keys: Keys, path: str
) -> None:
    for key, meant in ((keys.chat, True), (keys.embed, False)):
        answer = httpx.get(rig.url + path, headers=bearer(key))
        assert (answer.status_code, "(did you mean 'chat'?)" in answer.text) == (404, meant), answer.text


def test_what_anybody_may_ask_names_no_endpoint_that_was_not_asked_about(rig: Rig, keys: Keys) -> None:
    for path in ("", "/health", "/ping", "/info", "/v1/models"):
        answer = httpx.get(f"{rig.url}/tgi/caht{path}")
        assert answer.status_code in (401, 404)
        assert not re.search("chat|embed", answer.text), answer.text
    answer = httpx.get(f"{rig.url}/endpoints/caht/info?api-version=2024-05-01-preview")
    assert answer.status_code in (401, 404)
    assert not re.search("chat|embed", answer.text), answer.text


def shown(*credentials: tuple[bytes, bytes]) -> Callable[[Keys], list[tuple[bytes, bytes]]]:
    """Headers with the keys' names replaced by the keys."""
    return lambda keys: [
        (name, value.replace(b"ALL", keys.all.encode()).replace(b"WRONG", keys.wrong.encode()))
        for name, value in credentials
    ]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (shown((b"authorization", b"Bearer ALL"), (b"api-key", b"ALL"), (b"x-api-key", b"ALL")), 200),
        (shown((b"authorization", b"Bearer"), (b"api-key", b"ALL")), 200),
        (shown((b"authorization", b"Bearer ALL"), (b"api-key", b"WRONG")), 401),
        (shown((b"authorization", b"Bearer WRONG"), (b"api-key", b"ALL")), 401),
        (shown((b"authorization", b"Bearer WRONG"), (b"authorization", b"Bearer ALL")), 401),
        (shown((b"authorization", b"Bearer ALL"), (b"authorization", b"Bearer WRONG")), 401),
        (shown((b"api-key", b"WRONG"), (b"api-key", b"ALL")), 401),
        (
            shown(
                (b"authorization", b"Bearer \xfc\xff"),
            ),
            401,
        ),
        (
            shown(
                (b"authorization", b"Bearer eyJ\xfc.e30.e30"),
            ),
            401,
        ),
        (
            shown(
                (b"authorization", b"Bearer"),
            ),
            401,
        ),
        (
            shown(
                (b"authorization", b"Basic ALL"),
            ),
            401,
        ),
        (
            shown(
                (b"authorization", b"ALL"),
            ),
            401,
        ),
    ],
)
def test_one_credential_is_accepted_and_two_different_ones_are_not(
    rig: Rig, keys: Keys, headers: Callable[[Keys], list[tuple[bytes, bytes]]], status: int
) -> None:
    rig.change(access={"metrics": "restricted"})
    given = headers(keys)
    for path in ("/v1/models", "/metrics", "/api/2.0/serving-endpoints"):
        answer = httpx.get(rig.url + path, headers=given)
        assert answer.status_code == status, path
        assert all(key not in answer.text for key in (keys.all, keys.wrong))


def test_the_sdks_raise_their_own_errors(rig: Rig, keys: Keys) -> None:
    with openai.OpenAI(base_url=f"{rig.url}/v1", api_key=keys.wrong) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        with pytest.raises(openai.PermissionDeniedError):
            client.with_options(api_key=keys.embed).chat.completions.create(**CHAT)  # type: ignore[call-overload]
    claude = anthropic.Anthropic(base_url=rig.url, api_key=keys.wrong)
    with claude, pytest.raises(anthropic.AuthenticationError):
        claude.messages.create(**CHAT)  # type: ignore[call-overload]
    azure = ChatCompletionsClient(f"{rig.url}/endpoints/chat", AzureKeyCredential(keys.wrong))
    with azure, pytest.raises(ClientAuthenticationError):
        azure.complete(messages=MESSAGES)
    azure = ChatCompletionsClient(f"{rig.url}/endpoints/chat", AzureKeyCredential(keys.embed))
    with azure, pytest.raises(HttpResponseError) as raised:
        azure.complete(messages=MESSAGES)
    assert raised.value.status_code == 403


def models(rig: Rig, key: str) -> set[str]:
    listed = httpx.get(f"{rig.url}/v1/models", headers=bearer(key)).raise_for_status().json()["data"]
    return {model["id"] for model in listed}


def test_a_caller_sees_the_models_that_it_may_use(rig: Rig, keys: Keys) -> None:
    assert models(rig, keys.all) == {"chat", "embed", "blue", "green", "mini"}
    assert models(rig, keys.chat) == {"chat", "blue", "green"}
    assert models(rig, keys.embed) == {"embed", "mini"}
    assert httpx.get(f"{rig.url}/v1/models/chat", headers=bearer(keys.embed)).status_code == 404
    tgis = httpx.get(f"{rig.url}/tgi/v1/models", headers=bearer(keys.embed)).json()["data"]
    assert [model["id"] for model in tgis] == ["embed"]
    assert httpx.get(f"{rig.url}/tgi/chat/v1/models", headers=bearer(keys.embed)).status_code == 404
    gone = httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, "model": "gone"}, headers=bearer(keys.embed))
    assert gone.status_code == 404
    assert "available endpoints: embed" in gone.text


def test_no_other_way_leads_to_what_a_caller_may_not_use(rig: Rig, keys: Keys) -> None:
    rig.change(defaults={"chat": "chat", "embeddings": "embed"})
    for body, headers in (
        ({**CHAT, "model": "blue"}, {}),
        ({"messages": MESSAGES}, {}),
        (CHAT, {"azureml-model-deployment": "blue"}),
    ):
        answer = httpx.post(f"{rig.url}/v1/chat/completions", json=body, headers={**bearer(keys.embed), **headers})
        assert answer.status_code == 403, answer.text
    info = f"{rig.url}/endpoints/chat/info?api-version=2024-05-01-preview"
    assert httpx.get(info, headers=bearer(keys.embed)).status_code == 404
    assert httpx.get(info, headers=bearer(keys.chat)).status_code == 200
    assert httpx.post(
        f"{rig.url}/v1/chat/completions", json={**CHAT, "model": "blue"}, headers=bearer(keys.chat)
    ).is_success


def test_an_unauthenticated_body_is_not_read(rig: Rig, keys: Keys) -> None:
    """The answer arrives while most of the body is still to be sent."""
    host, port = rig.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: 30000000\r\n\r\n"
        connection.sendall(head.encode() + b'{"model":')
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")


OPEN = ["/health", "/ready", "/metrics", "/.well-known/databricks-config", "/", "/ping", "/info", "/tgi", "/tgi/info"]
OPEN += ["/tgi/health", "/tgi/chat", "/tgi/chat/ping", "/endpoints/chat/info", "/openapi.json"]
OPEN += ["/docs", "/docs/start.js"]


def test_operational_paths_need_no_key(rig: Rig, keys: Keys) -> None:
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    rig.change(access={"limits": {"default": {"requests_per_minute": 1}}})
    for path in OPEN * 2:
        answer = httpx.get(rig.url + path)
        assert answer.status_code == 200, path
        assert "x-ratelimit-limit-requests" not in answer.headers
    info = "/info?api-version=2024-05-01-preview"  # Azure's, on TGI's path
    for path in ("/v1/models", "/tgi/v1/models", "/tgi/chat/v1/models", info, "/api/2.0/serving-endpoints"):
        assert httpx.get(rig.url + path).status_code == 401
    for path in ("/generate", "/tokenize", "/chat_tokenize", "/tgi/generate"):
        assert httpx.post(rig.url + path, json={}).status_code == 401


METRICS = ["/metrics", "/tgi/metrics", "/tgi/chat/metrics"]


@pytest.mark.parametrize("path", METRICS)
def test_metrics_ask_for_credentials_where_they_are_restricted(rig: Rig, keys: Keys, path: str) -> None:
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    assert httpx.get(rig.url + path).status_code == 200
    rig.change(access={"metrics": "restricted", "allow_anonymous": True})
    assert httpx.get(f"{rig.url}/health").status_code == 200
    for headers in ({}, bearer(keys.wrong), bearer(keys.expired)):
        answer = httpx.get(rig.url + path, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "invalid_api_key"
    for key in (keys.all, keys.chat):
        assert httpx.get(rig.url + path, headers=bearer(key)).status_code == 200


def test_restricted_metrics_are_those_of_the_readers_endpoints(rig: Rig, keys: Keys) -> None:
    rig.change(access={"metrics": "restricted"})
    ask(rig, DIALECTS["openai"], keys.chat)
    httpx.post(f"{rig.url}/v1/embeddings", json={"model": "embed", "input": "hi"}, headers=bearer(keys.embed))
    everything, chats, embeds = (
        httpx.get(f"{rig.url}/metrics", headers=bearer(key)).text for key in (keys.all, keys.chat, keys.embed)
    )
    for name, visible in (("chat", (everything, chats)), ("embed", (everything, embeds))):
        for text in (everything, chats, embeds):
            assert (f'endpoint="{name}"' in text) == (text in visible)
    assert "switchyard_config_reloads_total" in everything
    answer = httpx.get(f"{rig.url}/tgi/chat/metrics", headers=bearer(keys.embed))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
    assert httpx.get(f"{rig.url}/tgi/gone/metrics", headers=bearer(keys.embed)).status_code == 404


def status(rig: Rig, key: str) -> int:
    return ask(rig, DIALECTS["openai"], key).status_code


def replace(path: Path, text: str) -> None:
    """Replaces the file at once.

    On a busy machine a file that is written in place can be empty for longer than the interval between two reads.
    """
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def test_keys_are_added_and_removed_without_a_restart(rig: Rig, keys: Keys) -> None:
    fresh = keys.new("fresh team")
    wait_until(lambda: status(rig, fresh) == 200)
    lines = keys.path.read_text().splitlines(keepends=True)
    replace(keys.path, "".join(line for line in lines if "fresh" not in line))
    wait_until(lambda: status(rig, fresh) == 401)
    assert status(rig, keys.all) == 200
    replace(keys.path, "- {broken")
    wait_until(lambda: 'switchyard_key_reloads_total{outcome="refused"} 1.0' in metrics(rig))
    assert status(rig, keys.all) == 200


def metrics(rig: Rig) -> str:
    return httpx.get(f"{rig.url}/metrics").text


def test_a_mounted_secret_is_followed_through_its_links(rig: Rig, tmp_path: Path) -> None:
    """Kubernetes swaps a link to a directory; the file itself is never written to."""
    old, new = Keys(_made(tmp_path / "..1") / "keys.yaml"), Keys(_made(tmp_path / "..2") / "keys.yaml")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    assert (status(rig, old.all), status(rig, new.all)) == (200, 401)
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    wait_until(lambda: (status(rig, old.all), status(rig, new.all)) == (401, 200))


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_anonymous_callers_may_be_let_in_and_a_wrong_key_is_still_wrong(rig: Rig, keys: Keys) -> None:
    rig.change(access={"allow_anonymous": True})
    assert ask(rig, DIALECTS["openai"], None).status_code == 200
    assert status(rig, keys.wrong) == 401
    assert status(rig, keys.embed) == 403


def test_without_keys_any_credential_will_do(rig: Rig) -> None:
    for spoken in DIALECTS.values():
        assert ask(rig, spoken, "unused").status_code == 200


def test_a_missing_keys_file_rejects_the_configuration(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access.keys_file: .*gone.yaml: No such file"):
        rig.change(access={"keys_file": str(tmp_path / "gone.yaml")})
    assert ask(rig, DIALECTS["openai"], None).status_code == 200


def test_a_router_on_the_network_needs_access_settings(rig: Rig) -> None:
    exposed = Router(RuntimeEnvironment(loopback=False))
    with pytest.raises(ConfigError, match="access: the server would be reachable from other machines"):
        exposed.reconfigure(rig.config)
    exposed.reconfigure({**rig.config, "access": {"allow_anonymous": True}})


# --- the management API ----------------------------------------------------------------------------

ENDPOINTS = "/api/2.0/serving-endpoints"
TRAFFIC = {"traffic_config": {"routes": [{"served_entity_name": "green", "traffic_percentage": 100}]}}


class Managed:
    """A router with a control plane, which requires keys."""

    def __init__(self, rig: Rig, keys: Keys) -> None:
        self.config = {**rig.config, "access": {"keys_file": str(keys.path), "managers": ["boss"]}}
        self.control = MemoryControl(self.config, self.reconfigure)
        self.control.delivers_at_once = True
        self.router = Router(RuntimeEnvironment(), control=self.control, access_timing=PROMPT)
        self.router.reconfigure(self.config)
        self.url = ""

    def reconfigure(self, config: Any) -> None:
        self.router.reconfigure(config)

    def get(self, path: str, key: str | None) -> httpx.Response:
        return httpx.get(self.url + ENDPOINTS + path, headers=bearer(key) if key else {})

    def move(self, key: str | None) -> httpx.Response:
        return httpx.put(f"{self.url}{ENDPOINTS}/chat/config", json=TRAFFIC, headers=bearer(key) if key else {})


@pytest.fixture
def managed(rig: Rig, keys: Keys, servers: ServerPool) -> Iterator[Managed]:
    managed = Managed(rig, keys)
    with servers.host(managed.router.app) as managed.url:
        yield managed


def test_management_shows_a_caller_only_its_endpoints(managed: Managed, keys: Keys) -> None:
    for path in ("", "/chat", "/chat/openapi", "/chat/metrics", "/gone"):
        answer = managed.get(path, None)
        assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED")
    assert [endpoint["name"] for endpoint in managed.get("", keys.embed).json()["endpoints"]] == ["embed"]
    for path in ("/chat", "/chat/openapi", "/chat/metrics"):
        assert managed.get(path, keys.chat).status_code == 200
        answer = managed.get(path, keys.embed)
        assert (answer.status_code, answer.json()["error_code"]) == (403, "PERMISSION_DENIED")


def test_only_managers_move_traffic(managed: Managed, keys: Keys) -> None:
    boss = keys.new("boss", endpoints=["chat"])
    wait_until(lambda: managed.get("", boss).status_code == 200)
    for key, status in ((None, 401), (keys.wrong, 401), (keys.all, 403), (keys.chat, 403)):
        assert managed.move(key).status_code == status
    assert managed.control.replaced == 0
    assert managed.get("/chat", keys.chat).json()["permission_level"] == "CAN_QUERY"
    assert managed.get("/chat", boss).json()["permission_level"] == "CAN_MANAGE"
    assert managed.move(boss).status_code == 200
    assert managed.control.replaced == 1


def test_a_manager_moves_what_it_may_use_alone(managed: Managed, keys: Keys) -> None:
    boss = keys.new("boss", endpoints=["embed"])
    wait_until(lambda: managed.get("", boss).status_code == 200)
    assert managed.move(boss).status_code == 403
    assert managed.control.replaced == 0


def test_anonymous_callers_from_elsewhere_move_nothing(managed: Managed) -> None:
    managed.reconfigure({**managed.config, "access": {"allow_anonymous": True}})
    assert managed.move(None).status_code == 403
    managed.reconfigure({**managed.config, "access": {}})
    assert managed.get("/chat", None).json()["permission_level"] == "CAN_MANAGE"


# --- keys in logs and answers --------------------------------------------------------------------------


@pytest.fixture
def every_log() -> Iterator[list[str]]:
    """Everything that any logger writes at any level, with tracebacks."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend((self.format(record), JsonFormatter().format(record)))

    handler, root, ours = Keep(), logging.getLogger(), logging.getLogger("switchyard")
    before = root.level, ours.level, ours.propagate
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    ours.setLevel(logging.DEBUG)
    ours.propagate = True
    yield lines
    root.removeHandler(handler)
    root.setLevel(before[0])
    ours.setLevel(before[1])
    ours.propagate = before[2]


def test_no_key_is_in_any_log_line_metric_error_or_call_to_a_deployment(
    rig: Rig, keys: Keys, every_log: list[str]
) -> None:
    def broken(body: dict[str, Any]) -> Any:
        raise RuntimeError("the deployment's own defect")

    output = ""
    for key in (keys.all, keys.chat, keys.embed, keys.expired, keys.wrong):
        for spoken in DIALECTS.values():
            output += ask(rig, spoken, key).text
            output += httpx.post(rig.url + spoken.path, content=b"{", headers=spoken.headers(key)).text
    rig.blue.answer = broken
    output += ask(rig, DIALECTS["openai"], keys.all).text
    keys.path.write_text(f"- {keys.all}\n")
    wait_until(lambda: 'outcome="refused"} 1.0' in metrics(rig))
    output += metrics(rig) + "\n".join(every_log) + str(rig.blue.headers)
    assert '"caller":"chat team"' in output
    for key in (keys.all, keys.chat, keys.embed, keys.expired, keys.wrong):
        assert key not in output
        assert key.rpartition("-")[2] not in output


def test_the_access_log_names_the_caller(rig: Rig, keys: Keys, every_log: list[str]) -> None:
    ask(rig, DIALECTS["openai"], keys.chat)
    ask(rig, DIALECTS["openai"], keys.wrong)
    lines = [json.loads(line) for line in every_log if '"event":"request"' in line]
    assert [(line["caller"], line["status"]) for line in lines] == [("chat team", 200)], "a wrong key has no line"


def test_an_engines_model_name_gives_no_access_beyond_the_callers(rig: Rig, keys: Keys) -> None:
    for key, expected in ((keys.embed, 404), (keys.all, 200)):
        answer = httpx.post(
            f"{rig.url}/v1/chat/completions",
            json={**CHAT, "model": "blue-model"},
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == expected


AZURE_ML = "azureml-model-deployment"


@pytest.mark.parametrize(
    ("path", "named", "status"),
    [
        ("/openai/deployments/embed/embeddings", "", 403),
        ("/openai/deployments/mini/embeddings", "", 403),
        ("/openai/deployments/gone/embeddings", "", 404),
        ("/serving-endpoints/embed/invocations", "", 403),
        ("/serving-endpoints/gone/invocations", "", 404),
        ("/serving-endpoints/chat/served-models/mini/invocations", "", 403),
        ("/serving-endpoints/chat/served-models/gone/invocations", "", 404),
        ("/tgi/embed/generate", "", 403),
        ("/tgi/gone/generate", "", 404),
        ("/endpoints/gone/chat/completions", "", 404),
        ("/v1/chat/completions", "mini", 403),
        ("/v1/chat/completions", "gone", 404),
        ("/openai/deployments/chat/chat/completions", "mini", 403),
        ("/v1/messages", "gone", 404),
    ],
)
async def test_without_a_right_no_body_is_read(rig: Rig, keys: Keys, path: str, named: str, status: int) -> None:
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    header = f"{AZURE_ML}: {named}\r\n" if named else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {keys.chat}\r\n{header}content-length: 900\r\n\r\n"
    )
    writer.write(head.encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 %d" % status)
    writer.close()
    await writer.wait_closed()


async def test_without_a_right_no_body_is_checked(rig: Rig, keys: Keys) -> None:
    headers = {"authorization": f"Bearer {keys.chat}"}
    async with httpx.AsyncClient() as client:
        refused = await client.post(
            f"{rig.url}/v1/embeddings", content=b'{"input":{},"model":"embed"}', headers=headers
        )
    assert refused.status_code == 403
