"""The longest prompt that Databricks' `error_behavior` sends to an engine."""

import httpx
import pytest

from tests.engine.conftest import CONTEXT

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_the_engine_accepts_the_longest_prompt_that_truncation_sends(text: httpx.Client) -> None:
    """The other cases are tested with a fake engine."""
    body = {"prompt": "word " * 2 * CONTEXT, "error_behavior": "truncate", "use_raw_prompt": True, "temperature": 0}
    answer = text.post("/serving-endpoints/text/invocations", json=body)
    assert answer.status_code == 200, answer.text
    truncated = answer.json()
    assert (truncated["usage"]["prompt_tokens"], truncated["usage"]["completion_tokens"]) == (CONTEXT - 1, 1)
    assert truncated["choices"][0]["finishReason"] == "length"
