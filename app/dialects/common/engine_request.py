"""Where vLLM takes less than the dialects promise: seeds beyond a signed integer, high temperatures, other extras."""

from collections.abc import Mapping
from typing import Any

from app.dialects.base import ServingContext
from app.internal_api import Xarg
from app.routing.traffic import Random

_LARGEST_DRAWN_SEED = 2**53 - 2**10  # a number that JavaScript can hold, and some more for the choices after the first
_MAX_TEMPERATURE = 2.0


def draw_seed(random: Random) -> int:
    """A seed for a request that has none."""
    return 1 + int(random.random() * (_LARGEST_DRAWN_SEED - 1))


def temperature(wanted: float) -> dict[str, Any]:
    """A temperature in vLLM's words: above its limit, a processor of the deployment does the rest (`vllm_xargs`)."""
    if wanted <= _MAX_TEMPERATURE:
        return {"temperature": wanted}
    return {"temperature": _MAX_TEMPERATURE, "vllm_xargs": {Xarg.TEMPERATURE: wanted}}


_ROUTES = ("seeds", "beam", "replace_embeddings")  # fields of a completion that vLLM's own route does not have


def engine_extensions(question: Mapping[str, Any]) -> list[str]:
    """What a question asks of this project's model applications alone.

    A plain vLLM server would leave it out without a word: it must not be asked.
    """
    return [*question.get("vllm_xargs", {}), *(name for name in _ROUTES if name in question)]


def missing_capability(question: Mapping[str, Any], served: ServingContext) -> tuple[str, str] | None:
    """The first of a question's `engine_extensions` that the deployment does not have, and why not."""
    model = served.known_model
    for name in engine_extensions(question):
        if not model.is_extended:
            return name, f"deployment '{served.deployment}' is a plain vLLM server, which cannot do this"
        if name not in _ROUTES and name not in model.processors:
            return name, f"deployment '{served.deployment}' runs without the logits processor that does this"
    return None


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
