"""The part of vLLM's request that is the same for chats and completions. Unknown fields are ignored, as TGI does."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from app.dialects.common.engine_request import ask_for_usage, greedy, temperature
from app.dialects.json_body import value_at
from app.dialects.tgi.chat.fields import GenerationFields
from app.dialects.validation import Problem, validated
from app.errors import Unprocessable
from app.internal_api import to_int64_seed


def engine_fields(body: Mapping[str, Any], model: type[GenerationFields]) -> tuple[dict[str, Any], bool]:
    """The fields of `body` for vLLM, and whether the stream's usage is to be hidden from the client.

    Raises Unprocessable, naming the field, if `body` is not a `model`.
    """
    validated(model, body, partial(_invalid, body))
    fields = {name: body[name] for name in model.model_fields if name in body and name != "model"}
    if "seed" in fields:
        fields["seed"] = to_int64_seed(fields["seed"])
    greedy(fields)
    if "temperature" in fields:
        fields |= temperature(fields["temperature"])
    if not fields.get("stream"):
        fields.pop("stream_options", None)
        return fields, False
    return fields, not ask_for_usage(fields)


def _invalid(body: Mapping[str, Any], problem: Problem) -> Unprocessable:
    text = f"`{problem.path}`{problem.message.removeprefix(problem.path)}"
    return Unprocessable(text, param=problem.path, value=value_at(body, problem.path))
