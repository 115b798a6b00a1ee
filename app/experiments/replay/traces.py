"""Recorded requests as the traces that benchmarks read. Pure. A line of JSON for each request:

``guidellm``: ``timestamp`` (seconds), ``input_length``, ``output_length`` (tokens) and ``hash_ids``, which its data
kinds ``trace_synthetic`` and ``mooncake`` read (the latter with ``hash_id_block_size=16``); of recorded texts also
``prompt``, ``prompt_tokens_count``, ``output_tokens_count`` and ``relative_timestamp`` for ``json_file``. All go with
the profile ``replay``. Contract: guidellm 0.7, ``data/deserializers/trace_common.py``, ``trace_mooncake.py`` and
``data/preprocessors/mappers.py``.

``vllm-bench``: the same four for ``vllm bench serve --dataset-name timed_trace``, and ``prompt`` and ``output_tokens``
for ``--dataset-name custom``, which keeps no times. Contract: vLLM 0.29, ``benchmarks/datasets/datasets.py``.

- Texts of a given length, for recordings without texts. Deterministic.
- Turns a recorded request into the one to send again: OpenAI's, or Anthropic's for its recorded bodies. Pure.
- The experiment that judges a replay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from statistics import median
from typing import Any, Literal

from app.config.experiments import DEFAULT_GUARDRAILS, STATISTICS, Experiment, Guardrail, Metric
from app.config.schema import Config
from app.dialects.openai.dialect import OpenAI
from app.experiments.runs import evenly, synthetic_config
from app.request_recordings.recorder import RecordedRequest

WORDS = (
    "the of and to in is that for it was on as with be by at have from or one had but what all were when we there can "
    "an your which their said if do will each about how up out them then she many some so these would other into has "
    "more two like him time see no could make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know"
).split()
"""Frequent words: nearly every tokenizer has one token for each."""


def words(seed: str, count: int) -> list[str]:
    """This number of words, at least one. Longer texts of the same seed begin with the shorter ones."""
    return Random(seed).choices(WORDS, k=max(1, count))


def words_of_bytes(seed: str, size: int) -> list[str]:
    """As many words as have about this number of bytes, including the spaces between them."""
    text = words(seed, size // 3 + 1)
    ends = accumulate(len(word) + 1 for word in text)
    return text[: max(1, sum(end - 1 <= size for end in ends))]


def parts(text: list[str], count: int) -> list[str]:
    """The text in this number of parts of nearly the same length, at least one; fewer if a part would be empty."""
    count = max(1, min(count, len(text)))
    bounds = [len(text) * number // count for number in range(count + 1)]
    return [" ".join(text[begin:end]) for begin, end in pairwise(bounds)]


_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "classify": "/classify",
}
NEVER_STREAMED = ("embeddings", "rerank", "classify")
"""Tasks that generate nothing."""

_PARSED: Mapping[str, str] = {"/score": "score"}
"""Route to OpenAI's operation, where it is not named as the task."""

_ENVELOPE_BYTES = 120
"""About the size of a request's body without its text."""

_DEFAULT_TOKENS = 128
"""The length of an answer that is not known and that nothing bounds."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The request that is sent. `is_synthetic`: the text is made up, since the recording has none."""

    recorded: RecordedRequest
    path: str
    body: Mapping[str, Any]
    is_synthetic: bool


def replayed(recorded: RecordedRequest) -> ReplayRequest:
    """The request with the recorded body, or with a made-up one of the same size."""
    task, body = recorded.task, recorded.body
    if task not in _PATHS:
        raise ValueError(f"unknown task '{task}'")
    is_synthetic = body is None
    is_anthropic = body is not None and recorded.dialect == "anthropic"
    path = "/v1/messages" if is_anthropic else _path(task, body or {})
    sent = (
        synthetic(recorded) if body is None else dict(body) if is_anthropic else _known(_PARSED.get(path, task), body)
    )
    sent["model"] = recorded.endpoint
    if task == "completions" and "max_tokens" in recorded.parameters:  # some dialects' bodies do not have it
        sent.setdefault("max_tokens", int(recorded.parameters["max_tokens"]))
    if task not in NEVER_STREAMED:
        sent["stream"] = recorded.stream
    sent.pop("stream_options", None)
    if recorded.stream and path in ("/v1/chat/completions", "/v1/completions"):
        sent["stream_options"] = {"include_usage": True}
    return ReplayRequest(recorded, path, sent, is_synthetic)


def text_of(recorded: RecordedRequest) -> list[str]:
    """The words of a made-up prompt: as many as the prompt had tokens, or bytes where those are not known.

    Prompts of one unit begin alike, as those of a conversation's turns do.
    """
    if recorded.prompt_tokens is not None:
        return words(recorded.unit, recorded.prompt_tokens)
    return words_of_bytes(recorded.unit, recorded.prompt_bytes - _ENVELOPE_BYTES)


def synthetic(recorded: RecordedRequest) -> dict[str, Any]:
    """A body with a made-up prompt. The answer gets as many tokens as the recorded one, if their number is known; its
    text differs.
    """
    text, given = text_of(recorded), recorded.parameters
    inputs = max(1, int(given.get("inputs", 1)))
    body: dict[str, Any] = {}
    match recorded.task:
        case "chat":
            texts = parts(text, 2 * recorded.turn + 1)
            texts = texts if len(texts) % 2 else texts[:-1]
            roles = ("user", "assistant")
            body["messages"] = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
        case "responses":
            body["input"] = " ".join(text)
        case "rerank":
            # The engine counts the query once for each document.
            query, *others = parts(text, 2 * inputs)
            body |= {"query": query, "documents": others[:inputs] or [query]}
        case task:
            texts = parts(text, inputs)
            body["prompt" if task == "completions" else "input"] = texts if len(texts) > 1 else texts[0]
    if recorded.task in NEVER_STREAMED:
        return body
    if 0 <= given.get("temperature", -1) <= 2:
        body["temperature"] = given["temperature"]
    if recorded.task != "responses" and 1 <= given.get("n", 1) <= 128:
        body["n"] = int(given.get("n", 1))
    limit = "max_output_tokens" if recorded.task == "responses" else "max_tokens"
    if recorded.completion_tokens:
        body[limit] = max(1, recorded.completion_tokens // (body.get("n", 1) * inputs))
        body["ignore_eos"] = True
    else:
        body[limit] = max(1, int(given.get("max_tokens", _DEFAULT_TOKENS)))
    return body


def _path(task: str, body: Mapping[str, Any]) -> str:
    """The path of the request: vLLM has two routes for reranking."""
    return "/score" if task == "rerank" and "queries" in body else _PATHS[task]


def _known(operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without vLLM's fields that other dialects write and OpenAI's API does not accept."""
    allowed, *_ = OpenAI.bodies[operation]  # others are recorded as what they are translated to
    known = (allowed.model.model_fields.keys() | allowed.passed) - getattr(allowed.model, "refused", {}).keys()
    return {name: value for name, value in body.items() if name in known and value is not None}


TraceFormat = Literal["guidellm", "vllm-bench"]
BLOCK = 16
"""Tokens per hash id: vLLM's default."""

_BYTES_PER_TOKEN = 4
_TEXTS = ("system", "instructions", "messages", "prompt", "input")


@dataclass(slots=True)
class Estimates:
    """Requests whose tokens are not as the engine counted them."""

    prompts: int = 0
    answers: int = 0
    left_out: int = 0
    """The number of requests without an answer, or of tasks that generate nothing, which benchmarks cannot use."""

    def notes(self) -> list[str]:
        """The notes in words."""
        counted = [
            (self.prompts, "prompts have an estimated length, a token for four bytes: the engine did not count them"),
            (self.answers, "answers have the median length: the engine did not count them"),
            (self.left_out, "requests are left out: they failed, or generate nothing"),
        ]
        return [f"{count} {text}" for count, text in counted if count]


def trace(requests: Sequence[RecordedRequest], form: TraceFormat, estimates: Estimates) -> Iterator[dict[str, Any]]:
    """The lines of the requests, which are in order of arrival. Times count from the first line's."""
    kept = [request for request in requests if request.status == 200 and request.task not in NEVER_STREAMED]
    estimates.left_out += len(requests) - len(kept)
    known = [_each(request, request.completion_tokens) for request in kept if request.completion_tokens]
    usual = round(median(known)) if known else None
    blocks: dict[tuple[str, int, int], int] = {}
    with_texts = all(_text(request) for request in kept)
    for request in kept:
        size, answer = _prompt_tokens(request, estimates), _answer_tokens(request, usual, estimates)
        at = round(request.at - kept[0].at, 6)
        line = {
            "timestamp": at,
            "input_length": size,
            "output_length": answer,
            "hash_ids": _hash_ids(request.unit, size, blocks),
        }
        if form == "vllm-bench":
            line |= {"prompt": _text(request) or " ".join(text_of(request)), "output_tokens": answer}
        elif with_texts:
            line |= {"prompt": _text(request), "prompt_tokens_count": size}
            line |= {"output_tokens_count": answer, "relative_timestamp": at}
        yield line


def _prompt_tokens(request: RecordedRequest, estimates: Estimates) -> int:
    if request.prompt_tokens:
        return request.prompt_tokens
    estimates.prompts += 1
    return max(1, request.prompt_bytes // _BYTES_PER_TOKEN)


def _answer_tokens(request: RecordedRequest, usual: int | None, estimates: Estimates) -> int:
    if request.completion_tokens:
        return _each(request, request.completion_tokens)
    estimates.answers += 1
    limit = int(request.parameters.get("max_tokens", 0))
    return max(1, min(size for size in (usual, limit) if size) if usual or limit else BLOCK)


def _each(request: RecordedRequest, tokens: int) -> int:
    """Tokens of one choice."""
    return max(1, tokens // max(1, int(request.parameters.get("n", 1))))


def _hash_ids(unit: str, tokens: int, blocks: dict[tuple[str, int, int], int]) -> list[int]:
    """Prompts of one unit share their beginning, as those of a conversation's turns do. A block that is not full is
    another one than the full block at its place."""
    sizes = [BLOCK] * (tokens // BLOCK) + ([tokens % BLOCK] if tokens % BLOCK else [])
    return [blocks.setdefault((unit, place, size), len(blocks)) for place, size in enumerate(sizes)]


def _text(request: RecordedRequest) -> str:
    """The texts of a recorded body, one after the other; "" if there are none."""
    body: Mapping[str, Any] = request.body or {}
    return "\n\n".join(text for name in _TEXTS for text in _texts(body.get(name)) if text)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for name in ("content", "text"):
            yield from _texts(value.get(name))


NAME = "replay"
"""The experiment's name, unless it is one of a configuration."""

PAIR_HEADER = "x-switchyard-pair"
"""The nominal `sticky` of a replay's endpoint: a unit is one recorded request, answered by every arm."""

_STREAMED = ("ttft", "itl", "tokens_per_second", "duration")
_WHOLE = ("duration",)
_AT_ONCE = 0.001
"""Seconds: a replay has no rhythm of days that a verdict would have to wait for."""


class NothingToCompare(ValueError):
    """The experiment has no metric that a replay can have."""


def section_of(arms: Sequence[str], requests: Sequence[RecordedRequest], declared: Experiment | None) -> Experiment:
    """The section for a replay on these arms, control first. `declared`: the experiment whose metrics it takes.

    Without one: the time to the first token, or of recordings without streams the duration, at 5 %. Users' feedback is
    left out, and guardrails only alert. Raises NothingToCompare.
    """
    endpoint = requests[0].endpoint
    common = {"endpoint": endpoint, "control": arms[0], "treatments": tuple(arms[1:]), "min_duration_s": _AT_ONCE}
    if declared is None:
        first, *others = _STREAMED if any(request.stream for request in requests) else _WHOLE
        secondary = tuple(_metric(name) for name in (*others, "error"))
        return Experiment(
            primary=(_metric(first),), secondary=secondary, guardrails=_alerts(DEFAULT_GUARDRAILS), **common
        )
    primary = tuple(metric for metric in declared.primary if metric.metric in STATISTICS)
    if not primary:
        raise NothingToCompare("every primary metric is users' feedback, and a replay has no users")
    return Experiment(
        primary=primary,
        secondary=tuple(metric for metric in declared.secondary if metric.metric in STATISTICS),
        alpha=declared.alpha,
        alpha_guardrails=declared.alpha_guardrails,
        guardrails=_alerts(declared.guardrails),
        strata=declared.strata,
        **common,
    )


def _alerts(guardrails: Sequence[Guardrail]) -> tuple[Guardrail, ...]:
    return tuple(guardrail.model_copy(update={"action": "alert"}) for guardrail in guardrails)


def config_of(
    name: str, experiment: Experiment, ledger: str, *, prices: Mapping[str, object] | None = None, total_s: float
) -> Config:
    """The configuration of the replay's router and controller. Raises ConfigError."""
    sticky = {"by": "header", "name": PAIR_HEADER}
    return synthetic_config(
        name,
        experiment,
        traffic=evenly(experiment.arms),
        sticky=sticky,
        prices=prices,
        ledger=ledger,
        total_s=total_s,
    )


def _metric(name: str) -> Metric:
    return Metric(metric=name, minimal_effect=0.05)
