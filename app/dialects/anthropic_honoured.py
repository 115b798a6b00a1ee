"""How each field of Anthropic's requests is honoured. What is not named here is vLLM's."""

from app.dialects.anthropic import ENGINE
from app.dialects.honoured import MODEL, RECORDS, REFUSED_BY_NAME, Honoured, each

OTHERS = REFUSED_BY_NAME

_TAKEN = {
    "metadata": "`user_id` is the key where an endpoint is sticky by user; else changes nothing",
    "model": MODEL,
    "service_tier": RECORDS,
    "thinking": "`disabled` is as none; any other is refused: the engine has no budget for thoughts, and whether a "
    "model thinks is up to its chat template (`chat_template_kwargs`)",
}

# What makes a prompt; the other fields are for an answer.
_COUNTED = ("chat_template_kwargs", "messages", "system", "tool_choice", "tools")

HONOURED: Honoured = {
    "messages": {**each(ENGINE), **_TAKEN},
    "count_tokens": {
        **each(ENGINE, "changes nothing: no answer is generated"),
        **each(_COUNTED),
        **_TAKEN,
    },
}
