"""A stream that says nothing for an hour, through what a cluster has between a client and a router: the Gateway's Envoy
or an Ingress controller's nginx, HAProxy, and the router. `make silence`; not part of `make test`.

The engine is no real one: that would not be silent for an hour.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from app.internal_api import ROUTER
from tests.support.engine.fake_engine import FakeEngine, chunk, stream
from tests.support.ingress.entrances import ENVOYS, envoy, nginx
from tests.support.ingress.haproxy import Replica, ingress
from tests.support.processes.servers import serve
from tests.support.processes.standalone_router import standalone_router

pytestmark = [pytest.mark.timeout(0), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SILENT_S = float(os.environ.get("SECONDS", "3590"))

TIMEOUTS = {"idle_s": 3600, "total_s": 3700}
"""By default the router itself ends a stream that is silent for two minutes."""

BODY = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of each entrance."""
    engine = FakeEngine(answer=lambda body: stream([chunk("Hel"), SILENT_S, chunk("lo", finish_reason="stop"), DONE]))
    with ExitStack() as stack:
        upstream = stack.enter_context(serve(engine.app))
        document = {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"far": 100}}},
            "deployments": {"far": {"url": upstream, "model": "m"}},
            "timeouts": TIMEOUTS,
        }
        router = stack.enter_context(standalone_router(document, tmp_path))
        replica = Replica("router", "127.0.0.1", router.port)
        port = stack.enter_context(ingress(tmp_path / "ingress", [replica], ROUTER, health="/health")).port
        entrances = {"nginx": nginx(port, _new(tmp_path / "nginx"))}
        entrances |= {name: envoy(name, port, _new(tmp_path / name)) for name in ENVOYS}
        yield {name: stack.enter_context(entrance) for name, entrance in entrances.items()}


DONE = "data: [DONE]\n\n"


def _new(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_a_stream_that_is_silent_for_an_hour_goes_on_through_every_entrance(urls: dict[str, str]) -> None:
    answers: dict[str, str] = {}

    def ask(name: str) -> None:
        """Sends nothing on its own, and waits for as long as it takes."""
        try:
            with httpx.stream(
                "POST", f"{urls[name]}/v1/chat/completions", json=BODY, verify=False, timeout=None
            ) as response:
                answers[name] = f"{response.status_code} "
                for text in response.iter_text():
                    answers[name] += text
        except httpx.HTTPError as error:
            answers[name] = f"{answers.get(name, '')}{error!r}"

    threads = [threading.Thread(target=ask, args=(name,)) for name in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = {
        name: text.startswith("200 ") and text.endswith(DONE) and '"content":"lo"' in text
        for name, text in answers.items()
    }
    assert whole == dict.fromkeys(urls, True), answers
