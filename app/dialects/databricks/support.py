"""How each field of Databricks' requests is honoured. What is not named here is vLLM's."""

from app.dialects.common.support import (
    BEST_OF,
    GREEDY_N,
    LAST_EVENT,
    LAST_USAGE,
    MODEL,
    ONE_CALL,
    REFUSED_BY_NAME,
    REST_OF_THE_CONTEXT,
    SECOND_USER,
    TOLD_BACK,
    TOLD_USER,
    TOOL_CHOICE,
    USER,
    FieldSupport,
    each,
    refused,
)
from app.dialects.common.support import RECORDS as TAKEN
from app.dialects.databricks.fields import (
    MAX_PROPERTIES,
    MAX_TOOLS,
    NOT_FOR_LANGUAGE_MODELS,
    RECORDS,
    Chat,
    Completions,
    Embeddings,
)
from app.dialects.databricks.responses.fields import Responses
from app.dialects.databricks.responses.translate import REFUSED

OTHERS = f"{REFUSED_BY_NAME}, at any depth"

_EVERYWHERE = {
    **refused(each(NOT_FOR_LANGUAGE_MODELS, "not for an endpoint that serves a language model")),
    "extra_params": "a map of texts: each is a field, its text read as JSON where it is JSON",
    "model": f"{MODEL}; below an endpoint's path one of its deployments",
}

_RECORDS = {**each(RECORDS, TAKEN), "safety_identifier": SECOND_USER, "user": USER}

_GENERATION = {
    **_EVERYWHERE,
    **_RECORDS,
    "max_tokens": REST_OF_THE_CONTEXT,
    "n": GREEDY_N,
    "stream": LAST_USAGE,
    "stream_options": "`include_usage` has the usage in a chunk of its own",
}

_FLAT = "vLLM's, in the documented nested form or in OpenAI's flat one"

HONOURED: FieldSupport = {
    "chat": {
        **each(Chat.model_fields),
        **_GENERATION,
        "messages": "vLLM's; `system` first and once; `cache_control` changes nothing",
        "reasoning_effort": "for the chat template; a model that does not reason has no use for it",
        "tool_choice": TOOL_CHOICE,
        "tools": f"vLLM's; at most {MAX_TOOLS} functions of at most {MAX_PROPERTIES} properties",
    },
    "completions": {
        **each(Completions.model_fields),
        **_GENERATION,
        "best_of": BEST_OF,
        "echo": "done here: the prompt stands before each text",
        "error_behavior": "done here: `truncate` cuts the prompt from the left, lowers `max_tokens`, and tells what "
        "there is when time is up",
        "logprobs": "vLLM's; not with `echo`",
        "prompt": "one or several, each put into the chat template here",
        "suffix": "done here: stands after each text",
        "use_raw_prompt": "done here: true leaves the chat template out",
    },
    "embeddings": {
        **each(Embeddings.model_fields),
        **_EVERYWHERE,
        **_RECORDS,
        "instruction": "put to each text as the deployment's `instruction_template` says",
    },
    "responses": {
        **each(Responses.model_fields),
        **_EVERYWHERE,
        **each(("client_request_id", "usage_context"), TAKEN),
        **each(("max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_retention"), TOLD_BACK),
        "input": "text or items; calls and their outputs as items or blocks, files as their text",
        "parallel_tool_calls": ONE_CALL,
        "reasoning": "`effort` is vLLM's; `encrypted_content` changes nothing",
        "safety_identifier": f"{SECOND_USER}; told back in the answer",
        "stream_options": LAST_EVENT,
        "text": _FLAT,
        "tool_choice": f"{_FLAT}; only with tools",
        "tools": _FLAT,
        "top_logprobs": "vLLM's; asks for log-probabilities by itself",
        "truncation": "told back in the answer; an input that is too long is refused in any case",
        "user": TOLD_USER,
        **refused(REFUSED),
    },
}
