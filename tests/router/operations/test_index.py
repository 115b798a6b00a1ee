"""`/`: the console for a browser; the routes, with status 200, for everyone else."""

import re
from random import Random

import httpx
import pytest

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.processes.project import ROOT
from tests.support.processes.servers import ServerPool

BROWSERS = {
    "chromium": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
    "firefox": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "lynx": "text/html, text/plain, text/sgml, */*;q=0.01",
    "prefers HTML": "application/json;q=0.4, TEXT/HTML; Q=0.5",
}
OTHERS = {
    "curl, kube-probe, Anthropic's command line": "*/*",
    "axios": "application/json, text/plain, */*",
    "prefers JSON": "text/html;q=0.5, application/json",
    "no preference": "text/html, application/json",
    "refuses HTML": "text/html;q=0, */*",
    "malformed": "text/html;q=x, ;;=,",
    "empty": "",
}
METHODS = ("GET", "HEAD")


def ask(url: str, method: str, accept: str | None) -> httpx.Response:
    """`/` as a client with this Accept header asks for it; None sends no such header."""
    with httpx.Client() as client:
        del client.headers["accept"]
        return client.request(method, f"{url}/", headers={} if accept is None else {"accept": accept})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("accept", BROWSERS.values(), ids=BROWSERS)
def test_a_browser_is_led_to_the_console(rig: Rig, method: str, accept: str) -> None:
    answer = ask(rig.url, method, accept)
    assert (answer.status_code, answer.headers["location"], answer.headers["vary"]) == (307, "/ui", "accept")
    assert httpx.get(f"{rig.url}{answer.headers['location']}").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("accept", [*OTHERS.values(), None], ids=[*OTHERS, "no header"])
def test_every_other_client_gets_the_routes_with_status_200(rig: Rig, method: str, accept: str | None) -> None:
    answer = ask(rig.url, method, accept)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["vary"] == "accept"
    assert (answer.content == b"") == (method == "HEAD")
    assert int(answer.headers["content-length"]) > 0


def test_every_named_route_answers(rig: Rig) -> None:
    routes = ask(rig.url, "GET", "*/*").json()["routes"]
    assert {name: httpx.get(rig.url + path).status_code for name, path in routes.items()} == dict.fromkeys(routes, 200)


def test_the_base_urls_are_those_of_the_readme(rig: Rig) -> None:
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| `http://127\.0\.0\.1:8000(\S*)` \|", readme, re.MULTILINE)
    assert ask(rig.url, "GET", "*/*").json()["base_urls"] == {clients: path or "/" for clients, path in rows}


def test_a_probe_of_a_router_without_a_configuration_gets_503(servers: ServerPool) -> None:
    with servers.host(Router(RuntimeEnvironment(), random=Random(1)).app) as url:
        answer = ask(url, "GET", "*/*")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert ask(url, "GET", BROWSERS["firefox"]).status_code == 307
