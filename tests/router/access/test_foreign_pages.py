"""What a browser sends for a page of someone else is refused, on every route, in the dialect's form, and does nothing;
what this server's own pages and programs send is served."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.keys import append, create
from app.config.base import ConfigError
from app.config.schema import Config, parse
from app.dialects.base import Request
from app.dialects.databricks.errors import error_reply
from app.dialects.openai.dialect import OpenAI
from app.dialects.registry import DIALECTS
from app.errors import Forbidden
from app.server.asgi import BrowserPolicy
from tests.router.conftest import Rig
from tests.router.experiments.ramp_rig import RampRig, ramp_rig
from tests.support.processes.servers import ServerPool

EVIL = "https://evil.example"
KINDS: list[dict[str, str]] = [{"origin": EVIL}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}]
FOREIGN: list[dict[str, str]] = [
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://[", "sec-fetch-site": "cross-site"},
    {"origin": EVIL, "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    {"host": "EVIL.example:8000"},
    {"host": "127.0.0.1.evil.example", "origin": "http://127.0.0.1.evil.example"},
    {"host": "0.0.0.0:8000"},
    {"host": "[::ffff:127.0.0.1]:8000"},
    {"host": "localhost.evil.example", "sec-fetch-site": "same-origin"},
]
ID = "a-request-of-this-test"
TRAFFIC = "/api/endpoints/chat/traffic"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
MUTATIONS: list[tuple[str, str, Any]] = [
    ("PUT", TRAFFIC, {"weights": {"blue": 1, "green": 99}}),
    ("POST", f"{TRAFFIC}/rollback", {"generation": 0}),
    ("POST", "/api/experiments/first/decision", {"action": "advance", "reason": "why not"}),
    ("POST", "/api/experiments/first/aa", {"runs": 1}),
    ("POST", "/api/experiments/check", {"name": "x", "experiment": {}}),
    ("POST", "/api/keys", {"name": "foreign"}),
    ("PATCH", "/api/keys/chat", {"endpoints": None}),
    ("POST", "/api/keys/chat/rotate", {"previous_expires": None}),
    ("POST", "/api/keys/chat/revoke", {}),
    ("POST", "/api/feedback", {"request_id": "r", "metric": "liked", "value": True}),
    (
        "PUT",
        "/api/2.0/serving-endpoints/chat/config",
        {"traffic_config": {"routes": [{"served_entity_name": "green", "traffic_percentage": 100}]}},
    ),
]


@pytest.fixture
def ramped(rig: Rig, servers: ServerPool, tmp_path: Path) -> Iterator[RampRig]:
    with ramp_rig(rig, servers, tmp_path) as ramped:
        yield ramped


@pytest.fixture
def client(ramped: RampRig) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=ramped.url, timeout=30) as client:
        yield client


def documented(client: httpx.Client) -> list[tuple[str, str]]:
    """Every method and path of the OpenAPI document, with names that exist."""
    paths = client.get("/openapi.json").json()["paths"]
    return [
        (method.upper(), re.sub(r"{\w+}", "first" if path.startswith("/api/experiments") else "chat", path))
        for path, operations in paths.items()
        for method in operations
        if method in ("get", "post", "put", "patch", "delete")
    ]


def worded(config: Config, method: str, path: str, sent: Mapping[str, str]) -> list[bytes]:
    """The refusal, as each dialect that has the route words it."""
    headers = [(name.encode(), value.encode()) for name, value in {"host": "127.0.0.1:1", **sent}.items()]
    with pytest.raises(Forbidden) as refused:
        BrowserPolicy.from_config(config).check(method, headers, dict(headers))
    request = Request(method, path, id=ID)
    replies = [
        dialect.render_error(refused.value, route.operation, request)
        for dialect in DIALECTS
        for route in dialect.routes
        if route.method == method and re.fullmatch(re.sub(r"{\w+(:path)?}", "[^/]+", route.path), path)
    ]
    other = OpenAI().render_error(refused.value, "none", request)
    databricks = error_reply(refused.value, request_id=ID)
    if path.endswith("/metrics"):  # TGI's are the router's, in TGI's names
        return [other.body, databricks.body]
    return [reply.body for reply in replies] or [
        databricks.body if path.startswith(("/api/2.0", "/.well")) else other.body
    ]


@pytest.mark.parametrize("sent", KINDS, ids=str)
def test_a_foreign_page_is_refused_on_every_route_and_nothing_happens(
    rig: Rig, ramped: RampRig, client: httpx.Client, sent: dict[str, str]
) -> None:
    config = parse(ramped.config)
    routes = documented(client)
    assert len(routes) > 80
    assert {(method, path) for method, path, _ in MUTATIONS} <= set(routes)
    bodies = {(method, path): body for method, path, body in MUTATIONS}
    for method, path in [*routes, ("GET", "/nothing"), ("POST", "/api/2.0/serving-endpoints"), ("OPTIONS", TRAFFIC)]:
        body = json.dumps(bodies.get((method, path), {**CHAT, "input": "hi", "inputs": "hi", "prompt": "hi"}))
        headers = {"content-type": "application/json", "if-match": "*", "x-request-id": ID, **sent}
        answer = client.request(method, path, content=body, headers=headers)
        assert answer.status_code == 403, (method, path, answer.text)
        assert answer.content in worded(config, method, path, sent), (method, path)
    assert rig.blue.requests == rig.green.requests == rig.mini.requests == []
    assert ramped.control.replaced == 0
    assert "why not" not in str(ramped.controller.journal)


@pytest.mark.parametrize("sent", FOREIGN, ids=str)
def test_every_form_of_a_foreign_page_is_refused(rig: Rig, sent: dict[str, str]) -> None:
    with httpx.Client(base_url=rig.url) as client:
        assert client.post("/v1/chat/completions", json=CHAT, headers=sent).status_code == 403
        assert client.post(f"{TRAFFIC}/rollback", json={"generation": 0}, headers=sent).status_code == 403
        assert client.get(TRAFFIC, headers=sent).status_code == 403
    assert rig.blue.requests == []


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_changes_something_must_be_json(ramped: RampRig, client: httpx.Client, media_type: str | None) -> None:
    own = {(method, path) for method, path in documented(client) if method != "GET" and path.startswith("/api/")}
    assert own == {(method, path) for method, path, _ in MUTATIONS}
    for method, path, body in MUTATIONS:
        headers = {"if-match": "*", **({"content-type": media_type} if media_type is not None else {})}
        answer = client.request(method, path, content=json.dumps(body), headers=headers)
        assert answer.status_code == 415, (path, answer.text)
        assert "application/json" in answer.text
    assert ramped.control.replaced == 0


def test_what_changes_traffic_must_name_what_it_saw(ramped: RampRig, client: httpx.Client) -> None:
    for method, path, body in MUTATIONS[:3]:
        assert client.request(method, path, json=body).status_code == 428, path
        assert client.request(method, path, json=body, headers={"if-match": '"9-00000000"'}).status_code == 412, path
    assert ramped.control.replaced == 0


OWN: list[dict[str, str]] = [
    {},
    {"host": "localhost:8000"},
    {"host": "LOCALHOST."},
    {"host": "switchyard.localhost:8000"},
    {"host": "127.0.0.1"},
    {"host": "127.9.9.9:8000"},
    {"host": "[::1]:8000"},
    {"host": "10.1.2.3:8000"},  # a probe's, or a scraper's: nobody can let an address lead elsewhere
    {"host": "[fd00::1]"},
    {"host": "localhost:9000", "origin": "http://localhost:9000"},
    {"host": "localhost:9000", "origin": "http://localhost:9000", "sec-fetch-site": "same-origin"},
    {"host": "127.0.0.1:8000", "origin": "https://proxy.example", "sec-fetch-site": "same-origin"},
    {"sec-fetch-site": "none"},
    {"sec-fetch-mode": "cors"},  # Node's fetch
]


@pytest.mark.parametrize("sent", OWN, ids=str)
def test_programs_and_the_servers_own_pages_are_served(rig: Rig, sent: dict[str, str]) -> None:
    with httpx.Client(base_url=rig.url) as client:
        assert client.post("/v1/chat/completions", json=CHAT, headers=sent).status_code == 200
        assert client.get("/health", headers=sent).status_code == 200
        assert client.get("/ui", headers=sent).status_code == 200


def test_a_link_of_another_site_opens_a_page(rig: Rig) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert httpx.get(f"{rig.url}/ui", headers=link).status_code == 200
    assert httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers=link).status_code == 403


def chat(rig: Rig, **sent: str) -> int:
    headers = {name.replace("_", "-"): value for name, value in sent.items()}
    return httpx.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers=headers).status_code


def test_configured_names_and_origins_are_served(rig: Rig) -> None:
    rig.change(hosts=["Models.example.com"], cors={"origins": ["https://app.example.com"]})
    assert chat(rig, host="models.example.com:8443") == 200
    assert chat(rig, host="models.example.com", origin="https://models.example.com") == 200
    assert chat(rig, origin="https://app.example.com", sec_fetch_site="cross-site") == 200
    assert chat(rig, origin=EVIL) == 403
    assert chat(rig, host="other.example.com") == 403
    rig.change(cors={"origins": ["*"]})
    assert chat(rig, origin=EVIL) == 200
    assert chat(rig, host="evil.example", origin="http://evil.example") == 403


def test_where_keys_are_required_a_page_has_none_and_nothing_else_is_asked(rig: Rig, tmp_path: Path) -> None:
    key, record = create("ann")
    append(tmp_path / "keys.yaml", record.line)
    access = {"keys_file": str(tmp_path / "keys.yaml")}
    rig.change(access=access)
    foreign = {"host": "models.example.com", "origin": EVIL, "sec_fetch_site": "cross-site"}
    assert chat(rig, authorization=f"Bearer {key}", **foreign) == 200
    assert chat(rig, **foreign) == 401
    rig.change(hosts=["switchyard.default.svc"])
    assert chat(rig, authorization=f"Bearer {key}", **foreign) == 403
    assert chat(rig, authorization=f"Bearer {key}", host="switchyard.default.svc:8000") == 200
    rig.change(hosts=[], access={**access, "allow_anonymous": True})
    assert chat(rig, authorization=f"Bearer {key}", **foreign) == 200
    assert chat(rig, **foreign) == 403
    for nobody in ({"authorization": "Basic YTpi"}, {"api_key": ""}, {"authorization": "Bearer"}):
        assert chat(rig, **nobody, **foreign) == 403
    assert chat(rig, authorization=f"Bearer {key}", host="models.example.com") == 200
    assert chat(rig, host="models.example.com") == 403


ANYONES = ("models.example.com", "switchyard.dev", "a.svc.evil.example", "0.0.0.0", "[::ffff:127.0.0.1]")
"""Names that a page may have. `switchyard.dev` is that of a service in a namespace, too."""


def test_a_server_that_admits_everyone_admits_no_pages(rig: Rig) -> None:
    rig.change(access={"allow_anonymous": True})
    for name in ANYONES:
        assert chat(rig, host=name) == 403, name
        assert chat(rig, host=name, authorization="Bearer none") == 403, name
        assert httpx.get(f"{rig.url}{TRAFFIC}", headers={"host": f"{name}:8000"}).status_code == 403, name
    rig.change(hosts=["models.example.com"], access={"allow_anonymous": True})
    assert chat(rig, host="models.example.com") == 200
    assert chat(rig, host="models.example.com", origin="https://models.example.com") == 200
    assert chat(rig, host="models.example.com", origin=EVIL, authorization="Bearer none") == 403


PRIVATE = ("switchyard", "switchyard-serve-svc:8000", "switchyard.team.svc", "switchyard.team.svc.cluster.local.:8000")


@pytest.mark.parametrize("hosts", [[], ["models.example.com"]])
def test_programs_of_the_same_network_reach_a_server_by_the_names_that_no_page_has(rig: Rig, hosts: list[str]) -> None:
    rig.change(hosts=hosts, access={"allow_anonymous": True})
    for name in ("10.1.2.3:8000", "localhost", *PRIVATE):
        assert chat(rig, host=name) == 200, name
    rig.change(hosts=hosts, access={"allow_anonymous": False})
    for name in PRIVATE:
        assert chat(rig, host=name) == 403, name


@pytest.mark.parametrize("name", ["http://models.example.com", "models.example.com:8000", "a b", "*", ""])
def test_a_host_that_is_no_name_is_refused(rig: Rig, name: str) -> None:
    with pytest.raises(ConfigError, match="hosts"):
        parse({**rig.config, "hosts": [name]})
