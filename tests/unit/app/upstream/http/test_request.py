"""A request's head."""

import pytest

from app.upstream.http.client import Origin, place


def test_a_head_has_the_urls_parts_and_the_requests_headers() -> None:
    head = place("http://engine:8000/v1/chat").head("POST", {"x-request-id": "7", "x": "é"}, 12)
    assert head.decode() == (
        "POST /v1/chat HTTP/1.1\r\nHost: engine:8000\r\nAccept: */*\r\nContent-Length: 12\r\n"
        "x-request-id: 7\r\nx: é\r\n\r\n"
    )


def test_a_request_without_a_body_has_no_length() -> None:
    assert place("https://engine").head("GET", {}, None) == b"GET / HTTP/1.1\r\nHost: engine\r\nAccept: */*\r\n\r\n"


@pytest.mark.parametrize(
    ("url", "origin", "path", "host"),
    [
        ("http://[::1]:81/a", Origin(False, "::1", 81), "/a", "[::1]:81"),
        ("https://Engine/a%2Fb%20c?x=%20y", Origin(True, "engine", 443), "/a%2Fb%20c?x=%20y", "engine"),
        ("http://bücher.org/ü z", Origin(False, "xn--bcher-kva.org", 80), "/%C3%BC%20z", "xn--bcher-kva.org"),
    ],
    ids=["IPv6", "escaped", "not ASCII"],
)
def test_a_url_names_where_to_connect_and_what_to_ask_for(url: str, origin: Origin, path: str, host: str) -> None:
    found = place(url)
    assert (found.origin, found.path) == (origin, path)
    assert f"Host: {host}\r\n" in found.fixed


def test_a_name_and_password_in_the_url_are_sent() -> None:
    assert "Authorization: Basic dTpwIHc=\r\n" in place("http://u:p%20w@engine/").fixed


@pytest.mark.parametrize("url", ["/v1/chat", "ftp://engine/", "http://", "http://engine:x/"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  yarl's messages vary
        place(url)


@pytest.mark.parametrize("text", ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "\r\n\r\nGET /"])
def test_no_header_ends_its_line(text: str) -> None:
    at = place("http://engine/")
    for headers in ({"x": text}, {text: "x"}, {"first": "1", "x": text, "last": "2"}):
        with pytest.raises(ValueError, match="line break or a null byte"):
            at.head("POST", headers, 0)
