"""What one request may cost an engine that others share."""

import asyncio
import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st

from deployments.weights.cache import prepare
from tests.support.processes.project import ROOT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, when it is imported
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
    from vllm.v1.serial_utils import MsgpackEncoder

    from deployments.engine.bounds import MOST_PROMPT_LOGPROBS, TAIL, guard, shorten, too_many_logprobs


class Client:
    """What `guard` knows of vLLM's engine client. The core encodes requests as vLLM's does."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.sent: list[Any] = []
        self.engine_core = SimpleNamespace(add_request_async=self._add)
        states = {"r": SimpleNamespace(detokenizer=None, parent_req=None)}
        self.output_processor = SimpleNamespace(request_states=states, abort_requests=self._abort)
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 100)
        guard(self)

    async def _add(self, request: Any) -> None:
        self.sent.append(MsgpackEncoder().encode(request))

    def _abort(self, ids: list[str], internal: bool) -> None:
        assert internal
        self.aborted += ids


def request_of(prompt: list[int], **params: Any) -> EngineCoreRequest:
    names = {name: None for name in EngineCoreRequest.__struct_fields__}
    given = SamplingParams(**params)
    return EngineCoreRequest(**{**names, "request_id": "r", "prompt_token_ids": prompt, "sampling_params": given})


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (request_of([1, 2]), None),
        (request_of([1, 100]), "Token id 100 is out of vocabulary"),
        (request_of([1], top_k=10**30), "more than 64 bits"),
        (request_of([1], extra_args={"a": [{"b": -(10**30)}]}), "more than 64 bits"),
        (request_of([1] * 8192, prompt_logprobs=1), None),
        (request_of([1] * 8193, prompt_logprobs=1), f"at most {MOST_PROMPT_LOGPROBS}"),
    ],
)
def test_what_the_engine_does_not_take_is_refused_and_forgotten(request_: EngineCoreRequest, why: str | None) -> None:
    """The API layer would wait for its answer, and the watchdog take the engine for one that hangs."""
    client = Client()
    if why is None:
        asyncio.run(client.engine_core.add_request_async(request_))
        assert (len(client.sent), client.aborted) == (1, [])
        return
    with pytest.raises(VLLMValidationError, match=why):
        asyncio.run(client.engine_core.add_request_async(request_))
    assert (client.sent, client.aborted) == ([], ["r"])


@pytest.mark.parametrize(("choices", "refused"), [(1, False), (4, False), (5, True)])
def test_each_choice_has_the_prompts_log_probabilities(choices: int, refused: bool) -> None:
    request = request_of([1] * 2048, prompt_logprobs=1)
    assert (too_many_logprobs(request, choices) is not None) is refused


class Streams:
    """The texts of a detokenizer's stream with the whole prompt and with its end."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._backend = SimpleNamespace(_tokenizer=tokenizer)
        self.size = tokenizer.get_vocab_size()

    def decoded(self, ids: list[int], *, skips: bool) -> str:
        text: str = self._backend._tokenizer.decode(ids, skip_special_tokens=skips)
        return text

    def texts(self, prompt: list[int], output: list[int], *, skips: bool, short: bool) -> list[str]:
        params: dict[str, Any] = {"skip_special_tokens": skips, "detokenize": True}
        request = request_of(prompt, **params)
        detokenizer = FastIncrementalDetokenizer(self._backend, request)
        if short:
            shorten(detokenizer, request)
        return [detokenizer.decode_next(token) for token in output]


@pytest.fixture(scope="module", params=["SmolLM2-135M-Instruct", "tiny-llama"])
def streams(request: pytest.FixtureRequest) -> Streams:
    folder = prepare(request.param, ROOT / ".models")
    return Streams(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))


@given(st.data())
def test_the_end_of_a_prompt_is_all_that_the_text_depends_on(streams: Streams, data: st.DataObject) -> None:
    ids = st.integers(0, streams.size - 1)
    prompt = data.draw(st.lists(ids, min_size=TAIL + 1, max_size=100))
    output, skips = data.draw(st.lists(ids, max_size=20)), data.draw(st.booleans())
    # After an unfinished character the library repeats all of the prompt that it knows.
    assume(not any(streams.decoded(part, skips=skips).endswith("\ufffd") for part in (prompt, prompt[-TAIL:])))
    whole, short = (streams.texts(prompt, output, skips=skips, short=short) for short in (False, True))
    assert short == whole


SHARED = """
from vllm.entrypoints import chat_utils
from vllm.exceptions import VLLMValidationError
from deployments.engine.bounds import harden
harden(takes_embeddings=False)
for items in ({"image": [("x", None), ("x", "name")]}, {"audio": [("x", "name")]}):
    try:
        chat_utils._resolve_items(items, None, {})
    except VLLMValidationError as error:
        assert error.parameter == "uuid", error
        print("refused")
"""


def test_no_caller_names_an_image_that_others_may_have() -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", SHARED], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-2:] == ["refused", "refused"]
