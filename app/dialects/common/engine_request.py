"""Engine requests where vLLM accepts less than the dialects promise: seeds, temperatures, greedy decoding, and more."""

from collections.abc import Container, Mapping
from typing import Any

from app.dialects.base import ServingContext
from app.errors import BadRequest
from app.internal_api import Xarg
from app.routing.traffic import Random

_LARGEST_DRAWN_SEED = 2**53 - 2**10  # a number that JavaScript can hold, and some more for the choices after the first
_MAX_TEMPERATURE = 2.0


def draw_seed(random: Random) -> int:
    """A seed for a request that has none."""
    return 1 + int(random.random() * (_LARGEST_DRAWN_SEED - 1))


def temperature(value: float) -> dict[str, Any]:
    """The fields for a temperature: above vLLM's limit, a logits processor scales by the rest (`vllm_xargs`)."""
    if value <= _MAX_TEMPERATURE:
        return {"temperature": value}
    return {"temperature": _MAX_TEMPERATURE, "vllm_xargs": {Xarg.TEMPERATURE: value}}


_EXTENSION_FIELDS = ("seeds", "beam", "replace_embeddings")  # of completions; vLLM's own route does not have them


def engine_extensions(body: Mapping[str, Any]) -> list[str]:
    """The parts of an engine request that only this project's model applications support.

    A plain vLLM server ignores them, so it must not get the request.
    """
    return [*body.get("vllm_xargs", {}), *(name for name in _EXTENSION_FIELDS if name in body)]


def missing_capability(body: Mapping[str, Any], serving: ServingContext) -> tuple[str, str] | None:
    """The first of the request's `engine_extensions` that the deployment does not support, and the reason."""
    model = serving.known_model
    for name in engine_extensions(body):
        if not model.is_extended:
            return name, f"deployment '{serving.deployment}' is a plain vLLM server, which cannot do this"
        if name not in _EXTENSION_FIELDS and name not in model.processors:
            return name, f"deployment '{serving.deployment}' runs without the logits processor that does this"
    return None


def greedy(body: dict[str, Any]) -> None:
    """Rewrites the two forms of greedy decoding that vLLM rejects: `top_p` 0, and temperature 0 with `n` > 1.

    For the latter, `top_k` 1 at any other temperature gives the same tokens.
    """
    if body.get("top_p") == 0:
        body["top_p"] = 1.0
        body["temperature"] = 0.0
    n = body.get("n", 1)
    if body.get("temperature") == 0 and isinstance(n, int) and n > 1:
        body.update(temperature=1.0, top_k=1)


def ask_for_usage(body: dict[str, Any]) -> bool:
    """Makes a streamed answer report its usage; returns whether the client asked for it."""
    if not body.get("stream"):
        return False
    options = body.get("stream_options", {})
    if not isinstance(options, dict):  # unchecked where Azure's clients pass extra parameters: vLLM rejects it
        return False
    body["stream_options"] = {**options, "include_usage": True}
    return bool(options.get("include_usage"))


def drop_empty_tools(body: dict[str, Any]) -> None:
    """Removes `tools` and `tool_choice` if there are no tools: vLLM rejects an empty list, and a choice without one."""
    if not body.get("tools"):
        body.pop("tools", None)
        body.pop("tool_choice", None)


def drop_unasked(body: dict[str, Any], refused: Container[str]) -> None:
    """Removes fields of what is refused that are empty lists: they ask for nothing."""
    for name in [name for name, value in body.items() if name in refused and value == []]:
        del body[name]


def continue_prefix(body: dict[str, Any]) -> None:
    """`prefix: true` on the model's last message, as DeepSeek's and Mistral's servers and LiteLLM have it, in vLLM's
    fields: the answer continues that message. Raises BadRequest on any other message.
    """
    messages = body["messages"]
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("prefix") is not True:
            continue
        if number < len(messages) - 1 or message.get("role") != "assistant":
            where = f"messages[{number}].prefix"
            raise BadRequest(f"{where}: only the last message is continued, if it is the assistant's", param=where)
        body["messages"] = [*messages[:-1], {name: value for name, value in message.items() if name != "prefix"}]
        body |= {"continue_final_message": True, "add_generation_prompt": False}


def settle_format(wanted: Any, path: str, *, is_flat: bool = False) -> Any:
    """A `response_format` (`is_flat`: of Responses) whose schema is enforced, also with the type `json_object`, where
    vLLM would ignore it. Raises BadRequest for a schema that belongs to no type.
    """
    if not isinstance(wanted, Mapping):
        return wanted
    kind, schema = wanted.get("type"), wanted.get("schema")
    if kind == "json_object" and isinstance(schema, Mapping):
        inner = {"name": "schema", "schema": schema}
        return {"type": "json_schema", **(inner if is_flat else {"json_schema": inner})}
    for name, owner in (("schema", "json_schema" if is_flat else "json_object"), ("json_schema", "json_schema")):
        if name in wanted and kind != owner and isinstance(kind, str):
            raise BadRequest(f"{path}.{name}: only with the type '{owner}'", param=f"{path}.{name}")
    return wanted
