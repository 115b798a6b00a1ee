"""Bytes on the wire that two servers could read differently, as far as this one reads them.

The rule: a request that is smuggled inside another's body is never answered as a separate one, and no header that
a client sends becomes two, or one of the router's own.
"""

import errno
import select
import socket
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import strategies as st

from tests.router.hostile.budget import attempt
from tests.router.hostile.client import HANGS_S
from tests.router.hostile.rig import HostileRig

SHARE = 0.14

SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-request-id: smuggled\r\n\r\n"

LAST = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: last\r\nconnection: close\r\n\r\n"

_POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"

AMBIGUOUS: Sequence[bytes] = [
    # Both lengths: RFC 9112, 6.3 lets a server refuse, or go by the encoding and close.
    _POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    # Two lengths that differ, in two headers and in one.
    _POST + b"content-length: 0\r\ncontent-length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
    _POST + b"content-length: %d\r\ncontent-length: 0\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
    _POST + b"content-length: 0, %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED,
    # Lengths that are numbers for some.
    _POST + b"content-length: +0\r\n\r\n" + SMUGGLED,
    _POST + b"content-length: -1\r\n\r\n" + SMUGGLED,
    _POST + b"content-length: 0x0\r\n\r\n" + SMUGGLED,
    _POST + b"content-length: 99999999999999999999999\r\n\r\n" + SMUGGLED,
    # Encodings that are chunked for some.
    _POST + b"transfer-encoding: xchunked\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked, identity\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    _POST + b"x: y\r\n transfer-encoding: chunked\r\n\r\n" + SMUGGLED,
    # Chunks whose sizes are wrong.
    _POST + b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n" + SMUGGLED,
    _POST + b"transfer-encoding: chunked\r\n\r\n5\r\nab\r\n0\r\n\r\n" + SMUGGLED,
    # Line ends inside of headers.
    _POST + b"x-request-id: a\rb\r\ncontent-length: 0\r\n\r\n",
    _POST + b"x-request-id: a\0b\r\ncontent-length: 0\r\n\r\n",
    _POST + b"x-request-id: a\r\n set-cookie: b\r\ncontent-length: 0\r\n\r\n",
    _POST + b"bad name: a\r\ncontent-length: 0\r\n\r\n",
    b"POST /v1/chat/completions\r\n\r\n" + SMUGGLED,
    b"\0" * 100,
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


def answers(hostile: HostileRig, raw: bytes, *, waits_s: float) -> bytes:
    """All that comes back until the server closes.

    The client ends its input only after `waits_s` of silence: a server may then drop what is pipelined.
    """
    host, _, port = hostile.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=HANGS_S) as connection:
        received = b""
        with suppress(ConnectionError):  # a server may close on bytes that it rejects, without waiting for the rest
            connection.sendall(raw)
            _end_after(connection, waits_s)
            while data := connection.recv(65536):
                received += data
                _end_after(connection, waits_s)
        return received


def _end_after(connection: socket.socket, silence_s: float) -> None:
    """Ends the input if nothing arrives for that long."""
    if select.select([connection], [], [], silence_s)[0]:
        return
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:  # it reset the connection: what it sent before can still be read
            raise


@pytest.mark.parametrize("raw", AMBIGUOUS, ids=lambda raw: repr(raw[:90]))
def test_an_ambiguous_request_smuggles_no_other(hostile: HostileRig, raw: bytes) -> None:
    received = answers(hostile, raw + LAST, waits_s=0.5)
    assert b"x-request-id: smuggled" not in received
    assert b"HTTP/1.1 5" not in received
    assert b"set-cookie" not in received


NO_HOSTS = [
    b"localhost:evil",
    b"localhost:99999",
    b"localhost:+1",
    b"localhost:80:80",
    b"[::1",
    b"[::1]x",
    b"a b",
    b"@evil",
]
HOSTS = [b"localhost", b"LOCALHOST.:", b"localhost:65535", b"127.0.0.1:1", b"[::1]", b"[::1]:8000"]


@pytest.mark.parametrize(("host", "is_one"), [(host, True) for host in HOSTS] + [(host, False) for host in NO_HOSTS])
def test_a_host_is_a_name_or_an_address_and_a_port(hostile: HostileRig, host: bytes, is_one: bool) -> None:
    raw = b"GET /health HTTP/1.1\r\nhost: %b\r\nconnection: close\r\n\r\n" % host
    received = answers(hostile, raw, waits_s=HANGS_S)
    assert received.startswith(b"HTTP/1.1 200" if is_one else b"HTTP/1.1 400"), received
    assert is_one or b"Host" in received


@pytest.mark.parametrize(
    "hosts",
    [b"", b"host:\r\n", b"host: localhost\r\nhost: evil.example\r\n", b"host: evil.example\r\nhost: localhost\r\n"],
)
@pytest.mark.parametrize("line", [b"GET /health", b"GET /v1/models", b"POST /v1/chat/completions", b"PUT /api/nowhere"])
def test_a_request_names_one_host(hostile: HostileRig, line: bytes, hosts: bytes) -> None:
    raw = line + b" HTTP/1.1\r\n" + hosts + b"content-length: 0\r\nconnection: close\r\n\r\n"
    received = answers(hostile, raw, waits_s=HANGS_S)
    assert received.startswith(b"HTTP/1.1 400"), received
    assert b"Host" in received


@pytest.mark.parametrize(
    "trailer", [b"azureml-model-deployment: green", b"x-request-id: trailing", b"host: evil.example"]
)
def test_trailers_are_no_headers(hostile: HostileRig, trailer: bytes) -> None:
    """They follow the headers that the ingress adds, which count because they are the last ones."""
    body = b'{"model": "chat", "messages": [{"role": "user", "content": "hi"}]}'
    chunks = b"%x\r\n%s\r\n0\r\n%s\r\n\r\n" % (len(body), body, trailer)
    head = b"content-type: application/json\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    received = answers(hostile, _POST + head + chunks, waits_s=HANGS_S)
    assert received.startswith(b"HTTP/1.1 200"), received
    assert b"azureml-model-deployment: blue" in received
    assert b"trailing" not in received


def test_a_request_for_the_server_itself_is_refused(hostile: HostileRig) -> None:
    received = answers(hostile, b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", waits_s=HANGS_S)
    assert received.startswith(b"HTTP/1.1 4"), received


def test_two_pipelined_requests_are_answered(hostile: HostileRig) -> None:
    """The oracle of the tests above: bytes that are not part of a body are a request, and are answered."""
    received = answers(hostile, _POST + b"content-length: 0\r\n\r\n" + SMUGGLED + LAST, waits_s=HANGS_S)
    assert b"x-request-id: smuggled" in received


def test_no_bytes_break_the_router(hostile: HostileRig) -> None:
    pieces = st.lists(
        st.one_of(
            st.sampled_from(
                [
                    _POST,
                    b"GET /health HTTP/1.1\r\n",
                    b"host: localhost\r\n",
                    b"content-length: 2\r\n",
                    b"transfer-encoding: chunked\r\n",
                    b"x-request-id: a\xff\r\n",
                    b"connection: upgrade\r\nupgrade: websocket\r\n",
                    b"sec-websocket-key: x\r\nsec-websocket-version: 13\r\n",
                    b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n",
                    b"expect: 100-continue\r\n",
                    b"\r\n",
                    b"{}",
                    b"2\r\n{}\r\n",
                    b"0\r\n\r\n",
                ]
            ),
            st.binary(max_size=8),
        ),
        min_size=1,
        max_size=8,
    )

    def check(parts: list[bytes]) -> None:
        received = answers(hostile, b"".join(parts), waits_s=0)
        assert b"HTTP/1.1 5" not in received, received
        assert not hostile.defects.found, hostile.defects.found.pop()

    attempt(pieces, SHARE, check)
