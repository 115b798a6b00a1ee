"""TGI's routes in OpenAI's form: its own extras and limits made vLLM's, and the answer what TGI's clients insist on.

Unknown fields are ignored, as TGI does.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from app.dialects.base import ServingContext
from app.dialects.common.engine_request import ask_for_usage, greedy, temperature
from app.dialects.tgi.chat.fields import MAX_PROMPTS, Chat, Completions, _checked
from app.dialects.tgi.fields import Grammar
from app.dialects.tgi.generation import refuse_extras, structured
from app.dialects.tgi.profile import Profile
from app.dialects.validation import first_problem
from app.errors import Unprocessable
from app.internal_api import to_int64_seed


def _for_the_sampler(body: dict[str, Any]) -> dict[str, Any]:
    """Rewrites what vLLM's own bounds exclude."""
    if "seed" in body:
        body["seed"] = to_int64_seed(body["seed"])
    greedy(body)
    if "temperature" in body:
        body |= temperature(body["temperature"])
    return body


def _counted(body: dict[str, Any]) -> bool:
    """Has every stream tell its usage; says whether the client did not ask, and must not see it."""
    if not body.get("stream"):
        body.pop("stream_options", None)
        return False
    return not ask_for_usage(body)


def chat(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """vLLM's chat request, and whether its usage is hidden. Raises Unprocessable."""
    chosen = _for_the_sampler(_checked(body, Chat))
    _templated(chosen)
    _tools(chosen)
    if not chosen.get("logprobs"):
        chosen.pop("top_logprobs", None)
    if "response_format" in chosen:
        chosen |= _formatted(chosen.pop("response_format"))
    return chosen, _counted(chosen)


def _templated(body: dict[str, Any]) -> None:
    """`guideline` is the template's to use; `tool_prompt` comes after the last message, as TGI puts it."""
    if (guideline := body.pop("guideline", None)) is not None:
        body["chat_template_kwargs"] = {"guideline": guideline}
    if not (prompt := body.pop("tool_prompt", "")) or not body.get("tools"):
        return
    *before, last = body["messages"]
    content, added = last.get("content") or "", f"\n---\n{prompt}"
    content = content + added if isinstance(content, str) else [*content, {"type": "text", "text": added}]
    body["messages"] = [*before, {**last, "content": content}]


def _tools(body: dict[str, Any]) -> None:
    """A `tool_choice` may be a function's bare name; without tools there is nothing to choose."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if not tools:
        body.pop("tools", None)
        body.pop("tool_choice", None)
    elif isinstance(choice, str) and choice not in ("auto", "none", "required"):
        if choice not in [tool["function"]["name"] for tool in tools]:
            raise Unprocessable(f"Tool with name {choice} not found", param="tool_choice", code="tool_error")
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}


def _formatted(wanted: dict[str, Any]) -> dict[str, Any]:
    """A `response_format` in TGI's form, or in OpenAI's as it is."""
    if "value" not in wanted:
        return {"response_format": wanted}
    try:
        return {"structured_outputs": structured(Grammar.model_validate(wanted), "response_format")}
    except ValidationError as error:
        problem = first_problem(error)
        raise Unprocessable(f"`response_format`: {problem.message}", param="response_format") from None


def completions(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """vLLM's completions request, but for `max_tokens`, and whether its usage is hidden. Raises Unprocessable."""
    chosen = _for_the_sampler(_checked(body, Completions))
    if chosen.pop("suffix", None) is not None:
        raise Unprocessable(
            "Suffix is not supported and can be achieved by preprocessing the prompt.",
            param="suffix",
            code="suffix not supported",
        )
    if isinstance(chosen["prompt"], list) and len(chosen["prompt"]) > MAX_PROMPTS:
        raise Unprocessable(
            f"Number of prompts exceeds the maximum allowed batch size of {MAX_PROMPTS}",
            param="prompt",
            code="batch size exceeded",
        )
    return chosen, _counted(chosen)


def possible(body: dict[str, Any], served: ServingContext) -> dict[str, Any]:
    """`body`, which the deployment can do. Raises Unprocessable."""
    refuse_extras(body, served)
    return body


def limited(body: dict[str, Any], served: ServingContext, profile: Profile) -> dict[str, Any]:
    """`body` with the profile's `max_tokens`; vLLM's own default would be 16. Raises Unprocessable."""
    refuse_extras(body, served)
    if "max_tokens" in body:
        return body
    model = served.known_model
    prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
    longest = max(len(model.encode(prompt)) for prompt in prompts)
    if (rest := model.max_len - longest) < 1:
        raise Unprocessable(
            f"`inputs` must have less than {model.max_len - 1} tokens. Given: {longest}", param="prompt"
        )
    return {**body, "max_tokens": min(profile.max_new_tokens or rest, rest)}


def tokenized(body: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's question for a chat's prompt and its tokens. Raises Unprocessable."""
    chosen, _ = chat(body)
    asked: dict[str, Any] = {
        name: chosen[name] for name in ("messages", "tools", "chat_template_kwargs") if name in chosen
    }
    return {**asked, "return_token_offsets": True}
