"""The JavaScript SDKs of OpenAI, Anthropic, Hugging Face and Vercel against the real router and fake deployments."""

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.fake_engine import CARD, chat, frame, stream
from tests.support.node import run_script

HELLO = "Hello blue-model"


def chat_or_text(body: dict[str, Any]) -> Response:
    """A chat's answer, or a completion's."""
    if "messages" in body:
        return chat(body)
    choice = {"index": 0, "text": HELLO, "logprobs": None, "finish_reason": "stop"}
    return JSONResponse({"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})


def message(body: dict[str, Any]) -> Response:
    """Anthropic's answer, streamed or whole, as vLLM has it at `/v1/messages`."""
    usage = {"input_tokens": 9, "output_tokens": 3}
    whole: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    whole |= {"content": [{"type": "text", "text": HELLO}], "stop_reason": "end_turn", "usage": usage}
    if not body.get("stream"):
        return JSONResponse(whole)
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": HELLO}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return stream([f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])


def response(body: dict[str, Any]) -> Response:
    """A response, streamed or whole, as vLLM has it at `/v1/responses`."""
    text = {"type": "output_text", "text": HELLO, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    begun: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "tools": []}
    begun |= {"status": "in_progress", "output": [], "parallel_tool_calls": True, "tool_choice": "auto"}
    done = {**begun, "status": "completed", "output": [item]}
    if not body.get("stream"):
        return JSONResponse(done)
    part = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_text.delta", **part, "delta": HELLO, "logprobs": []},
        {"type": "response.completed", "response": done},
    ]
    return stream([f"event: {it['type']}\n" + frame({**it, "sequence_number": n}) for n, it in enumerate(events)])


def test_openais_sdk_and_azures_client_in_it(rig: Rig) -> None:
    rig.green.answer = response
    printed = run_script("openai.mjs", rig.url)
    for client in ("openai", "azure", "azure_deployment"):
        assert printed[client] == printed[f"{client}_stream"] == HELLO
        assert printed[f"{client}_error"] == ["BadRequestError", 400, "temperature"]
    assert {body["model"] for body in rig.blue.requests} == {"blue-model"}
    assert printed["azure_response"] == HELLO
    created, delta, completed = printed["azure_response_stream"]
    assert (created, completed) == (["response.created", None], ["response.completed", HELLO])
    assert delta == ["response.output_text.delta", HELLO]
    assert rig.green.paths == ["/v1/responses"] * 2


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
