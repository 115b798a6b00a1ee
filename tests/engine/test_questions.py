"""What vLLM tells about itself, from an engine that does not show its tokenizer's settings."""

import httpx
import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_an_engine_tells_its_version_and_the_router_what_it_hides(text: httpx.Client) -> None:
    assert text.get("/version").json()["version"].startswith("0.29")
    hidden = text.get("/tokenizer_info")
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "unsupported_route")
    assert "enable_tokenizer_info_endpoint" in hidden.json()["error"]["message"]
