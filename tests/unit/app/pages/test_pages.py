"""`/docs`: the page comes from this server alone.

`/ui`: the console's files come from this server only, and hold no data.
"""

import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.pages import pages
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.clients.node import SCRIPTS


@pytest.fixture
def client() -> TestClient:
    return TestClient(Router(RuntimeEnvironment()).app)


def test_the_page_loads_only_files_of_this_server(client: TestClient) -> None:
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    addresses = re.findall(r'(?:href|src)="([^"]*)"', page.text)
    files = [address for address in addresses if "#" not in address and address != "/docs"]
    assert files == [
        "/ui/static/icon.svg",
        "/ui/static/css/frame.css",
        "/docs/swagger-ui.css",
        "/docs/readable.css",
        "/ui/static/icon.svg",
        "/docs/swagger-ui-bundle.js",
        "/docs/start.js",
    ]
    for address in files:
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.content


def test_the_pages_policy_allows_no_other_host_and_no_inline_script(client: TestClient) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "<script>" not in client.get("/docs").text


@pytest.mark.parametrize(
    ("name", "media_type"),
    [("start.js", "text/javascript"), ("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css")],
)
def test_files_have_the_right_media_types(client: TestClient, name: str, media_type: str) -> None:
    answer = client.get(f"/docs/{name}")
    assert answer.headers["content-type"].partition(";")[0] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["redoc.standalone.js", "core.py", "..%2f__init__.py", "nothing"])
def test_no_other_file_of_the_package_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/docs/{name}").status_code == 404


def test_the_page_loads_only_files_of_this_server_console(client: TestClient) -> None:
    page = client.get("/ui")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    files = [link for link in re.findall(r'(?:href|src)="([^"]*)"', page.text) if not link.startswith("#")]
    assert len(files) > 5
    for address in files:
        assert address.startswith("/")
        answer = client.get(address)
        assert answer.status_code == 200
        assert answer.content


def test_the_policy_allows_no_other_host_and_nothing_inline(client: TestClient) -> None:
    for path in ("/ui", "/ui/static/js/main.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    page = client.get("/ui").text
    assert "<style" not in page
    assert re.search(r"<script(?![^>]*\bsrc=)", page) is None
    assert re.search(r"\son\w+=", page) is None


def test_no_script_turns_text_into_markup(client: TestClient) -> None:
    page = client.get("/ui").text
    todo, seen = re.findall(r'src="(/ui/static/js/[^"]*)"', page), set()
    own = Path(pages.__file__).parent / "static" / "js"
    todo += [f"/ui/static/js/pages/{file.name}" for file in (own / "pages").iterdir()]
    while todo:
        if (path := todo.pop()) in seen:
            continue
        seen.add(path)
        script = client.get(path)
        assert script.status_code == 200, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|Function\(", script.text)
        for name in re.findall(r'(?:from |import\()"(\.[^"]+)"', script.text):
            todo.append(str(script.url.join(name).path))
        todo += [f"/ui/static/js/{name}" for name in re.findall(r'\bload\("([^"]+)"\)', script.text)]
    others = {f"/ui/static/js/{file.relative_to(own).as_posix()}" for file in own.rglob("*.js")}
    assert seen == {*others, "/ui/static/vendor/markdown-it.js"}


def test_the_parser_of_markdown_is_the_published_one_of_the_lock() -> None:
    vendor = Path(pages.__file__).parent / "static" / "vendor"
    package = SCRIPTS / "node_modules" / "markdown-it"
    published = (package / "dist" / "browser" / "markdown-it.esm.min.mjs").read_text().splitlines()
    assert (vendor / "markdown-it.js").read_text().splitlines() == [
        line for line in published if not line.startswith("//# sourceMappingURL=")
    ]
    licence = (vendor / "markdown-it.LICENSE").read_text()
    assert (package / "LICENSE").read_text() in licence
    locked = json.loads((SCRIPTS / "package-lock.json").read_text())["packages"]
    assert f"markdown-it {locked['node_modules/markdown-it']['version']} " in licence


@pytest.mark.parametrize(
    ("name", "media_type"),
    [
        ("js/main.js", "text/javascript"),
        ("uPlot.iife.js", "text/javascript"),
        ("css/console.css", "text/css"),
        ("icon.svg", "image/svg+xml"),
    ],
)
def test_files_have_the_right_media_types_console(client: TestClient, name: str, media_type: str) -> None:
    answer = client.get(f"/ui/static/{name}")
    assert answer.headers["content-type"].partition(";")[0] == media_type


@pytest.mark.parametrize(
    "name", ["../console.py", "..%2fconsole.py", "js", "", "js/", "uPlot.mousewheel.js", "nothing"]
)
def test_no_other_file_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/ui/static/{name}").status_code == 404


def test_a_cached_file_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/ui/static/js/main.js")
    again = client.get("/ui/static/js/main.js", headers={"if-none-match": f"W/{first.headers['etag']}"})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get("/ui/static/js/dom.js", headers={"if-none-match": first.headers["etag"]})
    assert (other.status_code, len(other.content) > 0) == (200, True)


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [("gzip, deflate, br", "gzip"), ("GZIP;q=0.1", "gzip"), ("gzip;q=0, br", None), ("deflate", None), ("", None)],
)
@pytest.mark.parametrize("path", ["/ui", "/ui/static/js/main.js", "/ui/static/uPlot.iife.js"])
def test_files_are_compressed_for_those_who_accept_it(
    client: TestClient, path: str, accepted: str, coding: str | None
) -> None:
    plain = client.get(path, headers={"accept-encoding": "identity"})
    answer = client.get(path, headers={"accept-encoding": accepted})
    assert answer.headers.get("content-encoding") == coding
    assert answer.headers["vary"] == "accept-encoding"
    assert answer.content == plain.content
    assert (answer.headers["etag"] == plain.headers["etag"]) is (coding is None)
    assert (int(answer.headers["content-length"]) < len(plain.content)) is (coding is not None)
