"""Requests in vLLM's words where OpenAI's shape allows what vLLM refuses, and streams that are to tell their usage."""

from typing import Any


def greedy(body: dict[str, Any]) -> None:
    """Rewrites the two ways to ask for greedy decoding that vLLM refuses.

    `top_p` 0 is out of vLLM's bounds. `n` > 1 at temperature 0 is too: `top_k` 1 at any other temperature gives the
    same tokens.
    """
    if body.get("top_p") == 0:
        body["top_p"] = 1.0
        body["temperature"] = 0.0
    if body.get("temperature") == 0 and body.get("n", 1) > 1:
        body.update(temperature=1.0, top_k=1)


def ask_for_usage(body: dict[str, Any]) -> bool:
    """Has a streamed answer tell its usage; whether the client asked for it."""
    if not body.get("stream"):
        return False
    options = body.get("stream_options", {})
    body["stream_options"] = {**options, "include_usage": True}
    return bool(options.get("include_usage"))
