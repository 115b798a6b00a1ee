"""How each field of Anthropic's requests is honoured. What is not named here is vLLM's."""

from app.dialects.anthropic.fields import ENGINE, ENGINE_COUNT
from app.dialects.common.support import MODEL, RECORDS, REFUSED_BY_NAME, FieldSupport, each

OTHERS = REFUSED_BY_NAME

_TAKEN = {
    "model": MODEL,
    "thinking": "`disabled` is as none; any other is refused: the engine has no budget for thoughts, and whether a "
    "model thinks is up to its chat template (`chat_template_kwargs`)",
}

HONOURED: FieldSupport = {
    "messages": {
        **each(ENGINE),
        **_TAKEN,
        "metadata": "`user_id` is the key where an endpoint is sticky by user; else changes nothing",
        "service_tier": RECORDS,
    },
    "count_tokens": {**each(ENGINE_COUNT), **_TAKEN},
}
