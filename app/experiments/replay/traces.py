"""Recorded requests as the traces that benchmarks read. Pure. A line of JSON for each request:

``guidellm``: ``timestamp`` (seconds), ``input_length``, ``output_length`` (tokens) and ``hash_ids``, which its data
kinds ``trace_synthetic`` and ``mooncake`` read (the latter with ``hash_id_block_size=16``); of recorded texts also
``prompt``, ``prompt_tokens_count``, ``output_tokens_count`` and ``relative_timestamp`` for ``json_file``. All go with
the profile ``replay``. Contract: guidellm 0.7, ``data/deserializers/trace_common.py``, ``trace_mooncake.py`` and
``data/preprocessors/mappers.py``.

``vllm-bench``: the same four for ``vllm bench serve --dataset-name timed_trace``, and ``prompt`` and ``output_tokens``
for ``--dataset-name custom``, which keeps no times. Contract: vLLM 0.29, ``benchmarks/datasets/datasets.py``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from app.experiments.replay.requests import NEVER_STREAMED, text_of
from app.request_recordings.recorder import RecordedRequest

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
        found = [
            (self.prompts, "prompts have an estimated length, a token for four bytes: the engine did not count them"),
            (self.answers, "answers have the median length: the engine did not count them"),
            (self.left_out, "requests are left out: they failed, or generate nothing"),
        ]
        return [f"{count} {text}" for count, text in found if count]


def trace(requests: Sequence[RecordedRequest], form: TraceFormat, estimates: Estimates) -> Iterator[dict[str, Any]]:
    """The lines of the requests, which are in order of arrival. Times count from the first line's."""
    kept = [it for it in requests if it.status == 200 and it.task not in NEVER_STREAMED]
    estimates.left_out += len(requests) - len(kept)
    known = [_each(it, it.completion_tokens) for it in kept if it.completion_tokens]
    usual = round(median(known)) if known else None
    blocks: dict[tuple[str, int, int], int] = {}
    with_texts = all(_text(it) for it in kept)
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
    return max(1, min(it for it in (usual, limit) if it) if usual or limit else BLOCK)


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
