"""What a request makes certain of its answer, whoever serves it. Pure. Contract: vLLM 0.29, `entrypoints`."""

from collections.abc import Callable, Mapping
from typing import Any

from app.internal_api import EXTENDED_PATH

Body = Mapping[str, Any]

_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})
_REPETITION = "repetition"


def prompts_of(body: Body) -> int:
    """The number of prompts in a completion request: texts, lists of token ids, or embeddings."""
    return sum(_length(body[name]) for name in ("prompt", "prompt_embeds") if name in body)


def choices_of(body: Body) -> int:
    """The number of choices in the answer to a completion request: `n` for each prompt, or one for each seed."""
    n: int = body["n"] if "n" in body else len(body.get("seeds", (0,)))
    return n * prompts_of(body)


def _length(value: Any) -> int:
    """The number of texts, lists of token ids or objects; a list of numbers is one."""
    return len(value) if isinstance(value, list) and value and not isinstance(value[0], int) else 1


def _chosen(body: Body) -> int:
    n: int = body.get("n", 1)
    return n


def _ranked(body: Body) -> int:
    documents, top = _length(body.get("documents")), body.get("top_n")
    return min(top, documents) if top else documents


def _embedded(body: Body) -> int:
    return _length(body.get("input"))


_COUNTS: Mapping[str, Callable[[Body], int]] = {
    "/v1/chat/completions": _chosen,
    "/v1/completions": choices_of,
    EXTENDED_PATH: choices_of,
    "/v1/embeddings": _embedded,
    "/pooling": _embedded,
    "/classify": _embedded,
    "/v1/rerank": _ranked,
    "/score": lambda body: max(_length(body.get("queries")), _length(body.get("documents"))),
}


def count_of(path: str, request: Body) -> int | None:
    """How many choices, vectors, classes, results or scores the answer has; None where it has none of these."""
    count = _COUNTS.get(path)
    return None if count is None else count(request)


def finish_reasons(request: Body) -> frozenset[str]:
    """The words with which a choice may end. An engine that has aborted its work has not answered."""
    return _FINISH_REASONS | {_REPETITION} if request.get("repetition_detection") else _FINISH_REASONS


_ASKED: Mapping[str, str] = {
    "kv_transfer_params": "kv_transfer_params",
    "ec_transfer_params": "ec_transfer_params",
    "prompt_logprobs": "prompt_logprobs",
    "prompt_token_ids": "return_token_ids",
    "prompt_text": "return_prompt_text",
    "input_messages": "enable_response_messages",
    "output_messages": "enable_response_messages",
}

_ASKING = frozenset(_ASKED.values())
_NOTHING = frozenset[str]()

ON_REQUEST = frozenset(_ASKED)
"""Members of answers that vLLM fills only if the request says so; otherwise they are absent or null."""


def asked_for(request: Body) -> frozenset[str]:
    """Those of ON_REQUEST that a request asks for."""
    if _ASKING.isdisjoint(request):  # nearly always
        return _NOTHING
    return frozenset(member for member, name in _ASKED.items() if request.get(name, False) is not False)
