"""`/docs`: the page comes from this server alone."""

import re

import pytest
from starlette.testclient import TestClient

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment


@pytest.fixture
def client() -> TestClient:
    return TestClient(Router(RuntimeEnvironment()).app)


def test_the_page_loads_only_files_of_this_server(client: TestClient) -> None:
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    addresses = re.findall(r'(?:href|src|data-document)="([^"]*)"', page.text)
    assert addresses == [
        "data:,",
        "/docs/swagger-ui.css",
        "/docs/readable.css",
        "/docs/swagger-ui-bundle.js",
        "/docs/start.js",
        "/openapi.json",
    ]
    for address in addresses[1:]:
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
