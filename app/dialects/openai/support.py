"""How each field of OpenAI's requests is honoured. What is not named here is vLLM's."""

from app.dialects.common.fields import BOOKKEEPING
from app.dialects.common.support import (
    BEST_OF,
    GREEDY_N,
    GREEDY_TOP_P,
    LAST_EVENT,
    MODEL,
    ONE_CALL,
    RECORDS,
    REFUSED_BY_NAME,
    SECOND_USER,
    TOLD_BACK,
    TOLD_USER,
    USER,
    FieldSupport,
    each,
    refused,
)
from app.dialects.openai.vllm_fields import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ENGINE_TOKENIZE,
    RESPONSES,
    RESPONSES_BOOKKEEPING,
    UNSUPPORTED,
)

OTHERS = REFUSED_BY_NAME
_RECORDS = {**each(BOOKKEEPING, RECORDS), "safety_identifier": SECOND_USER, "user": USER}
_REFUSED = refused(UNSUPPORTED)

_GENERATION = {
    **_RECORDS,
    "model": MODEL,
    "n": GREEDY_N,
    "stream_options": "vLLM's; only with `stream`",
    "top_p": GREEDY_TOP_P,
}

HONOURED: FieldSupport = {
    "chat": {**each(CHAT), **_GENERATION, **_REFUSED},
    "completions": {
        **each(COMPLETIONS),
        **_GENERATION,
        "best_of": BEST_OF,
        "suffix": "refused unless it is empty: no text is filled in",
        **_REFUSED,
    },
    "embeddings": {**each(EMBEDDINGS), **_RECORDS, "model": MODEL, **_REFUSED},
    "responses": {
        **each(RESPONSES),
        **each(RESPONSES_BOOKKEEPING, RECORDS),
        "background": "only false: every response is made while the client waits",
        "metadata": TOLD_BACK,
        "model": MODEL,
        "parallel_tool_calls": ONE_CALL,
        "prompt_cache_key": RECORDS,
        "safety_identifier": SECOND_USER,
        "store": "taken; nothing is stored, and the answer says false",
        "stream_options": LAST_EVENT,
        "top_p": GREEDY_TOP_P,
        "user": TOLD_USER,
        **_REFUSED,
    },
    "tokenize": {**each(ENGINE_TOKENIZE), "model": MODEL, **_REFUSED},
}
