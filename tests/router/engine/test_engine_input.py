"""What may pass to an engine: parameters that only the operator opens to callers, token ids, and costs."""

from typing import Any

import httpx
import pytest

from app.config.schema import ENGINE_PARAMS
from app.dialects.base import EngineRequest
from app.errors import BadRequest
from app.exchange.engine_input import TOKENIZER_ARGUMENTS, check_vectors, has_many_vectors
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import refuse

CHAT: dict[str, Any] = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
AZURE = {"extra-parameters": "pass-through"}
WAYS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "openai, chat": ("/v1/chat/completions", CHAT, {}),
    "openai, completions": ("/v1/completions", {"model": "chat", "prompt": "hi"}, {}),
    "openai, responses": ("/v1/responses", {"model": "chat", "input": "hi"}, {}),
    "openai, a deployment": ("/v1/chat/completions", {**CHAT, "model": "blue"}, {}),
    "anthropic": ("/v1/messages", CHAT, {}),
    "azure": ("/models/chat/completions?api-version=2024-05-01-preview", CHAT, AZURE),
    "azure, an endpoint": ("/endpoints/chat/chat/completions?api-version=2024-05-01-preview", CHAT, AZURE),
    "databricks": ("/serving-endpoints/chat/invocations", CHAT, {}),
    "databricks, at openai's path": ("/serving-endpoints/chat/completions", CHAT, {}),
    "tgi": ("/tgi/v1/chat/completions", CHAT, {}),
    "friendli": ("/serverless/v1/chat/completions", CHAT, {}),
    "sagemaker": ("/invocations", CHAT, {}),
    "openai, embeddings": ("/v1/embeddings", {"model": "embed", "input": "hi"}, {}),
    "openai, score": ("/score", {"model": "embed", "queries": "hi", "documents": "hi"}, {}),
}
POOLING = {"embeddings": "openai, embeddings", "rerank": "openai, score"}
PARAMETERS: tuple[str, ...] = ENGINE_PARAMS


def post(rig: Rig, way: str, **fields: Any) -> httpx.Response:
    path, body, headers = WAYS[way]
    return httpx.post(rig.url + path, json={**body, **fields}, headers=headers)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    """A rig with reranking at the embeddings endpoint."""
    tasks = list(POOLING)
    endpoints, deployments = rig.config["endpoints"], rig.config["deployments"]
    rig.change(
        endpoints={"embed": {**endpoints["embed"], "tasks": tasks}},
        deployments={"mini": {**deployments["mini"], "tasks": tasks}},
    )
    return rig


def sent(rig: Rig) -> list[dict[str, Any]]:
    """The requests that the deployments got."""
    return [*rig.blue.requests, *rig.mini.requests]


@pytest.mark.parametrize("way", sorted(WAYS))
def test_no_dialect_passes_a_parameter_that_the_endpoint_does_not_allow(rig: Rig, way: str) -> None:
    value = {"remote_host": "h"}
    for name in PARAMETERS:
        for fields in ({name: value}, {"vllm_xargs": {name: value}}, {"extra_params": f'{{"{name}": {{}}}}'}):
            answer = post(rig, way, **fields)
            assert not any(name in {*body, *body.get("vllm_xargs", {})} for body in sent(rig))
            assert answer.status_code in (200, 400, 422)


def test_a_parameter_that_is_not_allowed_is_rejected_by_name(rig: Rig) -> None:
    for fields, param in (
        ({"kv_transfer_params": {}}, "kv_transfer_params"),
        ({"priority": 0}, "priority"),
        ({"vllm_xargs": {"ec_transfer_params": "x"}}, "vllm_xargs.ec_transfer_params"),
    ):
        answer = post(rig, "openai, chat", **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "kv_transfer_params" in post(rig, "anthropic", kv_transfer_params={}).json()["error"]["message"]
    assert "priority" in post(rig, "azure", priority=1).text
    for way in POOLING.values():
        answer = post(rig, way, priority=0)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")
    assert sent(rig) == []


def test_the_operator_allows_parameters_per_endpoint(rig: Rig) -> None:
    rig.chat_endpoint(allow_engine_params=["priority"])
    assert post(rig, "openai, chat", priority=3).status_code == 200
    assert post(rig, "openai, a deployment", priority=4).status_code == 200
    assert [request["priority"] for request in rig.blue.requests] == [3, 4]
    assert post(rig, "openai, chat", kv_transfer_params={}).status_code == 400


def test_allowed_transfer_parameters_reach_the_engine_as_they_are(rig: Rig) -> None:
    rig.chat_endpoint(allow_engine_params=["kv_transfer_params", "ec_transfer_params"])
    value = {"remote_host": "h", "remote_block_ids": [1, 2]}
    for name in ("kv_transfer_params", "ec_transfer_params"):
        assert post(rig, "openai, chat", **{name: value}).status_code == 200
        assert rig.blue.requests[-1][name] == value
    assert post(rig, "openai, chat", priority=1).status_code == 400


TOKEN_IDS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids", "logit_bias")
ONE_HASH = [number * (2**61 - 1) + 5 for number in (1, 2, 3)]


def as_field(name: str, ids: list[Any]) -> Any:
    return {str(token_id): 1 for token_id in ids} if name == "logit_bias" else ids


@pytest.mark.parametrize("way", sorted(way for way in WAYS if WAYS[way][1]["model"] != "embed"))
@pytest.mark.parametrize("name", TOKEN_IDS)
def test_no_dialect_passes_integers_that_are_no_token_ids(rig: Rig, way: str, name: str) -> None:
    for ids in (ONE_HASH, [-1], [2**31], [5] * 3 + [10**30]):
        answer = post(rig, way, **{name: as_field(name, ids)})
        assert not any(name in body for body in sent(rig))
        assert answer.status_code in (200, 400, 422)


@pytest.mark.parametrize("name", TOKEN_IDS)
def test_values_that_are_no_token_ids_are_rejected_by_name(rig: Rig, name: str) -> None:
    rig.chat_endpoint(allow_engine_params=["logprob_token_ids"])
    for ids in (ONE_HASH, [str(2**62)], ["5 "], [""]):
        answer = post(rig, "openai, chat", **{name: as_field(name, ids)})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert "0 to 2147483647" in answer.json()["error"]["message"]
    assert sent(rig) == []


def test_a_request_has_as_many_token_ids_as_an_engine_bears(rig: Rig) -> None:
    for name, most in (("stop_token_ids", 4096), ("logit_bias", 4096)):
        assert post(rig, "openai, chat", **{name: as_field(name, [*range(most), 2**31 - 1][1:])}).status_code == 200
        answer = post(rig, "openai, chat", **{name: as_field(name, list(range(most + 1)))})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert f"at most {most} are allowed" in answer.json()["error"]["message"]


@pytest.mark.parametrize("way", sorted(way for way in WAYS if WAYS[way][1]["model"] != "embed"))
def test_no_dialect_has_an_engine_compare_long_patterns(rig: Rig, way: str) -> None:
    """At 8,000 tokens of an answer each further one would take it 0.8 s, for which all answers wait."""
    for size, count in ((10**9, 2), (2, 10**9), (257, 2), (1e9, 2), ("1000000", 2), (10**9, "2")):
        answer = post(rig, way, repetition_detection={"max_pattern_size": size, "min_count": count})
        assert not any("repetition_detection" in body for body in sent(rig))
        assert answer.status_code in (200, 400, 422)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"max_pattern_size": 100, "min_count": 6}, "repetition_detection"),
        ({"max_pattern_size": "5", "min_count": 3}, "repetition_detection.max_pattern_size"),
        ({"max_pattern_size": 5, "min_count": 3.0}, "repetition_detection.min_count"),
    ],
)
def test_a_pattern_that_is_too_long_is_rejected_by_name(rig: Rig, given: dict[str, Any], param: str) -> None:
    answer = post(rig, "openai, chat", repetition_detection=given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    for fits in (None, {}, {"max_pattern_size": 0}, {"max_pattern_size": 20, "min_pattern_size": 1, "min_count": 4}):
        assert post(rig, "openai, chat", repetition_detection=fits).status_code == 200


@pytest.mark.parametrize("way", sorted(WAYS))
@pytest.mark.parametrize("name", sorted(TOKENIZER_ARGUMENTS))
def test_no_dialect_passes_arguments_of_the_tokenizer_as_variables_of_a_template(rig: Rig, way: str, name: str) -> None:
    """`padding` and `max_length` make a prompt as long as they say, with `return_assistant_tokens_mask`."""
    answer = post(rig, way, chat_template_kwargs={name: 10**9}, return_assistant_tokens_mask=True)
    assert not any("chat_template_kwargs" in body for body in sent(rig))
    assert answer.status_code in (200, 400, 422)


def test_an_argument_of_the_tokenizer_is_rejected_by_name(rig: Rig) -> None:
    for way in ("openai, chat", "openai, responses"):
        answer = post(rig, way, chat_template_kwargs={"enable_thinking": True, "max_length": 10**9})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs.max_length")
    assert post(rig, "openai, chat", chat_template_kwargs={"enable_thinking": True}).status_code == 200
    path, messages = "/tokenize", [{"role": "user", "content": "hi"}]
    body = {"model": "chat", "messages": messages, "chat_template_kwargs": {"padding": "max_length"}}
    assert httpx.post(rig.url + path, json=body).status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, "allowed_token_ids": [5] * (2**17 + 1)},
        {"n": 17, "logit_bias": as_field("logit_bias", list(range(4096)))},
        {"n": 65, "stop": ["a" * 1024 * 1024]},
    ],
    ids=str.split("allowed biased bytes"),
)
def test_what_each_choice_has_for_itself_is_bounded_for_all_of_them(rig: Rig, fields: dict[str, Any]) -> None:
    for way in ("openai, chat", "openai, completions"):
        answer = post(rig, way, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n"), answer.text
    assert sent(rig) == []
    assert post(rig, "openai, chat", **{**fields, "n": 1, "stop": None}).status_code == 200


def test_a_batch_is_not_padded_to_the_context(rig: Rig) -> None:
    for count, status in ((64, 200), (65, 400)):
        answer = post(rig, "openai, embeddings", input=["a"] * count, padding="max_length")
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("inputs", "encoding", "refused"), [(32, None, False), (33, None, True), (33, "float", True), (33, "base64", False)]
)
def test_few_vectors_are_written_as_text_where_that_holds_the_engine(
    inputs: int, encoding: str | None, refused: bool
) -> None:
    body = {"input": ["a"] * inputs, **({} if encoding is None else {"encoding_format": encoding})}
    if not has_many_vectors(EngineRequest("/pooling", body)):
        assert not refused
        return
    if not refused:
        check_vectors(body, 4096)
        return
    check_vectors(body, None)
    with pytest.raises(BadRequest, match="131072 numbers as text") as raised:
        check_vectors(body, 4096)
    assert raised.value.param == "input"
    assert not has_many_vectors(EngineRequest("/v1/embeddings", body))


def test_an_engines_refusal_of_log_probabilities_names_the_field_that_asked_for_them(rig: Rig) -> None:
    message = "Requested sample logprobs of 20, which is greater than max allowed: 10"
    rig.blue.answer = refuse(400, message, "logprobs")
    answer = post(rig, "openai, chat", logprobs=True, top_logprobs=20)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs"), answer.text
