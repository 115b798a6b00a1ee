"""Tool calls that a request forces, and that `max_tokens` may cut short.

vLLM's whole answers show a call that is not complete as text, in the model's markup; its streams show the call as far
as it got. So these whole answers are collected from streams. Contract: vLLM 0.29, `parser/abstract_parser.py`,
`tool_parsers`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.engine.chat_collector import ChatCollector
from app.engine.message_collector import MessageCollector
from app.engine.response_collector import ResponseCollector
from app.engine.stream_collector import StreamCollector

_COLLECTORS: Mapping[str, Callable[[Mapping[str, Any]], StreamCollector]] = {
    "/v1/chat/completions": ChatCollector,
    "/v1/messages": MessageCollector,
    "/v1/responses": ResponseCollector,
}
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
_NOT_IN_STREAMS = frozenset({"prompt_logprobs", "use_beam_search", "kv_transfer_params", "ec_transfer_params"})


def forced_call_collector(path: str, body: Mapping[str, Any]) -> StreamCollector | None:
    """The collector for a vLLM request whose tool call may be cut short; None for any other request."""
    if path not in _COLLECTORS or not forces_a_call(body) or _LIMITS.isdisjoint(body):
        return None
    return _COLLECTORS[path](body) if _NOT_IN_STREAMS.isdisjoint(body) else None


def forces_a_call(body: Mapping[str, Any]) -> bool:
    """Whether a vLLM request must be answered with a tool call."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice == "required"
