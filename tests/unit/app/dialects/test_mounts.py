"""Values of `model` that are the server's own URL."""

import pytest

from app.dialects.base import is_own_url

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("http://127.0.0.1:8000", CHAT),
        ("http://127.0.0.1:8000/", CHAT),
        ("https://llm.example.com/v1", CHAT),
        ("https://llm.example.com/v1/", CHAT),
        ("https://llm.example.com/v1/chat/completions", CHAT),
        ("https://llm.example.com/tgi/chat", "/tgi/chat/v1/chat/completions"),
    ],
)
def test_a_base_url_of_the_request_is_the_servers_own(model: str, path: str) -> None:
    assert is_own_url(model, path)


@pytest.mark.parametrize(
    "model", [None, 7, "", "chat", "/v1", "ftp://h", "http://[", "https://h/v", "https://h/v2", "https://h/tgi/chat"]
)
def test_another_name_or_url_is_not(model: object) -> None:
    assert not is_own_url(model, CHAT)
