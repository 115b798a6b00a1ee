"""Detects Friendli's clients on paths that they share with OpenAI's, and which form of a stream they read.

Friendli's current SDK reads OpenAI's chunks (`Form` "modern"); the previous one (`friendli-client`) and Friendli's
documentation have their own events ("classic"). Only streams differ.

Headers decide first: those of the OpenAI SDK mean that a request is not Friendli's, regardless of its body. Other
bodies are searched for the names of fields that only Friendli has, and parsed only if one occurs, or if they are long.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from app.dialects.base import Request, is_openais_sdk
from app.dialects.bodies import peek
from app.long_json import LONG_BODY

Form = Literal["classic", "modern"]
_SDK = "friendli-core"  # in the current SDK's user agent
_ALWAYS_SENT = "timeout_microseconds"  # by the previous SDK, as null unless its user sets it
_ALWAYS_SENT_RAW = _ALWAYS_SENT.encode()

FRIENDLIS_OWN = frozenset(
    "bad_word_tokens beam_search_type early_stopping embedding_to_replace encoder_no_repeat_ngram "
    "encoder_repetition_penalty eos_token forced_output_tokens include_output_logits include_output_logprobs "
    "max_total_tokens min_total_tokens no_repeat_ngram num_beams stop_tokens timeout timeout_microseconds "
    "token_index_to_replace tokens".split()
)
"""Fields of a completions request that no other dialect has; `bad_words` and `min_tokens` are vLLM's too."""

_MAY_BE_FRIENDLIS = re.compile(
    rb'"(?:%b)"\s*:|"seed"\s*:\s*\[|"response_format"' % "|".join(sorted(FRIENDLIS_OWN)).encode()
)


def form(headers: Mapping[str, str]) -> Form:
    """The form of stream that a client reads. The OpenAI SDK on Friendli's own paths reads OpenAI's chunks."""
    is_modern = _SDK in headers.get("user-agent", "") or is_openais_sdk(headers)
    return "modern" if is_modern else "classic"


def is_friendli_completion(request: Request) -> bool:
    """Whether a request at `/v1/completions` is Friendli's."""
    headers = request.headers
    if _SDK in headers.get("user-agent", ""):
        return True
    if is_openais_sdk(headers):
        return False
    if "x-friendli-team" in headers or headers.get("authorization", "").startswith("Bearer flp_"):
        return True
    # A search in a list of 400,000 texts takes 80 ms, in which nothing else runs.
    may_be = len(request.body) > LONG_BODY or _MAY_BE_FRIENDLIS.search(request.body) is not None
    return may_be and _has_friendlis_fields(peek(request.body))


def is_friendli_chat(request: Request) -> bool:
    """Whether a request at `/v1/chat/completions` is Friendli's; the answer has OpenAI's format in any case."""
    headers = request.headers
    if "x-friendli-team" in headers or _SDK in headers.get("user-agent", ""):
        return True
    if request.body.find(_ALWAYS_SENT_RAW) < 0 or is_openais_sdk(headers):
        return False
    return _ALWAYS_SENT in peek(request.body)


def _has_friendlis_fields(body: Mapping[str, Any]) -> bool:
    if not FRIENDLIS_OWN.isdisjoint(body) or isinstance(body.get("seed"), list):
        return True
    wanted = body.get("response_format")
    return isinstance(wanted, dict) and (wanted.get("type") == "regex" or isinstance(wanted.get("schema"), str))
