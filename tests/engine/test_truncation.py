"""The longest prompt that Databricks' `error_behavior` sends to an engine."""

import httpx
import pytest

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.engine.conftest import CONTEXT
from tests.support.engine.model_application import KEY
from tests.support.processes.servers import serve

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_the_engine_accepts_the_longest_prompt_that_truncation_sends(engine: str) -> None:
    """The other cases are tested with a fake engine."""
    router = Router(RuntimeEnvironment(serve_url=engine, internal_key=KEY))
    router.reconfigure(
        {
            "endpoints": {"text": {"tasks": ["completions"], "traffic": {"base": 100}}},
            "deployments": {"base": {"app": "tiny", "model": "tiny"}},
        }
    )
    body = {"prompt": "word " * 2 * CONTEXT, "error_behavior": "truncate", "use_raw_prompt": True, "temperature": 0}
    with serve(router.app) as url:
        answer = httpx.post(f"{url}/serving-endpoints/text/invocations", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    truncated = answer.json()
    assert (truncated["usage"]["prompt_tokens"], truncated["usage"]["completion_tokens"]) == (CONTEXT - 1, 1)
    assert truncated["choices"][0]["finishReason"] == "length"
