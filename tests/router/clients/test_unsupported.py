"""What clients call at a vendor's other routes: each reads the refusal, and a WebSocket's is no 403; or it works."""

import json
import re
from typing import Any

import anthropic
import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app.dialects.registry import DIALECTS
from tests.router.conftest import Rig

REFUSAL = r"This server has no .*; use "


def test_openais_client_reads_what_to_use(rig: Rig) -> None:
    with (
        openai.OpenAI(base_url=f"{rig.url}/v1", api_key="k", max_retries=0) as client,
        openai.AzureOpenAI(azure_endpoint=rig.url, api_key="k", api_version="2024-10-21", max_retries=0) as azure,
    ):
        calls: list[Any] = [
            client.files.list,
            client.chat.completions.list,
            lambda: client.batches.retrieve("b"),
            lambda: client.responses.compact(model="chat"),
            lambda: client.audio.speech.create(input="a", model="m", voice="v"),
            lambda: azure.images.generate(prompt="a", model="chat"),
        ]
        for call in calls:
            with pytest.raises(openai.NotFoundError, match=REFUSAL) as raised:
                call()
            assert raised.value.code == "unsupported_route"


def test_anthropics_client_reads_what_to_use(rig: Rig) -> None:
    with anthropic.Anthropic(base_url=rig.url, api_key="k", max_retries=0) as client:
        for call in (client.messages.batches.list, client.beta.files.list):
            with pytest.raises(anthropic.NotFoundError, match=REFUSAL) as raised:
                call()
            body: Any = raised.value.body
            assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
            assert body["request_id"] == raised.value.response.headers["request-id"]


@pytest.mark.parametrize("path", ["/v1/realtime?model=chat", "/v1/responses", "/openai/v1/realtime", "/anything"])
def test_a_websockets_handshake_is_refused_with_the_error(rig: Rig, path: str) -> None:
    with pytest.raises(InvalidStatus) as raised, connect(rig.url.replace("http", "ws") + path):
        pass
    response = raised.value.response
    assert response.status_code == 404
    error = json.loads(response.body or b"")["error"]
    assert (error["code"], error["message"].partition(";")[0]) == (
        "unsupported_route",
        "This server has no WebSockets",
    )


def test_claude_codes_first_request_is_answered(rig: Rig) -> None:
    for base in ("", "/anthropic"):
        assert httpx.head(f"{rig.url}{base}/api/hello").status_code == 200
        assert httpx.get(f"{rig.url}{base}/api/hello").json() == {"message": "hello"}


def test_every_route_says_first_which_methods_it_takes_if_it_is_called_with_another_one(rig: Rig) -> None:
    documented = httpx.get(f"{rig.url}/openapi.json").json()["paths"]
    of_dialects = {re.sub(r":path}", "}", route.path) for dialect in DIALECTS for route in dialect.routes}
    methods: dict[str, set[str]] = {}
    for path in of_dialects:
        named = re.sub(r"\{[^}]+\}", "chat", path)
        methods.setdefault(named, set()).update(method.upper() for method in documented[path])
    with httpx.Client(base_url=rig.url) as client:
        for path, taken in methods.items():
            for method in {"GET", "POST", "PATCH"} - taken:
                answer = client.request(method, path)
                assert answer.status_code in (404, 405), (method, path)
                said = re.search(rf'"{re.escape(path)} takes ([A-Z or]+), not {method}', answer.text)
                assert said is not None, (method, path, answer.text)
                assert set(said[1].split(" or ")) >= taken, (method, path)
                if answer.status_code == 405:
                    assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == set(said[1].split(" or "))
                else:
                    assert "This server has no " in answer.text


def test_azure_mls_route_takes_chats_and_its_header_names_the_deployment(rig: Rig) -> None:
    rig.change(defaults={"chat": "chat"})
    body = {"input_data": {"input_string": [{"role": "user", "content": "hi"}], "parameters": {"max_new_tokens": 5}}}
    for path in ("/score", "/endpoints/chat/score"):
        for deployment in ("blue", "green"):
            answer = httpx.post(f"{rig.url}{path}", json=body, headers={"azureml-model-deployment": deployment})
            assert answer.raise_for_status().json() == {"output": f"Hello {deployment}-model"}
        assert rig.green.requests[-1]["max_tokens"] == 5
    plain = {"messages": [{"role": "user", "content": "hi"}], "model": "green"}
    answer = httpx.post(f"{rig.url}/endpoints/chat/score", json=plain).raise_for_status()
    assert answer.json()["choices"][0]["message"]["content"] == "Hello green-model"


def test_azure_mls_description_says_what_its_route_takes(rig: Rig) -> None:
    rig.change(defaults={"chat": "chat"})
    body = {"input_data": {"input_string": [{"role": "user", "content": "hi"}]}}
    for path in ("/swagger.json", "/endpoints/chat/swagger.json"):
        document = httpx.get(rig.url + path).raise_for_status().json()
        assert (document["info"]["title"], list(document["paths"])) == ("chat", ["/score"])
        request = document["paths"]["/score"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**request, "components": document["components"]})
        for valid in (body, {"messages": [{"role": "user", "content": "hi"}]}, {"queries": "a", "documents": ["b"]}):
            assert validator.is_valid(valid)
        assert not validator.is_valid({"input_data": {"input_string": []}})
    missing = httpx.get(f"{rig.url}/endpoints/nope/swagger.json")
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "There is no endpoint 'nope'")
