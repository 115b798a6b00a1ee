"""Bodies that are wrong in every way: rejected in the dialect's own form, or accepted."""

from typing import Any

import pytest

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
