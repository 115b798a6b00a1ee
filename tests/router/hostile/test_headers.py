"""Headers that are wrong in every way that reaches the router."""

from typing import Any

import httpx
import pytest
from hypothesis import strategies as st

from tests.router.conftest import Rig
from tests.router.hostile.budget import attempt
from tests.router.hostile.engine import compact
from tests.router.hostile.rig import HostileRig
from tests.router.hostile.strategies import TARGETS, VALID, headers

SHARE = 0.12

EVERYBODY = {"openai", "anthropic", "azure", "databricks", "tgi", "friendli"}

Request = tuple[str, str, bytes]

POSTS: list[Request] = [("POST", path, compact(body)) for path, _, body in VALID]
OTHERS: list[Request] = [(method, target, b"") for method, target in TARGETS]


def test_no_headers_break_the_router(hostile: HostileRig) -> None:
    def check(case: tuple[Request, list[tuple[bytes, bytes]]]) -> None:
        (method, target, body), given = case
        reply = hostile.client.request(method, target, body, given)
        if reply.status == 400 and reply.body == b"Invalid HTTP request received.":
            return  # the server's own answer, before the router sees anything
        names = {name for name, _ in given}
        if method not in ("TRACE", "OPTIONS") or reply.status != 405:
            hostile.check(reply, EVERYBODY, impatient=b"x-request-timeout-s" in names)

    attempt(st.tuples(st.sampled_from(POSTS + OTHERS), headers), SHARE, check)


def test_the_error_for_an_unknown_name_is_small(hostile: HostileRig) -> None:
    """However long the name is: in a body, a path, or a header."""
    long = "x" * 200_000
    for path, dialects, body in VALID:
        named = [{**body, name: long} for name in ("model", "name")] + [{**body, "parameters": {"adapter_id": long}}]
        replies = [hostile.client.request("POST", path, compact(content)) for content in named]
        header = (b"x-switchyard-deployment", long[:20_000].encode())
        replies.append(hostile.client.request("POST", path, compact(body), [header]))
        for reply in replies:
            hostile.check(reply, dialects)
            assert reply.status == 200 or len(reply.body) < 8 * 1024, path
    reply = hostile.client.request("POST", f"/serving-endpoints/{long[:20_000]}/invocations", compact({"prompt": "a"}))
    assert (reply.status, len(reply.body) < 8 * 1024) == (404, True)


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "identity, gzip", "x", "aws-chunked"])
def test_an_unknown_content_coding_is_named(hostile: HostileRig, coding: str) -> None:
    for path, dialects, body in VALID:
        reply = hostile.client.request("POST", path, compact(body), [(b"content-encoding", coding.encode())])
        hostile.check(reply, dialects)
        assert (reply.status, f"'{coding}'".encode() in reply.body) == (415, True), (path, reply)


def test_an_invalid_host_header_is_no_defect(hostile: HostileRig) -> None:
    for host in (b"[", b"[::1", b"a b", b"\xff", b""):
        for target in ("/nowhere", "/api/2.0/serving-endpoints", "/api/2.0/nowhere"):
            reply: Any = hostile.client.send(
                b"GET %b HTTP/1.1\r\nhost: %b\r\n\r\n" % (target.encode(), host), method="GET"
            )
            assert reply is not None
            assert reply.status in (200, 400, 403, 404), (host, target, reply.body)
            assert not hostile.defects.found, hostile.defects.found.pop()


def test_no_header_of_a_client_reaches_a_deployment(hostile: HostileRig) -> None:
    """The internal key least of all: a client that knew it could pose as the router."""
    stolen = [
        (name, b"stolen")
        for name in (
            b"x-switchyard-key",
            b"authorization",
            b"api-key",
            b"cookie",
            b"x-forwarded-for",
            b"x-custom",
            b"accept-encoding",
            b"content-type",
            b"azureml-model-deployment-",
        )
    ]
    for path, _, body in VALID:
        hostile.engine.headers = {}
        hostile.client.request("POST", path, compact(body), stolen)
        assert "stolen" not in str(hostile.engine.headers)
        assert hostile.engine.headers.keys() <= {
            "host",
            "accept",
            "content-type",
            "content-length",
            "x-request-id",
            "x-switchyard-key",
        }


@pytest.mark.parametrize(
    "path", "/v1/chat/completions /v1/models /health /ready /metrics /docs /openapi.json /api/overview / /none".split()
)
def test_headers_that_are_too_large_are_refused_on_every_route(rig: Rig, path: str) -> None:
    method = "POST" if path.endswith("completions") else "GET"
    refused = httpx.request(method, rig.url + path, headers={"x-a": "a" * 40_000})
    assert refused.status_code == 431, refused.text
    assert httpx.request(method, rig.url + path, headers={"x-a": "a" * 10_000}).status_code != 431
