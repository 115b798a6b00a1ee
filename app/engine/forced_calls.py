"""Tool calls that `max_tokens` may cut short.

vLLM's whole answers show a call that is not complete as text, in the model's markup; its streams show the call as far
as it got, but end as if it were complete. So whole answers with a forced call are collected from streams, and the ends
of all streams with calls are corrected. Contract: vLLM 0.29, `parser/abstract_parser.py`, `tool_parsers`,
`entrypoints/openai/chat_completion`.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from app.engine.chat_collector import ChatCollector
from app.engine.content import MALFORMED
from app.engine.message_collector import MessageCollector
from app.engine.response_collector import ResponseCollector
from app.engine.stream_collector import StreamCollector
from app.sse import Framer

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


class CutCalls:
    """Corrects the end of one stream: a call whose arguments are not complete was cut short.

    vLLM's chats call that `tool_calls`, and its messages `tool_use`, unless the request names the tool.
    `is_forced`: a call without any arguments was cut, too. Where the model chose to call, some parsers send none for a
    function without parameters.
    """

    def __init__(self, path: str, *, is_forced: bool = True) -> None:
        self._is_forced = is_forced
        self._correct = self._message if path == "/v1/messages" else self._chat
        self._framer = Framer()
        self._arguments: defaultdict[int, str] = defaultdict(str)

    def feed(self, chunk: bytes) -> bytes:
        """The whole frames so far."""
        frames = self._framer.feed(chunk)
        if frames.find(b'"tool_') < 0 and frames.find(b'"input_json_delta"') < 0:
            return frames
        return b"".join(self._frame(frame + b"\n\n") for frame in frames.split(b"\n\n")[:-1])

    def _frame(self, frame: bytes) -> bytes:
        head, mark, data = frame.partition(b"data: ")
        try:
            event = from_json(data)
            is_changed = self._correct(event)
        except MALFORMED:
            return frame  # the stream's own check finds it
        return head + mark + to_json(event) + b"\n\n" if is_changed else frame

    def _chat(self, chunk: dict[str, Any]) -> bool:
        is_changed = False
        for choice in chunk["choices"]:
            for call in choice["delta"].get("tool_calls") or ():
                if call.get("id"):
                    self._arguments[choice["index"]] = ""
                self._arguments[choice["index"]] += (call.get("function") or {}).get("arguments") or ""
            if choice.get("finish_reason") == "tool_calls" and self._is_cut(choice["index"]):
                choice["finish_reason"], is_changed = "length", True
        return is_changed

    def _message(self, event: dict[str, Any]) -> bool:
        if event["type"] == "content_block_start":
            self._arguments.clear()
        elif event["type"] == "content_block_delta":
            self._arguments[0] += event["delta"].get("partial_json", "")
        elif event["type"] == "message_delta" and event["delta"].get("stop_reason") == "tool_use" and self._is_cut(0):
            event["delta"]["stop_reason"] = "max_tokens"
            return True
        return False

    def _is_cut(self, choice: int) -> bool:
        """Whether the last call's arguments are the beginning of a JSON object, and no more."""
        text = self._arguments[choice]
        try:
            from_json(text)
        except ValueError:
            return _is_a_beginning(text) if text else self._is_forced
        return False


def _is_a_beginning(text: str) -> bool:
    try:
        from_json(text, allow_partial=True)
    except ValueError:
        return False
    return True


def cut_calls(path: str, body: Mapping[str, Any]) -> CutCalls | None:
    """The correction of the stream of a vLLM request whose answer may have calls; None for any other stream."""
    if path not in _MISNAMED or ("tools" not in body and "tool_choice" not in body):
        return None
    is_forced = forces_a_call(body)
    return CutCalls(path, is_forced=is_forced) if is_forced or _may_call(body) else None


def _may_call(body: Mapping[str, Any]) -> bool:
    choice = body.get("tool_choice")
    return bool(body.get("tools")) and (choice.get("type") if isinstance(choice, dict) else choice) != "none"


_MISNAMED = frozenset({"/v1/chat/completions", "/v1/messages"})
