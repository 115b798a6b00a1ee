"""What vLLM tells about itself, from an engine that does not show its tokenizer's settings."""

import httpx
import pytest

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.support.engine.model_application import KEY
from tests.support.processes.servers import serve

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications


def test_an_engine_tells_its_version_and_the_router_what_it_hides(engine: str) -> None:
    router = Router(RuntimeEnvironment(serve_url=engine, internal_key=KEY))
    router.reconfigure(
        {
            "endpoints": {"text": {"tasks": ["completions"], "traffic": {"base": 100}}},
            "deployments": {"base": {"app": "tiny", "model": "tiny"}},
            "defaults": {"completions": "text"},
        }
    )
    with serve(router.app) as url:
        assert httpx.get(f"{url}/version").json()["version"].startswith("0.29")
        hidden = httpx.get(f"{url}/tokenizer_info")
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "unsupported_route")
    assert "enable_tokenizer_info_endpoint" in hidden.json()["error"]["message"]
