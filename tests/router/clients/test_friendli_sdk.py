"""Friendli's SDK, sync and async, its predecessor, and OpenAI's SDK against the real router.

The SDK retries for up to an hour; retries are off here. Its predecessor, `friendli-client`, has the same package name
and cannot be installed at the same time: `Classic` sends the same requests and reads answers in the same way.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from friendli.core.models import SDKError
from friendli.friendli import AsyncFriendli, SyncFriendli
from openai import OpenAI
from starlette.responses import JSONResponse, Response

from app.engine.model import Model
from tests.router.conftest import Rig
from tests.support.clients.samples import tokenizer
from tests.support.engine.fake_engine import CARD, CONTEXT, chat, refuse, speaks, stream
from tests.support.engine.other_answers import message_with, response_of

TEXT = "hello 日本 😀 there"
MODEL = Model.build(tokenizer().to_str(), eos_ids=[0], max_len=CONTEXT)
IDS = MODEL.encode(TEXT)
EOS = 0


@pytest.fixture
def engine(rig: Rig) -> Rig:
    """A rig whose blue is a model application that generates TEXT."""
    rig.blue.card = CARD
    rig.blue.answer = speaks(MODEL, TEXT, eos=[EOS])
    rig.change(defaults={"chat": "chat", "completions": "chat", "embeddings": "embed"})
    return rig


@pytest.fixture
def friendli(engine: Rig) -> Iterator[Any]:
    with SyncFriendli(token="flp_x", server_url=engine.url, retry_config=None) as sdk:
        yield sdk


class EndpointKinds:
    """One call for the SDK's three kinds of endpoints."""

    def __init__(self, sdk: Any, url: str) -> None:
        self._sdk, self._url = sdk, url

    def complete(self, kind: str, **body: Any) -> Any:
        body = {"model": "chat", **({} if "tokens" in body else {"prompt": "say"}), **body}
        if kind == "container":
            return self._sdk.container.completions.complete(request=body, server_url=self._url, retries=None)
        named = {f"{kind}_completions_body": body}
        return getattr(self._sdk, kind).completions.complete(**named, retries=None)


KINDS = pytest.mark.parametrize("kind", ["serverless", "dedicated", "container"])


@pytest.fixture
def ask(friendli: Any, engine: Rig) -> EndpointKinds:
    return EndpointKinds(friendli, engine.url)


def error_of(error: SDKError) -> Any:
    """The error object in the SDK error's body."""
    return json.loads(error.body)["error"]


@KINDS
def test_the_sdk_completes_a_prompt(ask: EndpointKinds, engine: Rig, kind: str) -> None:
    answer = ask.complete(kind, max_tokens=50, n=2)
    assert [choice.text for choice in answer.choices] == [TEXT, TEXT]
    assert answer.choices[0].tokens == IDS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[1].seed == answer.choices[0].seed + 1 == engine.blue.requests[-1]["seed"] + 1
    assert answer.usage.completion_tokens == 2 * len(IDS)
    ask.complete(kind, seed=answer.choices[1].seed)
    assert engine.blue.requests[-1]["seed"] == answer.choices[1].seed
    assert engine.blue.paths == ["/v1/completions"] * 2


@KINDS
@pytest.mark.parametrize("n", [1, 2])
def test_the_sdk_streams_a_completion(ask: EndpointKinds, kind: str, n: int) -> None:
    with ask.complete(kind, stream=True, n=n, logprobs=1, stream_options={"include_usage": True}) as events:
        chunks = [event.data for event in events]
    *parts, last = chunks
    choices = [part.choices[0] for part in parts]
    for index in range(n):
        own = [choice for choice in choices if choice.index == index]
        assert "".join(choice.text for choice in own) == TEXT
        assert [choice.token for choice in own[:-1]] == IDS
        assert all(len(choice.logprobs.tokens) == 1 for choice in own[:-1])
        assert own[-1].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == n * len(IDS)


@KINDS
def test_tokens_in_place_of_a_prompt(ask: EndpointKinds, engine: Rig, kind: str) -> None:
    ask.complete(kind, tokens=[5, 6], max_total_tokens=10)
    assert (engine.blue.requests[-1]["prompt"], engine.blue.requests[-1]["max_tokens"]) == ([5, 6], 8)


async def test_the_async_sdk(engine: Rig) -> None:
    async with AsyncFriendli(token="flp_x", server_url=engine.url) as client:
        sdk: Any = client
        body = {"model": "chat", "prompt": "say"}
        answer = await sdk.serverless.completions.complete(serverless_completions_body=body, retries=None)
        assert answer.choices[0].text == TEXT
        events = await sdk.dedicated.completions.complete(
            dedicated_completions_body={**body, "stream": True}, retries=None
        )
        async with events:
            chunks = [event.data.choices[0] async for event in events]
        assert "".join(chunk.text for chunk in chunks) == TEXT
        assert (await sdk.container.token.tokenize(prompt=TEXT, server_url=engine.url)).tokens == IDS
        with pytest.raises(SDKError):
            await sdk.serverless.completions.complete(serverless_completions_body={**body, "n": 0}, retries=None)


def test_all_of_the_sdks_fields_arrive(ask: EndpointKinds, engine: Rig) -> None:
    ask.complete(
        "serverless",
        bad_word_tokens=[{"tokens": [7, 8]}],
        bad_words=["x"],
        encoder_no_repeat_ngram=1,
        encoder_repetition_penalty=1.0,
        eos_token=[9],
        frequency_penalty=0.1,
        logprobs=2,
        max_tokens=40,
        min_p=0.1,
        min_tokens=1,
        n=2,
        no_repeat_ngram=3,
        presence_penalty=0.2,
        repetition_penalty=1.1,
        seed=[2**64 - 2, 5],
        stop=["日"],
        stop_tokens=[{"tokens": [10]}],
        temperature=2.5,
        token_index_to_replace=[0],
        embedding_to_replace=[0.5] * 4,
        top_k=5,
        top_p=0.9,
        xtc_threshold=0.1,
        xtc_probability=0.5,
    )
    sent = engine.blue.requests[-1]
    assert engine.blue.paths[-1] == "/switchyard/completions"
    assert sent == {
        "model": "blue-model",
        "prompt": MODEL.encode("say"),
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": 2,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "repetition_penalty": 1.1,
        "min_p": 0.1,
        "top_k": 5,
        "top_p": 0.9,
        "temperature": 2.0,
        "seeds": [2**64 - 2, 5],
        "stop": ["日"],
        "stop_token_ids": [9, 10],
        "ignore_eos": True,
        "max_tokens": 40,
        "min_tokens": 1,
        "replace_embeddings": {"indices": [0], "values": [0.5] * 4},
        "vllm_xargs": {
            "temperature": 2.5,
            "xtc_threshold": 0.1,
            "xtc_probability": 0.5,
            "no_repeat_ngram": 3,
            "bad_word_tokens": [*MODEL.encode("x"), -1, 7, 8],
        },
    }


@KINDS
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_phrase_is_left_out(ask: EndpointKinds, kind: str, streamed: bool) -> None:
    answer = ask.complete(kind, stop=[" 😀"], stream=streamed)
    if not streamed:
        assert (answer.choices[0].text, answer.choices[0].tokens) == ("hello 日本", MODEL.encode("hello 日本"))
        return
    with answer as events:
        chunks = [event.data.choices[0] for event in events]
    assert "".join(chunk.text for chunk in chunks) == "hello 日本"
    assert chunks[-1].finish_reason == "stop"


@KINDS
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"max_tokens": 5, "max_total_tokens": 9}, 400, "max_total_tokens"),
        ({"max_tokens": 1000}, 400, "max_tokens"),
        ({"seed": [1, 2]}, 400, "seed"),
        ({"encoder_no_repeat_ngram": 2}, 400, "encoder_no_repeat_ngram"),
        ({"token_index_to_replace": [0]}, 400, "embedding_to_replace"),
        ({"response_format": {"type": "regex", "schema": r"[^\s\S]"}}, 400, "response_format"),
        ({"model": "gone"}, 404, "model"),
        ({"model": "chat:gone"}, 404, "model"),
    ],
)
def test_an_invalid_field_is_an_sdk_error_that_names_it(
    ask: EndpointKinds, kind: str, streamed: bool, fields: dict[str, Any], status: int, param: str
) -> None:
    with pytest.raises(SDKError) as raised:
        ask.complete(kind, stream=streamed, **fields)
    assert raised.value.status_code == status
    assert error_of(raised.value)["param"] == param
    assert "gone" in raised.value.body or param in error_of(raised.value)["message"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("broken", "status", "param"),
    [
        (refuse(400, "Grammar error: odd"), 400, "response_format"),
        (refuse(400, "beam.width must be", "beam.width"), 400, "num_beams"),
        (refuse(500, "CUDA"), 502, None),
        (refuse(503, "full"), 503, None),
    ],
)
def test_the_engines_failures_are_sdk_errors(
    ask: EndpointKinds, engine: Rig, streamed: bool, broken: Any, status: int, param: str | None
) -> None:
    engine.chat_endpoint(fallback=[])
    engine.blue.answer = broken
    with pytest.raises(SDKError) as raised:
        ask.complete("serverless", stream=streamed)
    assert (raised.value.status_code, error_of(raised.value)["param"]) == (status, param)
    assert "CUDA" not in raised.value.body


def test_a_stream_that_breaks_off_raises(ask: EndpointKinds, engine: Rig) -> None:
    engine.chat_endpoint(fallback=[])
    engine.blue.answer = speaks(MODEL, TEXT, sent=lambda parts: parts[:2])
    with ask.complete("serverless", stream=True) as events:
        assert next(iter(events)).data.choices[0].text == "hello"
        with pytest.raises(httpx.RemoteProtocolError):
            list(events)


def test_the_clients_timeout_is_a_429_before_the_first_token(engine: Rig) -> None:
    engine.blue.answer = lambda body: stream([20.0])
    for body in ({"timeout": 50_000}, {"timeout_microseconds": 50_000, "stream": True}):
        answer = httpx.post(f"{engine.url}/v1/completions", json={"prompt": "say", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (429, next(iter(body)))
    assert engine.blue.requests[-1]["prompt"] == MODEL.encode("say")


def test_the_clients_timeout_breaks_the_connection_after_the_first_token(engine: Rig) -> None:
    engine.blue.answer = speaks(MODEL, TEXT, sent=lambda parts: [parts[0], 20.0])
    body = {"prompt": "say", "timeout_microseconds": 700_000, "stream": True}
    with httpx.stream("POST", f"{engine.url}/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["event"] == "token_sampled"
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)


def test_a_plain_server_rejects_fields_that_need_an_extension(engine: Rig, tmp_path: Any) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    deployment = {**engine.config["deployments"]["blue"], "tokenizer_dir": str(tmp_path)}
    engine.change(deployments={"blue": deployment})
    url = f"{engine.url}/v1/completions"
    assert httpx.post(url, json={"prompt": "say", "stop_tokens": []}).json()["choices"][0]["text"] == TEXT
    for field, body in (("num_beams", {"num_beams": 2}), ("no_repeat_ngram", {"no_repeat_ngram": 2})):
        answer = httpx.post(url, json={"prompt": "say", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert len(engine.blue.requests) == 1


# The previous SDK sends every field; those that its user did not set are null.
EVERY_FIELD = dict.fromkeys(
    "stream prompt tokens timeout_microseconds max_tokens max_total_tokens min_tokens min_total_tokens n num_beams "
    "length_penalty early_stopping no_repeat_ngram encoder_no_repeat_ngram repetition_penalty "
    "encoder_repetition_penalty frequency_penalty presence_penalty temperature top_k top_p stop stop_tokens seed "
    "token_index_to_replace embedding_to_replace beam_search_type beam_compat_pre_normalization "
    "beam_compat_no_post_normalization bad_words bad_word_tokens include_output_logits include_output_logprobs "
    "forced_output_tokens eos_token response_format soft_prompts position_ids generation_offset model".split()
)


DATA = "data: "


class Classic:
    """`friendli-client` 1.5 at the level of its HTTP requests. `tokens` and `complete` are a stream's events."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._headers = {"authorization": "Bearer flp_x", "content-type": "application/json"}

    def complete(self, **fields: Any) -> Any:
        body = json.dumps({**EVERY_FIELD, **fields})
        return httpx.post(self._url, content=body, headers=self._headers).raise_for_status().json()

    def stream(self, **fields: Any) -> tuple[list[Any], Any]:
        """Each line loses the characters of ``data: `` at both ends; a line with a token is a token's."""
        sampled: list[Any] = []
        body = json.dumps({**EVERY_FIELD, "stream": True, **fields})
        with httpx.stream("POST", self._url, content=body, headers=self._headers) as answer:
            lines = [json.loads(line.strip(DATA)) for line in answer.iter_lines() if line]
        *parts, last = lines
        for part in parts:
            assert set(part) == {"event", "index", "text", "token"}
            assert part["event"] == "token_sampled"
            assert isinstance(part["token"], int)
            sampled.append(part)
        assert last["event"] == "complete"
        assert "token" not in last
        assert set(last["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
        return sampled, last


@pytest.fixture(params=["/v1/completions", "/serverless/v1/completions", "/dedicated/v1/completions"])
def classic(request: pytest.FixtureRequest, engine: Rig) -> Classic:
    return Classic(f"{engine.url}{request.param}")


def test_the_previous_sdk_completes(classic: Classic, engine: Rig) -> None:
    answer = classic.complete(prompt="say", max_tokens=50, seed=[7, 9], n=2)
    assert [(choice["seed"], choice["text"], choice["tokens"]) for choice in answer["choices"]] == [
        (7, TEXT, IDS),
        (9, TEXT, IDS),
    ]
    assert engine.blue.requests[-1]["seeds"] == [7, 9]
    answer = classic.complete(prompt="say", seed=[7], include_output_logprobs=True)
    assert answer["choices"][0]["logprobs"] == [-0.5 - position for position, _ in enumerate(IDS)]


@pytest.mark.parametrize("n", [None, 2])
def test_the_previous_sdk_streams(classic: Classic, n: int | None) -> None:
    sampled, complete = classic.stream(prompt="say", n=n, seed=None)
    for choice in complete["choices"]:
        own = [part for part in sampled if part["index"] == choice["index"]]
        assert [part["token"] for part in own] == choice["tokens"] == IDS
        assert "".join(part["text"] for part in own) == choice["text"] == TEXT
        assert set(choice) == {"index", "seed", "text", "tokens"}
    assert len(complete["choices"]) == (n or 1)
    assert complete["usage"]["completion_tokens"] == (n or 1) * len(IDS)


def test_the_previous_sdk_chats(engine: Rig) -> None:
    engine.blue.answer = chat
    body = {
        "messages": [{"role": "user", "content": "hi", "name": None}],
        "stream": False,
        "max_tokens": None,
        "n": None,
        "temperature": None,
        "timeout_microseconds": None,
        "tools": None,
        "tool_choice": "auto",
        "model": "chat",
    }
    answer = httpx.post(f"{engine.url}/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello blue-model"
    assert engine.blue.requests[-1] == {
        "model": "blue-model",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": False,
        "temperature": 1.0,
    }


def test_openais_sdk_on_the_same_path_is_unaffected(engine: Rig) -> None:
    with OpenAI(base_url=f"{engine.url}/v1", api_key="flp_x", max_retries=0) as sdk:
        headers = {"x-friendli-team": "t"}
        whole = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
        engine.blue.answer = lambda body: JSONResponse(whole)
        sdk.completions.create(model="chat", prompt="say", max_tokens=5, extra_headers=headers)
    assert engine.blue.requests == [{"model": "blue-model", "prompt": "say", "max_tokens": 5}]


def test_openais_sdk_on_friendlis_mount(engine: Rig) -> None:
    with OpenAI(base_url=f"{engine.url}/serverless/v1", api_key="flp_x", max_retries=0) as client:
        sdk: Any = client
        answer = sdk.completions.create(model="chat", prompt="say", extra_body={"no_repeat_ngram": 3})
        assert (answer.choices[0].text, answer.choices[0].seed) == (TEXT, engine.blue.requests[-1]["seed"])
        chunks = list(sdk.completions.create(model="chat", prompt="say", stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
        engine.blue.answer = chat
        result = sdk.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hi"}])
        assert result.choices[0].message.content == "Hello blue-model"
        assert [model.id for model in sdk.models.list()][:2] == ["chat", "embed"]


HI: Any = [{"role": "user", "content": "hi"}]

FINISHED: dict[str, Any] = {
    "status": "completed",
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    },
}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
}


def respond(body: dict[str, Any]) -> Response:
    """A response, as vLLM sends it."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", **FINISHED, "output": [SAID]}
    if not body.get("stream"):
        return JSONResponse(response)
    about = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", **about, "item": {**SAID, "content": []}},
        {"type": "response.output_text.delta", **about, "delta": "Hello", "logprobs": []},
        {"type": "response.output_item.done", **about, "item": SAID},
        {"type": "response.completed", "response": response},
    ]
    return response_of(events)


def reply(body: dict[str, Any]) -> Response:
    """A message, as vLLM sends it in Anthropic's format."""
    return message_with(body, {"type": "text", "text": "Hello"})


@KINDS
def test_the_sdk_creates_responses(friendli: Any, engine: Rig, kind: str) -> None:
    engine.blue.answer = respond
    fields = {"model": "chat", "input_": "hi", "retries": None, "server_url": engine.url}
    ask_for = getattr(friendli, kind).responses.responses
    answer = ask_for(**fields)
    assert (answer.output[0].content[0].text, answer.usage.output_tokens) == ("Hello", 3)
    with ask_for(**fields, stream=True) as events:
        result = [event.data for event in events]
    assert [event.delta for event in result if event.TYPE == "response.output_text.delta"] == ["Hello"]
    assert result[-1].response.status == "completed"
    assert engine.blue.paths == ["/v1/responses"] * 2
    with pytest.raises(SDKError, match="unsupported_parameter") as raised:
        ask_for(**fields, additional_properties={"conversation": "c"})
    assert raised.value.status_code == 400


@KINDS
def test_the_sdk_sends_messages(friendli: Any, engine: Rig, kind: str) -> None:
    engine.blue.answer = reply
    fields = {"model": "chat", "messages": HI, "max_tokens": 5, "retries": None, "server_url": engine.url}
    ask_for = getattr(friendli, kind).messages.messages
    answer = ask_for(**fields, thinking={"type": "disabled"})
    assert (answer.content[0].text, answer.usage.output_tokens) == ("Hello", 3)
    with ask_for(**fields, stream=True) as events:
        result = [event.data for event in events]
    assert [event.delta.text for event in result if event.TYPE == "content_block_delta"] == ["Hello"]
    assert result[-1].TYPE == "message_stop"
    assert engine.blue.paths == ["/v1/messages"] * 2
    with pytest.raises(SDKError, match="invalid_request_error") as raised:
        ask_for(**{**fields, "max_tokens": 0, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert raised.value.status_code == 400


@pytest.mark.parametrize("kind", ["serverless", "dedicated"])
def test_messages_and_responses_to_a_deployment_of_an_endpoint(friendli: Any, engine: Rig, kind: str) -> None:
    engine.green.answer = reply
    sdk = getattr(friendli, kind)
    sdk.messages.messages(model="chat:green", messages=HI, max_tokens=5, retries=None)
    engine.green.answer = respond
    sdk.responses.responses(model="chat:green", input_="hi", retries=None)
    assert engine.green.paths == ["/v1/messages", "/v1/responses"]


@KINDS
def test_the_sdk_chats(friendli: Any, engine: Rig, kind: str) -> None:
    engine.blue.answer = chat
    fields = {"model": "chat", "messages": HI, "retries": None, "server_url": engine.url}
    answer = getattr(friendli, kind).chat.complete(**fields)
    assert answer.choices[0].message.content == "Hello blue-model"
    with getattr(friendli, kind).chat.complete(**fields, stream=True, seed=2**64 - 2) as events:
        chunks = [event.data for event in events]
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello blue-model"
    assert engine.blue.requests[-1]["seed"] == -2
    with pytest.raises(SDKError, match="parse_reasoning"):
        getattr(friendli, kind).chat.complete(**fields, parse_reasoning=False)


def test_a_chat_with_seeds_of_its_own_for_each_choice(friendli: Any, engine: Rig) -> None:
    engine.blue.answer = chat
    answer = friendli.serverless.chat.complete(model="chat", messages=HI, n=2, seed=[4, 2], retries=None)
    assert [choice.message.content for choice in answer.choices] == ["Hello blue-model"] * 2
    assert sorted(body["seed"] for body in engine.blue.requests) == [2, 4]
    assert answer.usage.completion_tokens == 6


def test_the_sdk_tokenizes_and_detokenizes(friendli: Any, engine: Rig) -> None:
    for kind in (friendli.serverless, friendli.dedicated):
        assert kind.token.tokenize(model="chat", prompt=TEXT, retries=None).tokens == IDS
        assert kind.token.detokenize(model="chat", tokens=IDS, retries=None).text == TEXT
    container = friendli.container.token
    assert container.tokenize(prompt=TEXT, server_url=engine.url, retries=None).tokens == IDS
    assert container.detokenize(tokens=[*IDS, 0], server_url=engine.url).text == f"{TEXT}<|end|>"
    with pytest.raises(SDKError, match="tokens"):
        friendli.serverless.token.detokenize(model="chat", tokens=[10**6], retries=None)
    assert engine.blue.requests == []


def test_a_rendered_conversation(friendli: Any, engine: Rig) -> None:
    engine.blue.answer = lambda body: JSONResponse({"token_ids": [0, *IDS]})
    assert friendli.serverless.chat_render.render(model="chat", messages=HI, retries=None).text == f"<|end|>{TEXT}"
    assert engine.blue.paths == ["/v1/chat/completions/render"]


def test_the_sdk_embeds(friendli: Any, engine: Rig) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
    answer = {"id": "e", "object": "list", "created": 1, "model": "m", "data": data}
    usage = {"prompt_tokens": 2, "total_tokens": 2, "completion_tokens": 0}
    engine.mini.answer = lambda body: JSONResponse({**answer, "usage": usage})
    result = friendli.dedicated.embeddings.embeddings(model="embed", tokens=[5, 6], retries=None)
    assert result.data[0].embedding == [0.5, 0.25]
    assert result.usage.completion_tokens == 0
    assert engine.mini.requests[-1]["input"] == [[5, 6]]


def test_the_model_list_has_the_endpoints_and_their_deployments(friendli: Any) -> None:
    models = friendli.serverless.model.models(retries=None).data
    modes = {model.id: model.mode for model in models}
    assert modes == {
        "chat": "chat",
        "embed": "embedding",
        "chat:blue": "chat",
        "chat:green": "chat",
        "embed:mini": "embedding",
    }
    assert all(model.created for model in models)


def test_an_unknown_deployment_is_named_in_the_field_that_names_it(engine: Rig) -> None:
    body = {"model": "chat:nope", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{engine.url}/dedicated/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (404, "model")
    assert "'nope'" in error["message"]
    assert "header" not in error["message"]
