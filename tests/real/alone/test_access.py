"""Keys and limits on the real application, applied and removed live."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.access.keys import append, create
from app.config.access import Limits
from tests.real.conftest import Application, reconfigured
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

HITS = "vllm:prefix_cache_hits_total"
CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


def status(application: Application, key: str | None) -> int:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.get(f"{application.url}/v1/models", headers=headers).status_code


@pytest.fixture
def keys(application: Application, tmp_path: Path) -> Iterator[Path]:
    """The application requires keys while the test runs."""
    keys = tmp_path / "keys.yaml"
    keys.touch()

    def require_keys(user_config: dict[str, Any]) -> None:
        user_config["access"] = {"keys_file": str(keys)}

    with reconfigured(application, tmp_path / "serve_config.yaml", require_keys):
        wait_until(lambda: status(application, None) == 401)
        yield keys
    wait_until(lambda: status(application, None) == 200)


def test_keys_give_access_to_their_endpoints_within_their_limits(application: Application, keys: Path) -> None:
    key, record = create("team", endpoints=["chat"], limits=Limits(requests_per_minute=2))
    append(keys, record.line)
    wait_until(lambda: status(application, key) == 200)
    with openai.OpenAI(base_url=f"{application.url}/v1", api_key=key, max_retries=0) as client:
        assert {model.id for model in client.models.list()} == {"chat", "smollm2-blue", "smollm2-green"}
        with pytest.raises(openai.PermissionDeniedError):
            client.embeddings.create(model="embed", input="hi")
        outcomes: list[str] = []
        for _ in range(6):  # a minute's boundary may lie in between
            try:
                headers = client.chat.completions.with_raw_response.create(**CHAT).headers
                outcomes.append("served")
            except openai.RateLimitError as error:
                headers = error.response.headers
                outcomes.append("limited")
            assert headers["x-ratelimit-limit-requests"] == "2"
            assert ("retry-after" in headers) == (outcomes[-1] == "limited")
    assert outcomes[:1] == ["served"]
    assert "limited" in outcomes


LONG = " ".join(f"The {number}th sheep jumps over the fence, and the shepherd counts it." for number in range(40))
MESSAGES = [{"role": "user", "content": LONG}]
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}),
    "streamed": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1, "stream": True, "seed": 1}),
    "completions": ("/v1/completions", {"prompt": LONG, "max_tokens": 1}),
    "responses": ("/v1/responses", {"input": LONG, "max_output_tokens": 1}),
    "anthropic": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}),
    "our own route": ("/serverless/v1/completions", {"prompt": LONG, "max_tokens": 1, "num_beams": 2}),
}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_caller_finds_nothing_of_anothers_prompt_in_the_engines_cache(
    application: Application, keys: Path, way: str
) -> None:
    teams = {}
    for name in ("ann", "bob"):
        teams[name], record = create(name)
        append(keys, record.line)
    wait_until(lambda: {status(application, key) for key in teams.values()} == {200})
    path, body = WAYS[way]

    def hits(caller: str) -> float:
        """The tokens that the engine found in its cache for a request."""
        before = application.engine_metric("smollm2-blue", HITS)
        headers = {"authorization": f"Bearer {teams[caller]}"}
        answer = httpx.post(
            application.url + path, json={"model": "smollm2-blue", **body}, headers=headers, timeout=120
        )
        assert answer.status_code == 200, answer.text
        return application.engine_metric("smollm2-blue", HITS) - before

    first, again, other, others_again = (hits(caller) for caller in ("ann", "ann", "bob", "bob"))
    assert first == other, "bob's request is as new to the engine as ann's was"
    assert again == others_again > first + 200
