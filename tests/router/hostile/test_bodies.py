"""Bodies that are wrong in every way: rejected in the dialect's own form, or accepted."""

import http.client
import time
from itertools import product
from typing import Any

import pytest

from tests.conftest import NIGHTLY
from tests.router.hostile.budget import attempt
from tests.router.hostile.engine import compact
from tests.router.hostile.rig import HostileRig
from tests.router.hostile.strategies import VALID, posts

SHARE = 0.5


@pytest.mark.parametrize(("path", "dialects", "body"), VALID, ids=lambda part: part if isinstance(part, str) else "")
def test_the_bodies_to_mutate_are_valid(
    hostile: HostileRig, path: str, dialects: set[str], body: dict[str, Any]
) -> None:
    reply = hostile.client.request("POST", path, compact(body))
    hostile.check(reply, dialects)
    assert reply.status == 200, reply.body


def test_no_body_breaks_the_router(hostile: HostileRig) -> None:
    def check(post: tuple[str, set[str], bytes]) -> None:
        path, dialects, body = post
        reply = hostile.client.request("POST", path, body)
        # A timeout in the body is the client's own.
        hostile.check(reply, dialects, impatient=b"timeout_microseconds" in body)

    attempt(posts(), SHARE, check)


def test_a_token_count_beyond_the_histogram_is_counted(hostile: HostileRig) -> None:
    body = {"model": "chat", "prompt": "hi", "max_tokens": 10**400}
    hostile.check(hostile.client.request("POST", "/v1/completions", compact(body)), {"openai"})
    hostile.check(hostile.client.request("GET", "/metrics"), set())


def test_the_size_of_a_batch_is_bounded(hostile: HostileRig) -> None:
    body = {"prompt": ["a"] * 5_000, "error_behavior": "truncate", "n": 1_000}
    reply = hostile.client.request("POST", "/serving-endpoints/chat/invocations", compact(body))
    hostile.check(reply, {"databricks"})
    assert (reply.status, b"at most 4096" in reply.body) == (400, True)


IDENTIFIERS = ("user", "safety_identifier", "prompt_cache_key", "metadata", "session_id")
ODD: tuple[Any, ...] = (5, 1.5, True, "", "a", ["x"], {}, {"user_id": 5}, None)


@pytest.mark.parametrize(
    "sticky", [{"by": "user"}, {"by": "conversation"}, {"by": "api_key"}, {"by": "header", "name": "a"}]
)
def test_every_body_is_routed_or_refused_by_every_sticky_rule(hostile: HostileRig, sticky: dict[str, str]) -> None:
    endpoints = {name: {**endpoint, "sticky": sticky} for name, endpoint in hostile.config["endpoints"].items()}
    hostile.router.reconfigure({**hostile.config, "endpoints": endpoints})
    try:
        for number, (path, dialects, body) in enumerate(VALID):
            fields = [*product(IDENTIFIERS, ODD)]
            for name, value in fields if NIGHTLY else fields[number % 4 :: 4]:
                reply = hostile.client.request("POST", path, compact({**body, name: value}))
                hostile.check(reply, dialects)
                assert reply.status < 500, (path, name, value, reply.body)
    finally:
        hostile.router.reconfigure(hostile.config)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/invocations"])
def test_an_identifier_that_is_no_text_is_refused(hostile: HostileRig, path: str) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "a"}]}
    if not path.endswith(("chat/completions", "invocations")):
        body = {"model": "chat", "prompt" if path == "/v1/completions" else "input": "a"}
    reply = hostile.client.request("POST", path, compact({**body, "safety_identifier": 5}))
    assert (reply.status, b'"safety_identifier"' in reply.body) == (400, True)


_WORDS = "a b " * 60_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"inputs": _WORDS}),
        ("/generate", {"inputs": _WORDS, "parameters": {"truncate": 9}}),
        ("/serverless/v1/tokenize", {"model": "chat", "prompt": _WORDS}),
    ],
)
def test_the_time_limit_ends_the_tokenizing_of_a_long_text(
    hostile: HostileRig, path: str, body: dict[str, Any]
) -> None:
    hostile.client.request("POST", path, compact({"model": "chat", "prompt": "a"}))  # reads the tokenizer
    reply = hostile.client.request("POST", path, compact(body), [(b"x-request-timeout-s", b"0.05")])
    assert reply.status in (424, 504), reply.body


def test_an_answer_that_has_begun_ends_whole(hostile: HostileRig) -> None:
    """Where the time ends while the client reads."""
    connection = http.client.HTTPConnection(hostile.url.removeprefix("http://"))
    try:
        headers = {"content-type": "application/json", "x-request-timeout-s": "5"}
        connection.request("POST", "/tokenize", compact({"inputs": _WORDS}), headers)
        answer = connection.getresponse()
        time.sleep(6)
        assert len(answer.read()) == int(answer.headers["content-length"])
    finally:
        connection.close()


@pytest.mark.parametrize("model", [[], {}, [[]], 5, True, None, "chat"])
def test_a_long_body_names_a_model_of_any_type(hostile: HostileRig, model: Any) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "a" * 80_000}]}
    reply = hostile.client.request("POST", "/v1/chat/completions", compact(body))
    assert reply.status in (200, 400), reply.body
