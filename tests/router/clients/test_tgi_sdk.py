"""Hugging Face's and TGI's own clients, sync and async, against the real router and fake deployments."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import huggingface_hub.errors as hub
import pytest
import text_generation.errors as tgi
from huggingface_hub import AsyncInferenceClient, InferenceClient
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError, OpenAI
from text_generation import AsyncClient, Client

from app.engine.model import Model
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.support.clients.samples import PROCESSORS, tokenizer
from tests.support.engine.fake_engine import CONTEXT, FakeEngine, chat, refuse, speaks, stream
from tests.support.processes.servers import ServerPool
from tests.support.waiting import wait_until

# TGI's own client uses a deprecated pydantic interface.
pytestmark = pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")

TEXT = "hello 日本 😀 there"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's files, as far as the router reads them."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    return folder


@pytest.fixture(scope="module")
def model(files: Path) -> Model:
    return Model.load(files, CONTEXT)


@pytest.fixture
def engine(rig: Rig, files: Path, model: Model) -> Rig:
    """A rig whose blue generates TEXT."""
    for name in ("blue", "green"):
        deployment = {**rig.config["deployments"][name], "tokenizer_dir": str(files)}
        rig.change(deployments={name: deployment})
    rig.change(defaults={"chat": "chat", "completions": "chat"})
    rig.blue.answer = speaks(model, TEXT)
    return rig


MOUNTS = ["", "/tgi", "/tgi/chat"]


@pytest.fixture(params=MOUNTS)
def url(request: pytest.FixtureRequest, engine: Rig) -> str:
    return f"{engine.url}{request.param}"


@pytest.fixture
def hf(url: str) -> Any:
    return InferenceClient(base_url=url)


@pytest.mark.parametrize("details", [False, True])
def test_hugging_faces_client_generates(hf: Any, details: bool) -> None:
    answer = hf.text_generation("say", max_new_tokens=50, details=details)
    if not details:
        assert answer == TEXT
        return
    assert answer.generated_text == TEXT == "".join(token.text for token in answer.details.tokens)
    assert answer.details.finish_reason == "eos_token"
    assert answer.details.generated_tokens == len(answer.details.tokens)
    assert answer.details.prefill == []


@pytest.mark.parametrize("in_one", [False, True])
@pytest.mark.parametrize("details", [False, True])
def test_hugging_faces_client_streams(hf: Any, engine: Rig, model: Model, details: bool, in_one: bool) -> None:
    engine.blue.answer = speaks(model, TEXT, in_one=in_one)
    answer = list(hf.text_generation("say", max_new_tokens=50, details=details, stream=True))
    assert len(answer) == len(model.encode(TEXT))
    if not details:
        assert "".join(answer) == TEXT
        return
    assert "".join(event.token.text for event in answer) == TEXT == answer[-1].generated_text
    assert all(event.generated_text is None and event.details is None for event in answer[:-1])
    assert answer[-1].details.finish_reason == "eos_token"
    assert answer[-1].details.input_length == len(model.encode("say"))


async def test_hugging_faces_async_client(url: str) -> None:
    async with AsyncInferenceClient(base_url=url) as hf:
        assert await hf.text_generation("say", max_new_tokens=50) == TEXT
        answer = [text async for text in await hf.text_generation("say", max_new_tokens=50, stream=True)]
        assert "".join(answer) == TEXT
        events: Any = await hf.text_generation("say", max_new_tokens=50, stream=True, details=True)
        assert [event async for event in events][-1].generated_text == TEXT


@pytest.fixture
def application(engine: Rig) -> Rig:
    """The engine as a model application of this project, which describes its model and has all processors."""
    card = {"tokenizer": tokenizer().to_str(), "eos_token_ids": [0], "max_model_len": CONTEXT}
    engine.blue.card = {**card, "processors": sorted(PROCESSORS)}
    engine.change(deployments={"blue": {**engine.config["deployments"]["blue"], "tokenizer_dir": None}})
    return engine


@pytest.mark.parametrize(
    ("parameters", "name"),
    [({"watermark": True}, "watermark"), ({"typical_p": 0.5}, "typical_p"), ({"temperature": 2.5}, "temperature")],
)
def test_a_parameter_that_needs_a_processor_is_rejected_on_a_plain_server(
    engine: Rig, hf: Any, parameters: dict[str, Any], name: str
) -> None:
    refusal = f"Input validation error: `{name}`: deployment 'blue' is a plain vLLM server"
    with pytest.raises(hub.ValidationError, match=refusal):
        hf.text_generation("say", **parameters)
    with pytest.raises(tgi.ValidationError, match=refusal):
        Client(engine.url).generate("say", **parameters)
    answer = httpx.post(f"{engine.url}/generate", json={"inputs": "say", "parameters": parameters})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert engine.blue.requests == []


def test_a_parameter_without_its_processor_is_rejected(application: Rig) -> None:
    application.blue.card = {**(application.blue.card or {}), "processors": []}
    with pytest.raises(tgi.ValidationError, match="`watermark`: deployment 'blue' runs without the logits processor"):
        Client(application.url).generate("say", watermark=True)
    assert application.blue.requests == []


def test_all_of_hugging_faces_parameters_arrive(application: Rig, hf: Any, engine: Rig) -> None:
    answer = hf.text_generation(
        "say",
        details=True,
        decoder_input_details=True,
        do_sample=True,
        frequency_penalty=0.5,
        grammar={"type": "regex", "value": ".*"},
        max_new_tokens=7,
        repetition_penalty=1.5,
        return_full_text=True,
        seed=2**64 - 2,
        stop=["日"],
        temperature=0.5,
        top_k=5,
        top_n_tokens=2,
        top_p=0.9,
        truncate=2,
        typical_p=0.5,
        watermark=True,
    )
    sent = engine.blue.requests[-1]
    assert sent["max_tokens"] == 7
    assert sent["seed"] == -2
    assert sent["stop"] == ["日"]
    assert sent["structured_outputs"] == {"regex": ".*"}
    assert sent["vllm_xargs"] == {"typical_p": 0.5, "watermark": True}
    assert len(sent["prompt"]) == 2
    assert answer.generated_text == "sayhello 日"
    assert answer.details.finish_reason == "stop_sequence"
    assert answer.details.seed == 2**64 - 2
    assert answer.details.prefill[0].logprob is None
    assert [len(tokens) for tokens in answer.details.top_tokens] == [2] * answer.details.generated_tokens
    both = hf.text_generation("say", details=True, best_of=2, do_sample=True, max_new_tokens=3)
    assert len(both.details.best_of_sequences) == 1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("broken", "status", "error"),
    [
        pytest.param(None, 422, hub.ValidationError, id="validation"),
        pytest.param(refuse(500, "CUDA"), 424, hub.GenerationError, id="generation"),
        pytest.param(refuse(503, "full"), 429, hub.OverloadedError, id="overloaded"),
        pytest.param(refuse(400, "Grammar error: odd"), 422, hub.ValidationError, id="the engine's refusal"),
    ],
)
def test_hugging_faces_client_raises(
    engine: Rig, broken: Any, status: int, error: type[Exception], streamed: bool
) -> None:
    hf: Any = InferenceClient(base_url=f"{engine.url}/tgi")
    engine.chat_endpoint(fallback=[])
    if broken is not None:
        engine.blue.answer = broken
    with pytest.raises(error):
        list(hf.text_generation("say" if broken else "", stream=streamed))
    raw = httpx.post(f"{engine.url}/generate", json={"inputs": "say" if broken else ""})
    assert raw.status_code == status
    assert ("retry-after" in raw.headers) is (status == 429)


@pytest.mark.parametrize("chunks", [[], ['data: {"choices":[]}\n\n']], ids=["at once", "after a chunk"])
def test_an_answer_that_breaks_off_is_incomplete(engine: Rig, model: Model, chunks: list[str]) -> None:
    hf: Any = InferenceClient(base_url=engine.url)
    engine.chat_endpoint(fallback=[])
    whole = speaks(model, TEXT)
    engine.blue.answer = lambda body: stream(chunks) if body["stream"] else whole(body)
    with pytest.raises(hub.IncompleteGenerationError):
        list(hf.text_generation("say", stream=True))


def test_hugging_faces_chat(engine: Rig) -> None:
    engine.blue.answer = chat
    hf: Any = InferenceClient(base_url=f"{engine.url}/tgi/chat")
    answer = hf.chat_completion([{"role": "user", "content": "q"}], max_tokens=5)
    assert answer.choices[0].message.content == "Hello blue-model"
    assert answer.system_fingerprint
    chunks = list(hf.chat_completion([{"role": "user", "content": "q"}], max_tokens=5, stream=True))
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "Hello blue-model"
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    at_root: Any = InferenceClient(base_url=engine.url)
    at_root.chat_completion([{"role": "user", "content": "q"}], response_format=form)
    assert engine.blue.requests[-1]["structured_outputs"] == {"json": schema}
    assert engine.blue.requests[-1]["model"] == "blue-model"


def test_hugging_faces_endpoint_info_and_health(engine: Rig) -> None:
    url = f"{engine.url}/tgi/chat"
    hf = InferenceClient(provider="hf-inference", model=url)
    assert hf.get_endpoint_info(model=url)["max_total_tokens"] == CONTEXT
    for base in ("", "/endpoints/chat"):
        assert hf.get_endpoint_info(model=engine.url + base)["model_id"] == "blue"
    assert hf.health_check(model=url)
    assert hf.health_check(model=engine.url)
    engine.chat_endpoint(fallback=[])
    engine.blue.healthy = False
    wait_until(lambda: not hf.health_check(model=url))  # an answer serves all who ask within a second
    unwell = httpx.get(f"{url}/ping")
    assert (unwell.status_code, unwell.json()) == (503, {"error": "unhealthy", "error_type": "healthcheck"})
    assert httpx.get(engine.url).status_code == 200


def test_tgis_own_client(url: str, model: Model) -> None:
    client = Client(url)
    answer = client.generate("say", max_new_tokens=50)
    assert answer.generated_text == TEXT == "".join(token.text for token in answer.details.tokens)
    assert answer.details.finish_reason == "eos_token"
    assert not answer.details.tokens[-1].special
    events = list(client.generate_stream("say", max_new_tokens=3))
    assert [event.token.id for event in events] == model.encode(TEXT)[:3]
    assert events[-1].details is not None
    assert events[-1].details.finish_reason == "length"


async def test_tgis_own_async_client(url: str) -> None:
    client = AsyncClient(url)
    answer = await client.generate("say", max_new_tokens=50, decoder_input_details=True)
    assert answer.generated_text == TEXT
    assert answer.details.prefill[0].logprob is None
    events = [event async for event in client.generate_stream("say", max_new_tokens=50)]
    assert events[-1].generated_text == TEXT


@pytest.mark.parametrize(
    ("fields", "samples"),
    [({}, False), ({"temperature": 0.5}, True), ({"do_sample": True}, True), ({"top_p": 0.9, "seed": 3}, True)],
)
def test_tgis_own_client_samples_as_on_tgi(engine: Rig, fields: dict[str, Any], samples: bool) -> None:
    answer = Client(engine.url).generate("say", **fields)
    assert (engine.blue.requests[-1]["temperature"] > 0) is samples
    assert answer.details.seed is not None
    if "seed" in fields:
        assert answer.details.seed == fields["seed"]


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        pytest.param(None, tgi.ValidationError, id="validation"),
        pytest.param(refuse(500, "CUDA"), tgi.GenerationError, id="generation"),
        pytest.param(refuse(503, "full"), tgi.OverloadedError, id="overloaded"),
        pytest.param(lambda body: stream([]), tgi.IncompleteGenerationError, id="incomplete"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_tgis_own_client_raises(engine: Rig, broken: Any, error: type[Exception], streamed: bool) -> None:
    engine.chat_endpoint(fallback=[])
    if broken is not None:
        engine.blue.answer = broken
    inputs, tokens = "say", 3 if broken else 1000
    client, aclient = Client(engine.url), AsyncClient(engine.url)
    if streamed:
        with pytest.raises(error):
            list(client.generate_stream(inputs, max_new_tokens=tokens))
        with pytest.raises(error):
            [event async for event in aclient.generate_stream(inputs, max_new_tokens=tokens)]
        return
    expected = tgi.GenerationError if error is tgi.IncompleteGenerationError else error
    with pytest.raises(expected):
        client.generate(inputs, max_new_tokens=tokens)
    with pytest.raises(expected):
        await aclient.generate(inputs, max_new_tokens=tokens)


def test_tgis_own_client_chats(engine: Rig) -> None:
    engine.blue.answer = chat
    for url in (engine.url, f"{engine.url}/tgi/chat"):
        answer = Client(url).chat([{"role": "user", "content": "q"}])
        assert answer.choices[0].message.content == "Hello blue-model"
    with pytest.raises(tgi.ValidationError):
        Client(engine.url).chat([{"role": "user", "content": "q"}], temperature=-1)


def test_the_openai_sdk_with_tgis_model_name(engine: Rig) -> None:
    engine.blue.answer = chat
    for base in ("/v1", "/tgi/v1", "/tgi/chat/v1"):
        with OpenAI(base_url=engine.url + base, api_key="-", max_retries=0) as sdk:
            client: Any = sdk
            fields: dict[str, Any] = {"model": "tgi", "messages": [{"role": "user", "content": "q"}]}
            assert client.chat.completions.create(**fields).choices[0].message.content == "Hello blue-model"
            chunks = list(client.chat.completions.create(**fields, stream=True))
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello blue-model"
            with pytest.raises(APIError, match="temperature"):
                list(client.chat.completions.create(**fields, stream=True, temperature=-1))


def test_mindies_documented_requests(engine: Rig, model: Model) -> None:
    engine.blue.answer = speaks(model, "am")
    body: dict[str, Any] = {
        "inputs": "My name is Olivier and I",
        "parameters": {
            "decoder_input_details": True,
            "details": True,
            "do_sample": True,
            "max_new_tokens": 1,
            "repetition_penalty": 1.03,
            "return_full_text": False,
            "seed": 42,
            "temperature": 0.5,
            "top_k": 10,
            "top_p": 0.95,
            "truncate": None,
            "typical_p": 1.0,
            "watermark": False,
        },
    }
    whole = httpx.post(engine.url, json=body).json()
    assert set(whole) == {"generated_text", "details"}
    assert whole["details"]["finish_reason"] == "length"
    assert whole["details"]["seed"] == 42
    assert whole["details"]["generated_tokens"] == len(whole["details"]["tokens"]) == 1
    assert len(whole["details"]["prefill"]) == whole["details"]["prompt_tokens"]
    body["parameters"]["decoder_input_details"] = False
    body["parameters"]["max_new_tokens"] = 2
    answer = httpx.post(engine.url, json={**body, "stream": True})
    frames = answer.text.split("\n\n")
    assert frames.pop() == ""
    first, last = (json.loads(frame.removeprefix("data: ")) for frame in frames)
    assert "[DONE]" not in answer.text
    assert (first["generated_text"], first["details"]) == (None, None)
    assert last["generated_text"] == first["token"]["text"] + last["token"]["text"]
    assert last["details"]["generated_tokens"] == 2
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_tokenize_is_tgis_or_vllms(engine: Rig, model: Model) -> None:
    answer = httpx.post(f"{engine.url}/tokenize", json={"inputs": TEXT}).json()
    assert [token["id"] for token in answer] == model.encode(TEXT)
    assert engine.blue.requests == []
    engine.blue.answer = refuse(400, "no")
    httpx.post(f"{engine.url}/tokenize", json={"prompt": TEXT, "model": "chat"})
    assert engine.blue.requests == [{"prompt": TEXT, "model": "blue-model"}]


def test_vertex_predictions_are_one_per_instance(engine: Rig) -> None:
    body = {"instances": [{"inputs": "say", "parameters": {"max_new_tokens": 50}}, {"inputs": "say it"}]}
    answer = httpx.post(f"{engine.url}/vertex", json=body).json()
    assert answer["predictions"][0] == TEXT
    assert TEXT.startswith(answer["predictions"][1])
    assert len(engine.blue.requests) == 2


def test_invocations_are_tgis_or_openais(engine: Rig, model: Model) -> None:
    url = f"{engine.url}/invocations"
    assert httpx.post(url, json={"inputs": "say", "parameters": {"max_new_tokens": 50}}).json() == {
        "generated_text": TEXT
    }
    streamed = httpx.post(url, json={"inputs": "say", "stream": True})
    assert '"generated_text":"' in streamed.text.split("\n\n")[-2]
    wrong = httpx.post(url, json={"messages": []})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")


def test_an_invalid_body_has_an_error_status_even_on_a_stream(engine: Rig) -> None:
    for body, status in ((b"{", 400), (b'{"inputs": 5}', 422), (b'{"inputs":"x","parameters":{"top_k":"5"}}', 422)):
        answer = httpx.post(f"{engine.url}/generate_stream", content=body)
        assert (answer.status_code, answer.json()["error_type"]) == (status, "validation")
    unknown = httpx.post(f"{engine.url}/tgi/gone/generate_stream", json={"inputs": "x"})
    assert (unknown.status_code, unknown.json()["error_type"]) == (404, "not_found")


def test_a_deployment_without_a_model_card_has_failed(rig: Rig) -> None:
    rig.change(defaults={"completions": "chat"})
    answer = httpx.post(f"{rig.url}/generate", json={"inputs": "x"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")


def test_the_profile_is_the_routers(engine: Rig) -> None:
    assert httpx.post(engine.url, json={"inputs": "say"}).json() == {"generated_text": TEXT}
    engine.change(tgi={"profile": "tgi"})
    assert httpx.post(engine.url, json={"inputs": "say"}).json() == [{"generated_text": f"say{TEXT}"}]
    assert engine.blue.requests[-1]["max_tokens"] > 20


def test_mindies_profile_needs_top_k_below_the_vocabularys_size(engine: Rig, model: Model) -> None:
    def answer(top_k: int) -> httpx.Response:
        return httpx.post(f"{engine.url}/generate", json={"inputs": "say", "parameters": {"top_k": top_k}})

    rejected = answer(model.vocab_size)
    assert (rejected.status_code, rejected.json()["error_type"]) == (422, "validation")
    assert f"`top_k` must be < {model.vocab_size}" in rejected.json()["error"]
    assert engine.blue.requests == []
    assert answer(model.vocab_size - 1).status_code == 200
    engine.change(tgi={"profile": "tgi"})
    assert answer(model.vocab_size).status_code == 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
likely = st.sampled_from([0, 1, 5, 0.5, 1.0, True, False, None, "a", ["a"], {"type": "regex", "value": "a"}])
NAMES = (
    "best_of decoder_input_details details do_sample grammar max_new_tokens seed stop stream temperature top_k".split()
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.text(max_size=20) | json_values,
        "stream": st.booleans() | json_values,
        "parameters": st.dictionaries(st.sampled_from(NAMES), likely | json_values, max_size=5) | json_values,
        "messages": json_values,
        "instances": json_values,
    },
)
PATHS = ["/", "/generate", "/generate_stream", "/tokenize", "/invocations", "/vertex", "/chat_tokenize", "/tgi"]


@pytest.fixture(scope="module")
def fuzzed(files: Path, model: Model, servers: ServerPool) -> Iterator[httpx.Client]:
    """A client of a router in front of a deployment that answers."""
    engine = FakeEngine(answer=speaks(model, TEXT))
    with servers.host(engine.app) as upstream:
        router = Router(RuntimeEnvironment(), random=Random(7))
        deployment = {"url": upstream, "model": "blue-model", "tokenizer_dir": str(files)}
        endpoint = {"tasks": ["chat", "completions"], "traffic": {"blue": 100}}
        defaults = {"chat": "chat", "completions": "chat"}
        router.reconfigure({"endpoints": {"chat": endpoint}, "deployments": {"blue": deployment}, "defaults": defaults})
        with servers.host(router.app) as url, httpx.Client(base_url=url, timeout=20) as client:
            yield client


@given(path=st.sampled_from(PATHS), body=bodies)
def test_no_body_is_an_internal_error(fuzzed: httpx.Client, path: str, body: dict[str, Any]) -> None:
    if "messages" in body:  # this deployment only completes
        body["messages"] = []
    answer = fuzzed.post(path, content=json.dumps(body))
    assert answer.status_code in (200, 400, 422), answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        *_, last, end = answer.text.split("\n\n")
        result = json.loads(last.removeprefix("data: "))
        assert end == ""
        assert "error_type" in result or result["generated_text"] is not None


@given(path=st.sampled_from(PATHS), body=st.binary(max_size=40))
def test_no_bytes_are_an_internal_error(fuzzed: httpx.Client, path: str, body: bytes) -> None:
    assert fuzzed.post(path, content=body).status_code in (400, 422)


def test_metrics_under_tgis_names(engine: Rig) -> None:
    httpx.post(f"{engine.url}/generate", json={"inputs": "say", "parameters": {"max_new_tokens": 7}})
    httpx.post(f"{engine.url}/generate_stream", json={"inputs": "say"})
    httpx.post(f"{engine.url}/generate", json={"inputs": "say", "parameters": {"top_k": 0}})
    for path in ("/tgi/metrics", "/tgi/chat/metrics"):
        lines = httpx.get(engine.url + path).text.splitlines()
        assert "tgi_request_count 3.0" in lines
        assert "tgi_request_success 2.0" in lines
        assert 'tgi_request_failure{err="validation"} 1.0' in lines
        assert "tgi_request_max_new_tokens_sum 27.0" in lines
        assert "tgi_request_duration_count 3.0" in lines
    assert httpx.get(f"{engine.url}/tgi/gone/metrics").status_code == 404


@pytest.mark.parametrize("path", ["/tgi/chat/generate", "/tgi/chat/v1/chat/completions", "/tgi/generate", "/vertex"])
@pytest.mark.parametrize("body", [b"{", b"{}"])
def test_an_unreadable_request_counts_for_the_paths_endpoint(engine: Rig, path: str, body: bytes) -> None:
    assert httpx.post(engine.url + path, content=body).status_code in (400, 422)
    lines = httpx.get(f"{engine.url}/tgi/chat/metrics").text.splitlines()
    assert 'tgi_request_failure{err="validation"} 1.0' in lines


def test_a_request_for_an_unknown_endpoint_counts_for_none(engine: Rig) -> None:
    assert httpx.post(f"{engine.url}/tgi/nowhere/generate", content=b"{").status_code == 404
    assert "nowhere" not in httpx.get(f"{engine.url}/metrics").text
    assert "tgi_request_count 0.0" in httpx.get(f"{engine.url}/tgi/chat/metrics").text.splitlines()
