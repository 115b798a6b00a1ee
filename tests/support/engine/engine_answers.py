"""vLLM's completions with any tokens in any portions. They are a test oracle, and do not use the router's code."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.engine.model import Model


def texts(model: Model, prompt: Sequence[int], ids: Sequence[int]) -> list[str]:
    """The text that each id adds: everything that is complete since the last id that added text."""
    whole = model.decode(prompt)
    added, waiting = [], [*prompt]
    for id in ids:
        waiting.append(id)
        now = model.decode(waiting)
        if now.endswith("\ufffd") or id in model.special_ids:
            added.append("")
        else:
            added.append(now.removeprefix(whole))
            whole = now
    return added


def logprobs(ids: Sequence[int], top: int) -> dict[str, Any]:
    """A log-probability for each id, and `top` others, unlikelier and in no order."""
    names = [f"token_id:{id}" for id in ids]
    others = [{f"token_id:{3 + n}": -2.0 - n for n in reversed(range(top))} for _ in ids]
    return {
        "tokens": names,
        "token_logprobs": [-0.5 - position for position, _ in enumerate(ids)],
        "top_logprobs": [{name: -0.5, **more} for name, more in zip(names, others, strict=True)],
        "text_offset": [0 for _ in ids],
    }


def choice(
    model: Model,
    prompt: Sequence[int],
    ids: Sequence[int],
    *,
    index: int = 0,
    finish_reason: str = "length",
    stop: str | None = None,
    top: int | None = 0,
) -> dict[str, Any]:
    """A whole choice; with `stop`, one that ended where that string does."""
    text = "".join(texts(model, prompt, ids))
    if stop is not None:
        finish_reason, text = "stop", text[: text.index(stop) + len(stop)]
    return {
        "index": index,
        "text": text,
        "token_ids": list(ids),
        "prompt_token_ids": list(prompt),
        "prompt_logprobs": [None, *({str(id): {"logprob": -3.0, "rank": 9}} for id in prompt[1:])],
        "logprobs": None if top is None else logprobs(ids, top),
        "finish_reason": finish_reason,
        "stop_reason": stop,
    }


def portions(model: Model, whole: Mapping[str, Any], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """A choice in a stream's form, in portions of the given numbers of tokens; the last portion has the rest."""
    prompt, ids = whole["prompt_token_ids"], whole["token_ids"]
    added = texts(model, prompt, ids)
    cuts = [0]
    for size in sizes:
        cuts.append(min(cuts[-1] + size, len(ids) - 1))
    parts: list[dict[str, Any]] = []
    room = len(whole["text"])
    for start, end in zip(cuts, [*cuts[1:], len(ids)], strict=True):
        text = "".join(added[start:end])[:room]
        room -= len(text)
        parts.append(
            {
                **whole,
                "text": text,
                "token_ids": ids[start:end],
                "prompt_token_ids": prompt if start == 0 and not parts else None,
                "logprobs": whole["logprobs"] and {name: of[start:end] for name, of in whole["logprobs"].items()},
                "finish_reason": whole["finish_reason"] if end == len(ids) else None,
                "stop_reason": whole["stop_reason"] if end == len(ids) else None,
            }
        )
    return parts


def frame(value: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def stream(parts: Sequence[Mapping[str, Any]]) -> bytes:
    """The bytes of a stream with one choice's portion in each chunk."""
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    return b"".join(frame({**head, "choices": [part]}) for part in parts) + b"data: [DONE]\n\n"
