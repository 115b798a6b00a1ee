"""The other routes of vLLM and TEI, against the real router and a fake engine."""

from base64 import b64decode
from importlib.metadata import version
from math import hypot
from operator import mul
from struct import unpack
from typing import Any

import cohere
import httpx
import pytest
from huggingface_hub import InferenceClient
from starlette.responses import JSONResponse, Response

from tests.router.conftest import Rig
from tests.support.clients.samples import tokenizer
from tests.support.engine.fake_engine import refuse, stream
from tests.support.waiting import wait_until

VECTORS = [[0.5, -1.0, 0.0, -0.25, 1.0, 1.0, -1.0, 1.0], [-1.0] * 7 + [1.0]]
USAGE = {"prompt_tokens": 40, "total_tokens": 40}


def vectors(body: dict[str, Any]) -> Response:
    """vLLM's answer at `/v1/embeddings`, the last text first: clients read the indices."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"object": "embedding", "index": n, "embedding": VECTORS[n]} for n in range(len(texts))]
    return JSONResponse({"id": "e-1", "object": "list", "model": "m", "data": data[::-1], "usage": USAGE})


def ranked(body: dict[str, Any]) -> Response:
    """vLLM's answer at `/v1/rerank`; later documents score higher."""
    results = [{"index": n, "relevance_score": n / 10} for n in reversed(range(len(body["documents"])))]
    return JSONResponse({"id": "r", "model": "m", "usage": USAGE, "results": results})


@pytest.fixture
def embedding(rig: Rig) -> Rig:
    deployments = rig.config["deployments"]
    tasks = ["embeddings", "rerank", "classify"]
    rig.change(
        endpoints={**rig.config["endpoints"], "embed": {"tasks": tasks, "traffic": {"mini": 100}}},
        deployments={**deployments, "mini": {**deployments["mini"], "tasks": tasks}},
        defaults={"embeddings": "embed", "rerank": "embed", "classify": "embed", "completions": "chat"},
    )
    rig.mini.answer = lambda body: (ranked if "query" in body else vectors)(body)
    return rig


LABELS = ["glad", "sad"]
CARD = {"tokenizer": tokenizer().to_str(), "eos_token_ids": [], "max_model_len": 100, "labels": LABELS}


def classes(body: dict[str, Any]) -> Response:
    """vLLM's answer at `/classify`, the last text first; later texts are gladder."""
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    data = [{"index": n, "label": LABELS[n == 0], "probs": [n, 1 - n], "num_classes": 2} for n in range(len(texts))]
    return JSONResponse({"id": "c", "object": "list", "created": 1, "model": "m", "data": data[::-1], "usage": USAGE})


@pytest.fixture
def classifying(embedding: Rig) -> Rig:
    """A deployment with two classes, whose endpoint `mood` has no other task."""
    embedding.change(
        endpoints={**embedding.config["endpoints"], "mood": {"tasks": ["classify"], "traffic": {"mini": 100}}}
    )
    embedding.mini.answer, embedding.mini.card = classes, CARD
    return embedding


def test_coheres_client_embeds_texts_in_every_form(embedding: Rig) -> None:
    client = cohere.ClientV2(api_key="k", base_url=embedding.url)
    forms: list[Any] = ["float", "base64", "binary", "ubinary"]
    fields: dict[str, Any] = {"model": "embed", "input_type": "search_query", "output_dimension": 8}
    answer = client.embed(texts=["a", "b"], embedding_types=forms, truncate="START", max_tokens=3, **fields)
    assert answer.embeddings.float_ == VECTORS
    assert [list(unpack("<8f", b64decode(text))) for text in answer.embeddings.base64 or ()] == VECTORS
    assert answer.embeddings.ubinary == [[0b10101101], [0b00000001]]
    assert answer.embeddings.binary == [[0b10101101 - 128], [1 - 128]]
    assert answer.meta is not None
    assert answer.meta.billed_units is not None
    assert (answer.texts, answer.meta.billed_units.input_tokens) == (["a", "b"], 40)
    sent = {"model": "mini-model", "input": ["a", "b"], "dimensions": 8}
    assert embedding.mini.requests == [{**sent, "truncate_prompt_tokens": 3, "truncation_side": "left"}]
    assert embedding.mini.paths == ["/v1/embeddings"]


def test_coheres_inputs_are_texts_too(embedding: Rig) -> None:
    client = cohere.ClientV2(api_key="k", base_url=embedding.url)
    parts = [[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], [{"type": "text", "text": "c"}]]
    inputs: Any = [{"content": content} for content in parts]
    answer = client.embed(model="embed", input_type="classification", inputs=inputs, embedding_types=["int8", "uint8"])
    assert embedding.mini.requests[-1]["input"] == ["a\nb", "c"]
    expected = [[max(-128, min(127, round(number * 127))) for number in vector] for vector in VECTORS]
    assert answer.embeddings.int8 == expected
    assert answer.embeddings.uint8 == [[number + 128 for number in vector] for vector in expected]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"images": ["data:image/png;base64,AA=="]}, "images: only texts"),
        (
            {"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]},
            "inputs[0].content[0]: images are not embedded here",
        ),
        ({"inputs": [{"content": "a"}]}, "inputs[0].content: "),
        ({"inputs": [{"content": [{"type": "text", "txet": "a"}]}]}, "inputs[0].content[0].txet: unknown field"),
        ({"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]}, "inputs: not together"),
        ({"inputs": []}, "inputs: must be given"),
        ({}, "texts: must be given"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "embedding_types[0]: Input should be 'float', 'int8'"),
    ],
)
def test_what_coheres_route_does_not_embed_is_named(embedding: Rig, fields: dict[str, Any], told: str) -> None:
    answer = httpx.post(f"{embedding.url}/v2/embed", json={"model": "embed", **fields})
    assert (answer.status_code, answer.json()["message"][: len(told)]) == (400, told)
    assert embedding.mini.requests == []


def test_coheres_first_version_has_a_list_or_vectors_by_type(embedding: Rig) -> None:
    fields = {"model": "embed", "texts": ["a", "b"], "input_type": "search_query"}
    plain = httpx.post(f"{embedding.url}/v1/embed", json=fields).json()
    assert (plain["response_type"], plain["embeddings"]) == ("embeddings_floats", VECTORS)
    typed = httpx.post(f"{embedding.url}/v1/embed", json={**fields, "embedding_types": ["float"]}).json()
    assert (typed["response_type"], typed["embeddings"]) == ("embeddings_by_type", {"float": VECTORS})
    assert plain["meta"]["api_version"] == typed["meta"]["api_version"] == {"version": "1"}


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
def test_an_input_type_is_one_of_coheres(embedding: Rig, path: str) -> None:
    answer = httpx.post(embedding.url + path, json={"model": "embed", "texts": ["a"], "input_type": "serch_query"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input_type")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/openai/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}),
        ("/openai/completions", {"model": "chat", "prompt": "hi"}),
        ("/openai/embeddings", {"model": "embed", "input": "a"}),
    ],
)
def test_azures_base_without_the_version_is_served(embedding: Rig, path: str, body: dict[str, Any]) -> None:
    assert httpx.post(embedding.url + path, params={"api-version": "v1"}, json=body).status_code == 200


def test_coheres_client_reads_which_field_is_wrong(embedding: Rig) -> None:
    client = cohere.ClientV2(api_key="k", base_url=embedding.url)
    with pytest.raises(cohere.BadRequestError) as raised:
        client.embed(model="embed", input_type="image", images=["data:image/png;base64,AA=="])
    assert raised.value.body["message"].startswith("images: only texts")
    embedding.mini.answer = refuse(400, "This model's maximum context length is 256 tokens.", param="input")
    with pytest.raises(cohere.BadRequestError) as raised:
        client.embed(model="embed", input_type="search_query", texts=["a"], truncate="NONE")
    assert raised.value.body["error"]["param"] == "texts"


def test_hugging_faces_client_embeds_at_an_endpoints_url(embedding: Rig) -> None:
    for url in (f"{embedding.url}/tgi/embed", f"{embedding.url}/embed", f"{embedding.url}/tgi/embed/embed"):
        client = InferenceClient(model=url, provider="hf-inference")
        assert client.feature_extraction(["a", "b"]).tolist() == VECTORS
        assert client.feature_extraction("a", normalize=False, truncate=True).tolist() == VECTORS[:1]
        assert embedding.mini.requests[-1] == {
            "model": "mini-model",
            "input": "a",
            "use_activation": False,
            "truncate_prompt_tokens": -1,
            "truncation_side": "right",
        }


@pytest.mark.parametrize("tasks", [["embeddings"], ["rerank"], ["embeddings", "rerank"]])
def test_an_endpoint_for_texts_answers_teis_questions(embedding: Rig, tasks: list[str]) -> None:
    embedding.change(endpoints={"texts": {"tasks": tasks, "traffic": {"mini": 100}}})
    url = f"{embedding.url}/tgi/texts"
    client = InferenceClient(model=url, provider="hf-inference")
    assert client.health_check(model=url)
    info = client.get_endpoint_info(model=url)
    kind = "embedding" if "embeddings" in tasks else "reranker"
    assert (info["model_id"], list(info["model_type"])) == ("mini", [kind])
    assert [httpx.get(url + path).status_code for path in ("", "/health", "/ping", "/info")] == [200] * 4
    assert httpx.get(f"{embedding.url}/endpoints/texts/info").json() == info
    embedding.mini.healthy = False
    wait_until(lambda: not client.health_check(model=url))


def test_a_server_for_texts_alone_answers_teis_questions_at_its_base(embedding: Rig) -> None:
    del embedding.config["defaults"]["completions"]
    embedding.change()
    for path in ("/tgi", "/tgi/health", "/tgi/ping", "/tgi/info"):
        assert httpx.get(embedding.url + path).status_code == 200, path
    assert httpx.get(f"{embedding.url}/info").json()["model_type"] == {"embedding": {"pooling": None}}


@pytest.mark.parametrize("path", ["/rerank", "/tgi/embed/rerank"])
def test_texts_are_ranked_in_teis_form(embedding: Rig, path: str) -> None:
    body: dict[str, Any] = {"query": "q", "texts": ["a", "b"], "raw_scores": True, "return_text": True}
    answer = httpx.post(embedding.url + path, json=body)
    assert answer.json() == [{"index": 1, "text": "b", "score": 0.1}, {"index": 0, "text": "a", "score": 0.0}]
    assert (answer.headers["azureml-model-deployment"], embedding.mini.paths[-1]) == ("mini", "/v1/rerank")
    sent = {"model": "mini-model", "query": "q", "documents": ["a", "b"], "use_activation": False}
    assert embedding.mini.requests[-1] == sent
    plain = httpx.post(embedding.url + path, json={"query": "q", "texts": ["a"]}).json()
    assert plain == [{"index": 0, "score": 0.0}]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/embed", {"inputs": []}, 422, "`inputs` cannot be empty"),
        ("/embed", {"inputs": ["a", 5]}, 422, "`inputs["),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 422, "`prompt_name`"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 422, "`truncation_direction`"),
        ("/embed", {}, 422, "`inputs`"),
        ("/rerank", {"query": "q", "texts": []}, 422, "`texts` cannot be empty"),
        ("/rerank", {"texts": ["a"]}, 422, "`query`"),
        ("/tgi/chat/embed", {"inputs": "a"}, 422, "does not support embeddings"),
        ("/embed_all", {"inputs": []}, 422, "`inputs` cannot be empty"),
        ("/embed_all", {"inputs": "a", "prompt_name": "query"}, 422, "`prompt_name`"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 422, "`inputs.sentences`"),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, 422, "`inputs.source_sentence`"),
        ("/similarity", {"inputs": "a"}, 422, "`inputs`"),
        ("/predict", {"inputs": []}, 422, "`inputs`"),
        ("/predict", {"inputs": ["a", "b"]}, 422, "for the score of a pair use"),
        ("/predict", {"inputs": [["a", "b"]]}, 422, "for the score of a pair use"),
        ("/predict", {"inputs": "a", "parameters": {"topk": 1}}, 422, "parameters.topk: unknown field; did you mean"),
        ("/tgi/chat/predict", {"inputs": "a"}, 422, "does not support classify"),
    ],
)
def test_teis_errors_name_the_field_in_its_form(
    embedding: Rig, path: str, body: dict[str, Any], status: int, told: str
) -> None:
    answer = httpx.post(embedding.url + path, json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, "validation")
    assert told in answer.json()["error"]
    assert embedding.mini.requests == []


def test_an_engines_refusal_names_teis_field(embedding: Rig) -> None:
    embedding.mini.answer = refuse(400, "input: too long", param="input")
    answer = httpx.post(f"{embedding.url}/embed", json={"inputs": "a"})
    assert (answer.status_code, "inputs: too long" in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_texts_are_classified_as_vllm_does(classifying: Rig, path: str) -> None:
    body = {"model": "mood", "input": ["a", "b"], "use_activation": False, "user": "u"}
    answer = httpx.post(classifying.url + path, json=body)
    assert [(item["index"], item["label"]) for item in answer.json()["data"]] == [(1, "glad"), (0, "sad")]
    assert classifying.mini.paths == ["/classify"]
    assert classifying.mini.requests == [{"model": "mini-model", "input": ["a", "b"], "use_activation": False}]
    wrong = httpx.post(classifying.url + path, json={"model": "chat", "input": "a"}).json()["error"]
    assert wrong["message"].startswith("model: endpoint 'chat' does not support classify")


def test_a_text_gets_every_class_in_teis_form(classifying: Rig) -> None:
    for path in ("/predict", "/tgi/mood/predict", "/tgi/mood"):
        answer = httpx.post(classifying.url + path, json={"inputs": "a", "raw_scores": True, "truncate": True})
        assert answer.json() == [{"score": 1, "label": "sad"}, {"score": 0, "label": "glad"}], path
        assert classifying.mini.requests[-1] == {
            "model": "mini-model",
            "input": ["a"],
            "use_activation": False,
            "truncate_prompt_tokens": -1,
            "truncation_side": "right",
        }
    batch = httpx.post(f"{classifying.url}/predict", json={"inputs": [["a"], ["b"]]}).json()
    assert [scores[0]["label"] for scores in batch] == ["sad", "glad"]


def test_hugging_faces_client_classifies_at_an_endpoints_url(classifying: Rig) -> None:
    client = InferenceClient(model=f"{classifying.url}/tgi/mood", provider="hf-inference")
    assert [(item.label, item.score) for item in client.text_classification("a")] == [("sad", 1), ("glad", 0)]
    (best,) = client.text_classification("a", top_k=1, function_to_apply="none")
    assert (best.label, classifying.mini.requests[-1]["use_activation"]) == ("sad", False)
    info = client.get_endpoint_info(model=f"{classifying.url}/tgi/mood")
    assert list(info["model_type"]) == ["classifier"]


def test_classes_without_names_have_hugging_faces(classifying: Rig) -> None:
    classifying.mini.card = {name: value for name, value in CARD.items() if name != "labels"}
    answer = httpx.post(f"{classifying.url}/predict", json={"inputs": "a"}).json()
    assert [item["label"] for item in answer] == ["LABEL_1", "LABEL_0"]


@pytest.mark.parametrize("path", ["/similarity", "/tgi/embed/similarity", "/tgi/embed"])
def test_similar_sentences_have_the_cosine_of_their_vectors(embedding: Rig, path: str) -> None:
    client = InferenceClient(model=embedding.url + path, provider="hf-inference")
    one, other = VECTORS
    cosine = sum(map(mul, one, other)) / hypot(*one) / hypot(*other)
    assert client.sentence_similarity("a", other_sentences=["b"]) == [pytest.approx(cosine)]
    assert embedding.mini.requests == [{"model": "mini-model", "input": ["a", "b"]}]
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"truncate": True}}
    assert httpx.post(embedding.url + path, json=body).status_code == 200
    assert embedding.mini.requests[-1]["truncate_prompt_tokens"] == -1


def test_every_token_has_a_vector_in_teis_form(embedding: Rig) -> None:
    data = [{"index": n, "object": "pooling", "data": [[float(n)], [1.0]]} for n in (1, 0)]
    embedding.mini.answer = lambda body: JSONResponse({"id": "p", "object": "list", "data": data, "usage": USAGE})
    answer = httpx.post(f"{embedding.url}/embed_all", json={"inputs": ["a", "b"]})
    assert answer.json() == [[[0.0], [1.0]], [[1.0], [1.0]]]
    assert embedding.mini.paths == ["/pooling"]
    assert embedding.mini.requests == [{"model": "mini-model", "input": ["a", "b"], "task": "token_embed"}]


def test_the_versions_are_the_engines_and_this_servers(embedding: Rig) -> None:
    for query in ({}, {"model": "embed"}, {"model": "mini"}):
        answer = httpx.get(f"{embedding.url}/version", params=query)
        assert (answer.status_code, answer.json()["version"]) == (200, "0.29.0")
        assert answer.json()["switchyard"] == version("switchyard")
    assert httpx.get(f"{embedding.url}/version", params={"model": "nope"}).status_code == 404


def test_a_tokenizers_settings_come_from_the_engine_if_it_shows_them(embedding: Rig) -> None:
    asked = {"model": "embed"}
    refused = httpx.get(f"{embedding.url}/tokenizer_info", params=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "unsupported_route")
    assert "enable_tokenizer_info_endpoint: true" in refused.json()["error"]["message"]
    embedding.mini.tokenizer = {"tokenizer_class": "T", "eos_token": "</s>"}
    wait_until(lambda: httpx.get(f"{embedding.url}/tokenizer_info", params=asked).json() == embedding.mini.tokenizer)


def test_the_load_is_the_number_of_requests_under_way(embedding: Rig) -> None:
    def waits(body: dict[str, Any]) -> Response:
        return stream([b": \n\n", *[0.05] * 400])

    def load(**query: str) -> Any:
        return httpx.get(f"{embedding.url}/load", params=query).json()

    assert load() == {"server_load": 0}
    embedding.blue.answer = embedding.green.answer = waits
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with httpx.stream("POST", f"{embedding.url}/v1/chat/completions", json=body):
        wait_until(lambda: load() == {"server_load": 1})
        assert load(model="chat") == {"server_load": 1}
        assert load(model="blue")["server_load"] + load(model="green")["server_load"] == 1
        assert load(model="embed") == {"server_load": 0}
    wait_until(lambda: load() == {"server_load": 0})
    assert httpx.get(f"{embedding.url}/load", params={"model": "nope"}).status_code == 404


def test_pooling_and_detokenize_are_vllms(embedding: Rig) -> None:
    pooled = {"id": "p", "object": "list", "data": [{"index": 0, "object": "pooling", "data": [[0.5], [1.0]]}]}
    embedding.mini.answer = lambda body: JSONResponse({**pooled, "usage": USAGE})
    body: dict[str, Any] = {"model": "embed", "input": "a", "task": "token_embed"}
    answer = httpx.post(f"{embedding.url}/pooling", json=body)
    assert answer.json().get("data") == pooled["data"], answer.text
    assert (embedding.mini.paths, embedding.mini.requests) == (["/pooling"], [{**body, "model": "mini-model"}])
    wrong = httpx.post(f"{embedding.url}/pooling", json={**body, "task": "classify"}).json()["error"]
    assert wrong["param"] == "task"
    assert wrong["message"].startswith("task: takes 'embed', a vector for each text, or 'token_embed'")
    assert wrong["message"].endswith("for classes use POST /classify")
    embedding.blue.answer = lambda body: JSONResponse({"prompt": "hi"})
    answer = httpx.post(f"{embedding.url}/detokenize", json={"model": "chat", "tokens": [1, 2]})
    assert (answer.json(), embedding.blue.paths) == ({"prompt": "hi"}, ["/detokenize"])
    assert embedding.blue.requests == [{"model": "blue-model", "tokens": [1, 2]}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/embed", {"model": "embed", "texts": ["word " * 4000]}),
        ("/embed", {"inputs": "word " * 4000}),
        ("/rerank", {"query": "q", "texts": ["word " * 4000]}),
        ("/pooling", {"model": "embed", "input": "word " * 4000}),
        ("/classify", {"model": "embed", "input": "word " * 4000}),
        ("/predict", {"inputs": "word " * 4000}),
        ("/embed_all", {"inputs": "word " * 4000}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["word " * 4000]}}),
    ],
)
def test_their_tokens_count_for_the_limits(embedding: Rig, path: str, body: dict[str, Any]) -> None:
    embedding.change(access={"limits": {"default": {"tokens_per_minute": 1000}}})
    answer = httpx.post(embedding.url + path, json=body)
    assert (answer.status_code, embedding.mini.requests) == (413, [])  # more than a minute has
