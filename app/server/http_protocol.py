"""HTTP/1.1 as the router's server reads it.

Its name, `PROTOCOL`, is what uvicorn takes for `http`; this module imports uvicorn, which only servers need.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PROTOCOL = "app.server.http_protocol:HeadersFirst"


class HeadersFirst(HttpToolsProtocol):
    """uvicorn's protocol, but the trailers of a chunked body are no headers.

    uvicorn appends them to the headers, before the application sees these: a client could send an `X-Forwarded-For`
    after the ingress has added its own. RFC 9110, section 6.5.1: a recipient must not merge trailers into headers
    unless it understands them.
    """

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers = []  # no longer the request's own list, which keeps what has come so far
