"""Requests that are answered before their bodies have arrived: the router closes their connections."""

import socket
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest

from app.limits.bodies import LINGER_S
from tests.router.conftest import Rig

PREFLIGHT = b"origin: https://a.example\r\naccess-control-request-method: POST\r\n"


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        (b"POST /nope", b"", 404),
        (b"GET /nope", b"", 404),
        (b"DELETE /v1/models", b"", 404),
        (b"OPTIONS /v1/chat/completions", PREFLIGHT, 200),
        (b"POST /v1/chat/completions", b"content-type: application/json\r\n", 408),
    ],
)
def test_a_refused_request_ends_before_its_body(rig: Rig, request_line: bytes, headers: bytes, status: int) -> None:
    rig.change(timeouts={"body_s": 0.2}, cors={"origins": ["https://a.example"]})
    url = urlsplit(rig.url)
    with socket.create_connection((url.hostname, url.port), timeout=LINGER_S + 30) as client:
        client.sendall(
            request_line + b" HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n" + headers + b"\r\n"
        )
        answer = HTTPResponse(client)
        answer.begin()
        assert (answer.status, answer.getheader("connection")) == (status, "close")
        answer.read()
        assert client.recv(1) == b"", "the connection is closed"
