"""How each field of TGI's and MindIE's requests is honoured. Those of TGI's own form are in `parameters`."""

from collections.abc import Iterable

from app.dialects.common.support import GREEDY_TOP_P, LEFT_OUT, NO_NEED, FieldSupport, each
from app.dialects.tgi.chat.fields import MAX_PROMPTS, Chat, Completions
from app.dialects.tgi.fields import MAX_TOP_N_TOKENS, GenerateRequest, Parameters
from app.dialects.tgi.rules import MAX_BEST_OF, MAX_STOP_SEQUENCES
from app.dialects.tgi.vertex import MAX_INSTANCES

OTHERS = "ignored, as TGI does"
_PARAMETERS = "an object: the fields in this table but `inputs` and `stream`"
_DRAWN = "vLLM's, where tokens are drawn"

_SAMPLING = {
    "seed": "vLLM's, all unsigned 64-bit ones",
    "temperature": "vLLM's; 0 is greedy, above 2 a logits processor",
    "top_p": GREEDY_TOP_P,
}

_STREAMS = {
    "model": "below `/tgi` an endpoint's deployment, if it is one; elsewhere an endpoint or a deployment, `tgi` and "
    "`dummy` for the default",
    "stream_options": "vLLM's; left out without `stream`",
}

_CHAT = {
    **each(Chat.model_fields),
    **_SAMPLING,
    **_STREAMS,
    "guideline": "for the chat template",
    "response_format": "TGI's `type` and `value` become vLLM's structured outputs; OpenAI's form is vLLM's",
    "tool_choice": f"{LEFT_OUT}; a function's bare name too",
    "tool_prompt": "done here: comes after the last message, where there are tools",
    "tools": LEFT_OUT,
    "top_logprobs": f"vLLM's; at most {MAX_TOP_N_TOKENS}, left out without `logprobs`",
}


def _used(names: Iterable[str], used: Iterable[str]) -> dict[str, str]:
    """The lines of a route that uses few of the fields that it checks."""
    return {**each(names, NO_NEED), **{name: _CHAT[name] for name in used}}


HONOURED: FieldSupport = {
    "generate": {
        **each((*GenerateRequest.model_fields, *Parameters.model_fields)),
        "adapter_id": "the endpoint's deployment of that name; an error where there is none",
        "best_of": f"done here: up to {MAX_BEST_OF}, the likeliest is the answer, the other is in the details",
        "decoder_input_details": "the details with the prompt's tokens; not in streams",
        "details": "made here of vLLM's log-probabilities",
        "do_sample": "decides whether tokens are drawn; where it is absent the other fields do, as in TGI",
        "grammar": "vLLM's structured outputs",
        "inputs": "tokenized here",
        "max_new_tokens": "vLLM's `max_tokens`; the default is the profile's",
        "parameters": _PARAMETERS,
        "return_full_text": "done here: the prompt stands before the text",
        "seed": "vLLM's, all unsigned 64-bit ones; drawn here where there is none",
        "stop": f"vLLM's; at most {MAX_STOP_SEQUENCES}, kept in the text",
        "stream": "at `/` and `/invocations`; the paths of the others say it",
        "temperature": "vLLM's, where tokens are drawn; above 2 a logits processor",
        "top_k": _DRAWN,
        "top_n_tokens": f"vLLM's log-probabilities, in the details; at most {MAX_TOP_N_TOKENS}",
        "top_p": _DRAWN,
        "truncate": "done here: keeps the prompt's last tokens",
        "typical_p": "a logits processor, where tokens are drawn",
        "watermark": "a logits processor",
    },
    "chat": _CHAT,
    "completions": {
        **each(Completions.model_fields),
        **_SAMPLING,
        **_STREAMS,
        "max_tokens": "vLLM's; the default is the profile's",
        "prompt": f"vLLM's; at most {MAX_PROMPTS}",
        "suffix": "refused, as TGI does",
    },
    "vertex": {
        "instances": f"1 to {MAX_INSTANCES} requests, each with `inputs` and `parameters` or a chat's fields",
    },
    "tokenize": {
        **each((*GenerateRequest.model_fields, *Parameters.model_fields), NO_NEED),
        "inputs": "its tokens, with their places in the text",
        "parameters": _PARAMETERS,
        "truncate": "done here: keeps the last tokens",
    },
    "chat_tokenize": _used(Chat.model_fields, ("guideline", "messages", "model", "tool_prompt", "tools")),
}
