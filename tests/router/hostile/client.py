"""A client that sends any bytes and returns the replies."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse

HANGS_S = 120.0
"""The longest wait for an answer: the router gives up after 20 s, and a busy machine is slow."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `complete`: it ended as its head announced."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True


class Client:
    """One connection at a time, kept open while the server does."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None

    def send(self, raw: bytes, *, method: str = "POST", fresh: bool = False) -> Reply | None:
        """The answer to `raw`; None where the server closed the connection without one. Raises TimeoutError.

        A kept connection may have been closed meanwhile: then a new one is tried.
        """
        if fresh:
            self.close()
        kept = self._socket is not None
        reply = self._exchange(raw, method)
        return self._exchange(raw, method) if reply is None and kept else reply

    def request(
        self, method: str, target: str, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None
    ) -> Reply:
        """Sends a request with exactly these headers, and a content length. Returns the answer."""
        lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"host: localhost"]
        lines += [name + b": " + value for name, value in headers or []]
        lines.append(b"content-length: %d" % len(body))
        reply = self.send(b"\r\n".join(lines) + b"\r\n\r\n" + body, method=method)
        assert reply is not None, "the server closed the connection"
        return reply

    def close(self) -> None:
        """Closes and drops the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, raw: bytes, method: str) -> Reply | None:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=HANGS_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A server that refuses a request early may close before it has read all of it.
        with suppress(ConnectionError):
            self._socket.sendall(raw)
        response = HTTPResponse(self._socket, method=method)
        try:
            response.begin()
        except (HTTPException, ConnectionError):
            self.close()
            return None
        except TimeoutError:
            self.close()
            raise
        complete = True
        try:
            body = response.read()
        except (HTTPException, ConnectionError) as error:
            body, complete = getattr(error, "partial", b""), False
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.will_close or not complete:
            self.close()
        response.close()
        return Reply(response.status, headers, body, complete)
