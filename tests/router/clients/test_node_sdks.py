"""The JavaScript SDKs of OpenAI, Anthropic, Hugging Face and Vercel against the real router and fake deployments."""

from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.clients.node import run_script
from tests.support.engine.fake_engine import CARD, chat
from tests.support.engine.other_answers import HELLO, message, response


def chat_or_text(body: dict[str, Any]) -> Response:
    """The answer to a chat or a completion."""
    if "messages" in body:
        return chat(body)
    choice = {"index": 0, "text": HELLO, "logprobs": None, "finish_reason": "stop"}
    return JSONResponse({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


def test_openais_sdk_and_azures_client_in_it(rig: Rig) -> None:
    rig.green.answer = response
    printed = run_script("openai.mjs", rig.url)
    for client in ("openai", "azure", "azure_deployment"):
        assert printed[client] == printed[f"{client}_stream"] == HELLO
        assert printed[f"{client}_error"] == ["BadRequestError", 400, "temperature"]
    assert {body["model"] for body in rig.blue.requests} == {"blue-model"}
    assert printed["azure_response"] == printed["azure_deployment_response"] == HELLO
    created, delta, completed = printed["azure_response_stream"]
    assert (created, completed) == (["response.created", None], ["response.completed", HELLO])
    assert delta == ["response.output_text.delta", HELLO]
    assert rig.green.paths == ["/v1/responses"] * 3


def test_anthropics_sdk(rig: Rig) -> None:
    rig.blue.answer = message
    printed = run_script("anthropic.mjs", rig.url)
    assert printed["message"] == printed["stream"] == HELLO
    assert printed["error"] == ["NotFoundError", 404, "not_found_error"]


@pytest.mark.parametrize("base", ["", "/v1", "/tgi/chat"])
def test_hugging_faces_sdk_names_its_own_url_as_the_model(rig: Rig, base: str) -> None:
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    rig.blue.answer, rig.blue.card = chat_or_text, CARD
    printed = run_script("huggingface.mjs", f"{rig.url}{base}")
    assert printed == {"chat": HELLO, "stream": HELLO, "generation": HELLO}


def test_vercels_sdk(rig: Rig) -> None:
    printed = run_script("ai.mjs", rig.url)
    assert printed == {"text": [HELLO, 12], "stream": HELLO, "stream_tokens": 12}
