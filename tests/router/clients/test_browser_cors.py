"""A real Chromium, whose pages fetch from the router across origins."""

import json

from starlette.responses import HTMLResponse

from tests.router.conftest import Rig
from tests.support.clients.node import run_script
from tests.support.processes.servers import serve

PAGE = HTMLResponse("<!doctype html><title>A page</title>")


def test_a_page_of_an_allowed_origin_reads_answers_and_another_origins_page_does_not(rig: Rig) -> None:
    with serve(PAGE) as allowed, serve(PAGE) as other:
        rig.change(cors={"origins": [allowed]})
        printed = run_script("browser.mjs", rig.url, allowed, other)
    for name in ("allowed", "allowed_stream"):
        answer = printed[name]
        assert (answer["origin"], answer["status"]) == (allowed, 200)
        request_id, deployment = answer["headers"]
        assert request_id
        assert deployment == "blue"
    whole = json.loads(printed["allowed"]["text"])
    assert whole["choices"][0]["message"]["content"] == "Hello blue-model"
    assert printed["allowed_stream"]["text"].startswith("data: {")
    assert printed["allowed_stream"]["text"].endswith("data: [DONE]\n\n")
    for name in ("other", "other_stream"):
        assert printed[name] == {"origin": other, "error": "TypeError"}
    assert len(rig.blue.requests) == 2, "the other origin's preflight fails, so its requests are never sent"
