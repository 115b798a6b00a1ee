"""Builds the head of a request."""

from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from yarl import URL

_MOST_URLS = 4096


class Origin(NamedTuple):
    """The server of a connection. `host` is a name, or an address without brackets."""

    is_tls: bool
    host: str
    port: int


class Place(NamedTuple):
    """A parsed URL: the server, the path, and the headers that are the same in every request to it."""

    origin: Origin
    path: str
    fixed: str

    def head(self, method: str, headers: Mapping[str, str], length: int | None) -> bytes:
        """The request line and the headers; `length` is the body's, None without one.

        Raises ValueError for a header that would end its line.
        """
        lines = [f"{name}: {value}" for name, value in headers.items()]
        varying = "\r\n".join(lines)
        breaks = max(len(lines) - 1, 0)
        if varying.count("\n") != breaks or varying.count("\r") != breaks or "\0" in varying:
            raise ValueError("A header of a request holds a line break or a null byte")
        counted = "" if length is None else f"Content-Length: {length}\r\n"
        end = f"{varying}\r\n\r\n" if lines else "\r\n"
        return f"{method} {self.path} HTTP/1.1\r\n{self.fixed}{counted}{end}".encode()


@lru_cache(_MOST_URLS)
def place(url: str) -> Place:
    """Parses a URL. Raises ValueError if it is not an absolute HTTP URL."""
    parsed = URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.raw_host or parsed.port is None:
        raise ValueError("Not a URL of HTTP")
    origin = Origin(parsed.scheme == "https", parsed.raw_host, parsed.port)
    fixed = f"Host: {parsed.host_port_subcomponent}\r\nAccept: */*\r\n"
    if parsed.user or parsed.password:
        credentials = b64encode(f"{parsed.user or ''}:{parsed.password or ''}".encode()).decode()
        fixed += f"Authorization: Basic {credentials}\r\n"
    return Place(origin, parsed.raw_path_qs, fixed)
