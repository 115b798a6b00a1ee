"""How each field of Azure's requests is honoured. What is not named here is vLLM's."""

from app.dialects.azure.fields import KNOWN
from app.dialects.common.support import (
    GREEDY_TOP_P,
    LAST_USAGE,
    LEFT_OUT,
    MODEL,
    NO_NEED,
    REST_OF_THE_CONTEXT,
    TOOL_CHOICE,
    FieldSupport,
    each,
)

OTHERS = (
    "as the header `extra-parameters` says: refused, dropped, or passed to vLLM; a `user` that is "
    "passed is the key where an endpoint is sticky by user"
)

_GENERATION = {
    "max_tokens": REST_OF_THE_CONTEXT,
    "model": f"{MODEL}; below `/endpoints/{{endpoint}}` one of its deployments",
    "stream": LAST_USAGE,
    "top_p": GREEDY_TOP_P,
}

HONOURED: FieldSupport = {
    "chat": {
        **each(KNOWN["chat"]),
        **_GENERATION,
        "messages": "vLLM's; the documented form of a part, with all in `content`, becomes OpenAI's",
        "modalities": "only text; changes nothing",
        "stream_options": "checked; a stream tells its usage in any case",
        "tool_choice": TOOL_CHOICE,
        "tools": LEFT_OUT,
    },
    "completions": {**each(KNOWN["completions"]), **_GENERATION, "prompt": "vLLM's; one text, or a list of one"},
    "embeddings": {
        **each(KNOWN["embeddings"]),
        "encoding_format": "all six are made here of vLLM's floats",
        "input_type": NO_NEED,
        "model": _GENERATION["model"],
    },
}
