"""A stream that another engine has begun goes on as if nothing had happened, with the installed vLLM.

One engine plays both: the stream is cut after some tokens, and continued from their ids. It computes in float32, where
prompts and tokens are computed alike. Each step computes few tokens and caches small blocks, so that a continuation is
computed in parts, and finds more than its prompt in the cache. `SWITCHYARD_NIGHTLY=1` cuts after every token.
"""

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.internal_api import APP_PREFIX, CONTINUES, EXTENDED_PATH, INTERNAL_KEY_HEADER, MODEL_PATH, Xarg
from deployments.engine.scheduler import OUTPUT
from deployments.weights.cache import prepare_tiny
from tests.conftest import NIGHTLY
from tests.support.engine import continued_requests as requests
from tests.support.engine.continued_requests import CHAT, COMPLETIONS, LENGTH, MESSAGES, RESPONSES
from tests.support.engine.marked_streams import Answer, asked, events, joined, sent
from tests.support.engine.model_application import ENGINE_KEY, model_application
from tests.support.engine.random_model import HIDDEN, write_random_model
from tests.support.processes.project import ROOT
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]  # it starts beside other applications

CONTEXT, STEP, BLOCK = 512, 48, 32
"""Tokens of a prompt and its answer, of a step of the engine, and of a block of its cache."""

VOCABULARY = 49152
END = 2
"""The model's end-of-sequence token."""

THINKING: Mapping[str, Any] = {"chat_template_kwargs": {"thinking": True}}
"""The engine's parser of reasoning reads only answers of such requests."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_random_model(tmp_path_factory.mktemp("model") / "random", prepare_tiny(ROOT / ".models"))


@pytest.fixture(scope="module")
def http(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of the model application, as the router is one."""
    folder = tmp_path_factory.mktemp("engine")
    llm_config = {
        "model_loading_config": {"model_id": "tiny", "model_source": str(model)},
        "accelerator_config": {"kind": "cpu"},
        "engine_kwargs": {
            "dtype": "float32",
            "max_model_len": CONTEXT,
            "max_num_seqs": 8,
            "max_num_batched_tokens": STEP,
            "block_size": BLOCK,
            "num_gpu_blocks_override": CONTEXT // BLOCK + 1,
            "enforce_eager": True,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
            "reasoning_parser": "deepseek_v3",
        },
    }
    environment = {"CXX": "no-compiler", "TORCHINDUCTOR_CACHE_DIR": str(folder / "compiled")}
    with model_application("tiny", {"llm_config": llm_config}, folder / "log", environment) as url:
        headers = {INTERNAL_KEY_HEADER: ENGINE_KEY}
        with httpx.Client(base_url=f"{url}{APP_PREFIX}tiny", timeout=300, headers=headers) as client:
            yield client


def cuts(length: int) -> Sequence[int]:
    """After how many of the tokens to cut a stream."""
    return range(length) if NIGHTLY else sorted({1, 7 % length, length // 2, length - 1})


def goes_on(http: httpx.Client, path: str, body: Mapping[str, Any], *, everywhere: bool = False) -> Answer:
    """Asserts that the stream goes on alike wherever it is cut. Returns the whole one."""
    whole = asked(http, path, body)
    assert (whole.status, whole.is_marked, whole.rest) == (200, True, b""), whole
    assert len(whole.tokens) > 1, whole
    compare = joined if "completions" in path and "chat" not in path else list
    for count in range(len(whole.tokens)) if everywhere else cuts(len(whole.tokens)):
        rest = asked(http, path, body, whole.tokens[:count])
        assert (rest.status, rest.is_marked, rest.rest) == (200, True, b""), (count, rest)
        assert rest.tokens == whole.tokens[count:], count
        if compare is joined:
            _assert_text_goes_on(whole, rest)
        else:
            assert rest.events == whole.after(count), count
    return whole


def _assert_text_goes_on(whole: Answer, rest: Answer) -> None:
    text, *ends = joined(whole.events)
    text_after, *ends_after = joined(rest.events)
    assert text.endswith(text_after)
    assert ends == ends_after


def test_the_card_says_so(http: httpx.Client) -> None:
    assert http.get(MODEL_PATH).json()[CONTINUES] is True


@pytest.mark.parametrize("kind", requests.CHATS)
def test_a_chat_goes_on(http: httpx.Client, kind: str) -> None:
    everywhere = kind in ("seed", "JSON with a seed", "parts of characters")
    goes_on(http, CHAT, requests.CHATS[kind], everywhere=everywhere)


OTHERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "completion": (COMPLETIONS, requests.completion()),
    "completion with its prompt": (COMPLETIONS, requests.completion(echo=True, return_token_ids=True)),
    "extended completion": (EXTENDED_PATH, requests.completion(seeds=[2**64 - 5], seed=None)),
    "replaced embeddings": (
        EXTENDED_PATH,
        requests.completion(replace_embeddings={"indices": [1, 3], "values": [0.1] * 2 * HIDDEN}),
    ),
    "response": (RESPONSES, requests.response()),
    "response in JSON": (
        RESPONSES,
        requests.response(
            text={"format": {"type": "json_schema", "name": "note", "schema": requests.SCHEMA, "strict": True}}
        ),
    ),
    "response with a tool": (
        RESPONSES,
        requests.response(
            tools=[{"type": "function", **requests.FUNCTION}], tool_choice={"type": "function", "name": "save_note"}
        ),
    ),
    "message": (MESSAGES, requests.message()),
    "message with a tool": (
        MESSAGES,
        requests.message(
            tools=[{"name": "save_note", "input_schema": requests.SCHEMA}],
            tool_choice={"type": "tool", "name": "save_note"},
        ),
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_stream_of_another_route_goes_on(http: httpx.Client, kind: str) -> None:
    goes_on(http, *OTHERS[kind])


CALL = '<tool_call>\n{"name": "save_note", "arguments": {"name": "%s", "tags": ["a", "bb"], "n": -3}}\n</tool_call>'
PARSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a call": (f"Sure. {CALL % 'déf 😀'}", {"tools": requests.TOOLS, "tool_choice": "auto"}),
    "two calls": (f"{CALL % 'first'}\n{CALL % 'second'}", {"tools": requests.TOOLS, "tool_choice": "auto"}),
    "reasoning": ("<think>Let me think, step by step 😀.</think>The answer is 42.", THINKING),
    "reasoning and a call": (
        f"<think>I must call it.</think>{CALL % 'first'}",
        {**THINKING, "tools": requests.TOOLS, "tool_choice": "auto"},
    ),
}
"""Texts that vLLM parses, and what a request for them says."""


def saying(model: Any, text: str, **fields: Any) -> dict[str, Any]:
    """A chat whose answer is this text."""
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    forced = {Xarg.FORCED_OUTPUT_TOKENS: [*ids, END]}
    return requests.chat(vllm_xargs=forced, **fields) | {"max_tokens": len(ids) + 5}


@pytest.mark.parametrize("kind", PARSED)
def test_what_is_parsed_goes_on(http: httpx.Client, model: Any, kind: str) -> None:
    text, fields = PARSED[kind]
    whole = goes_on(http, CHAT, saying(model, text, **fields))
    deltas = [event["choices"][0]["delta"] for event in whole.events[:-1] if event["choices"]]
    names = [call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", ()) if call.get("id")]
    assert names == ["save_note"] * text.count("<tool_call>")
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == text.partition("</think>")[0][7:] * (
        "<think>" in text
    )


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_reasoning_and_calls_of_the_agents_routes_go_on(http: httpx.Client, model: Any, path: str) -> None:
    forced = saying(model, f"<think>I must call it.</think>Well. {CALL % 'first'}")
    fields: dict[str, Any] = {**THINKING, "vllm_xargs": forced["vllm_xargs"]}
    length = forced["max_tokens"]
    if path == RESPONSES:
        tools = [{"type": "function", **requests.FUNCTION}]
        body = requests.response(tools=tools, max_output_tokens=length, **fields)
    else:
        tools = [{"name": "save_note", "input_schema": requests.SCHEMA}]
        body = requests.message(tools=tools, **fields) | {"max_tokens": length}
    goes_on(http, path, body)


def test_a_structure_after_reasoning_goes_on(http: httpx.Client) -> None:
    body = requests.seeded(9, response_format=requests.JSON, logit_bias={"9": 14}, **THINKING)
    whole = goes_on(http, CHAT, body)
    reasoning = whole.tokens.index(9)
    assert 2 <= reasoning < LENGTH - 10


def test_a_stop_string_across_the_cut_ends_the_stream(http: httpx.Client) -> None:
    body = requests.seeded(12, ignore_eos=True)
    deltas = [event["choices"][0]["delta"]["content"] for event in asked(http, CHAT, body).events[1:-2]]
    at = next(at for at in range(6, LENGTH) if len(deltas[at]) > 1 and len(deltas[at + 1]) > 1)
    whole = goes_on(http, CHAT, {**body, "stop": [deltas[at][-2:] + deltas[at + 1][:2]]}, everywhere=True)
    assert len(whole.tokens) == at + 2


@pytest.mark.parametrize("interval", [2, 13])
def test_a_parsed_stream_is_the_same_with_any_interval(http: httpx.Client, model: Any, interval: int) -> None:
    """vLLM's parsers of reasoning misread several tokens at once: they would lose the first characters after it."""
    body = saying(model, PARSED["reasoning"][0], **THINKING)
    one_by_one = sent(http, CHAT, json.dumps(body).encode(), None)
    in_groups = sent(http, CHAT, json.dumps({**body, "stream_interval": interval}).encode(), None)
    assert list(events(in_groups.rest)) == list(events(one_by_one.rest))


def test_a_seed_and_a_prompt_of_several_steps_do_not_end_the_engine(http: httpx.Client) -> None:
    """vLLM takes back what it drew after each part of the prompt. The second time, the prompt is in its cache."""
    body = requests.completion(prompt=list(range(100, 100 + 3 * STEP)), ignore_eos=True)
    assert goes_on(http, COMPLETIONS, body).tokens == asked(http, COMPLETIONS, body).tokens


def test_a_stream_of_an_adapter_goes_on(engine: str) -> None:
    headers = {INTERNAL_KEY_HEADER: ENGINE_KEY}
    with httpx.Client(base_url=f"{engine}{APP_PREFIX}tiny", timeout=300, headers=headers) as others:
        goes_on(others, COMPLETIONS, requests.completion() | {"model": "french-lora"})


def test_an_unmarked_stream_is_the_same(http: httpx.Client) -> None:
    body = requests.CHATS["log-probabilities"]
    assert list(events(sent(http, CHAT, json.dumps(body).encode(), None).rest)) == asked(http, CHAT, body).events


def test_continuations_go_on_when_they_are_preempted(http: httpx.Client) -> None:
    """Any two of the streams need more than the cache's blocks."""
    bodies = [requests.seeded(seed, ignore_eos=True) | {"max_tokens": CONTEXT // 2} for seed in range(4)]
    whole = [asked(http, CHAT, body) for body in bodies]
    before = preemptions(http)
    with ThreadPoolExecutor(len(bodies)) as threads:
        rests = list(
            threads.map(
                lambda body, answer: asked(http, CHAT, body, answer.tokens[:40], id=str(body["seed"])), bodies, whole
            )
        )
    assert preemptions(http) > before
    assert [rest.tokens for rest in rests] == [answer.tokens[40:] for answer in whole]


def preemptions(http: httpx.Client) -> float:
    return metric(http, "vllm:num_preemptions_total")


def metric(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def test_the_engine_ends_a_continuation_whose_client_leaves(http: httpx.Client) -> None:
    body = requests.seeded(1, ignore_eos=True) | {"max_tokens": 400}
    output = asked(http, CHAT, {**body, "max_tokens": 20}).tokens
    content = json.dumps(body).encode() + array("I", output).tobytes()
    headers = {"content-type": "application/json", "x-switchyard-continuation": str(len(output))}
    with http.stream("POST", CHAT, content=content, headers=headers) as response:
        next(response.iter_raw())
    running = "vllm:num_requests_running"
    wait_until(lambda: metric(http, running) == 0, lambda: f"{metric(http, running)} run", within_s=20)
    goes_on(http, CHAT, requests.CHATS["greedy"])


REFUSED: Mapping[str, tuple[dict[str, Any], Sequence[int]]] = {
    "beyond the vocabulary": ({}, [VOCABULARY]),
    "far beyond the vocabulary": ({}, [5, 2**32 - 1]),
    "as many as may be": ({"max_tokens": 3}, [5, 6, 7]),
    "no room in the context": ({"max_tokens": None}, [5] * CONTEXT),
    "an end": ({}, [5, END, 6]),
    "a stop token": ({"stop_token_ids": [77]}, [5, 77]),
    "a stop string": ({"stop": ["abab"]}, [81, 82, 81, 82, 5]),
    "several choices": ({"n": 2, "temperature": 1}, [5]),
    "not a stream": ({"stream": False, "stream_options": None}, [5]),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_cannot_go_on_is_refused(http: httpx.Client, path: str, why: str) -> None:
    fields, output = REFUSED[why]
    body = (requests.chat() if path == CHAT else requests.completion()) | fields
    answer = asked(http, path, body, output)
    assert (answer.status, json.loads(answer.rest)["error"]["code"]) == (400, 400), answer


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_the_agents_routes_refuse_in_their_form(http: httpx.Client, path: str) -> None:
    body = requests.response() if path == RESPONSES else requests.message()
    answer = asked(http, path, body, [VOCABULARY])
    error = json.loads(answer.rest)
    assert (answer.status, str(VOCABULARY) in error["error"]["message"]) == (400, True)
    assert ("type" in error) is (path == MESSAGES)


def test_a_grammar_that_rejects_the_tokens_ends_this_stream_only(http: httpx.Client) -> None:
    other = requests.seeded(4, ignore_eos=True) | {"max_tokens": 64}
    whole = asked(http, CHAT, other)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(asked, http, CHAT, other, whole.tokens[:8], "other")
        answer = asked(http, CHAT, requests.CHATS["JSON"], [100, 200])
        assert running.result().tokens == whole.tokens[8:]
    ((error, done),) = [group.events for group in answer.groups]
    assert (answer.tokens, error["error"]["code"], done) == ([], 400, "[DONE]")


def test_a_client_cannot_send_output(http: httpx.Client) -> None:
    body = requests.CHATS["greedy"]
    whole = asked(http, CHAT, body)
    for xargs in ({OUTPUT: [5, 6]}, {OUTPUT: "5"}, {OUTPUT: [VOCABULARY * 9]}):
        assert asked(http, CHAT, {**body, "vllm_xargs": xargs}).events == whole.events


TAILS = st.one_of(
    st.lists(st.integers(0, 2**32 - 1), max_size=8),
    st.lists(st.integers(0, VOCABULARY - 1), max_size=600),
    st.lists(st.integers(0, 300), min_size=1, max_size=LENGTH + 2),
)
KINDS = st.sampled_from(list(requests.CHATS))


@given(KINDS, TAILS, st.integers(-9, 9), st.one_of(st.none(), st.text("0123456789-+ x٣", max_size=12)))
def test_no_continuation_ends_the_engine(
    http: httpx.Client, kind: str, output: list[int], cut: int, header: str | None
) -> None:
    """Whatever tokens, and however many: a stream, or a refusal, and the engine lives."""
    body = {**requests.CHATS[kind], "max_tokens": 40}
    content = json.dumps(body).encode() + array("I", output).tobytes()
    content = content[: len(content) + min(cut, 0)] + b"x" * max(cut, 0)
    name = str(len(output)) if header is None else header
    answer = sent(http, CHAT, content, name.encode("ascii", "ignore").decode().strip() or "0")
    assert answer.status in (200, 400), answer
    assert http.get("/health").status_code == 200
    if answer.status == 200:
        assert answer.rest == b""
        assert answer.events[-1] == "[DONE]"
