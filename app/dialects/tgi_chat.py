"""TGI's routes in OpenAI's form: its own extras and limits made vLLM's, and the answer what TGI's clients insist on.

Unknown fields are ignored, as TGI does.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from app.dialects.base import Reply, Served, dump, first_problem, value_at
from app.dialects.common_fields import Function, Penalty, StreamOptions
from app.dialects.ending import EndedOnce
from app.dialects.limits import folded, temperature
from app.dialects.relay import Ending
from app.dialects.sampling import ask_for_usage, greedy
from app.dialects.tgi_errors import chat_error_events
from app.dialects.tgi_fields import MAX_TOP_N_TOKENS, Grammar, Profile
from app.dialects.tgi_generation import refuse_extras, structured
from app.engine import Usage, engine_error, find_usage
from app.errors import Broken, Unprocessable
from app.sse import DONE, Decoder, encode

NO_MODEL = (None, "tgi", "dummy")
"""What the clients put into `model` for "the one that is there"."""

MAX_PROMPTS = 4

COMPLETIONS = Ending(is_terminal=lambda frames: frames.endswith(DONE), error_frames=chat_error_events)

_FINGERPRINT = "3.3.6-native"  # where the engine tells none: a client needs a string


class _Strict(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class _Message(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class _Tool(_Strict):
    type: Literal["function"]
    function: Function


class _Generation(_Strict):
    model: str | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = Field(default=None, ge=0, lt=2**64)
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)


class Chat(_Generation):
    messages: list[_Message] = Field(min_length=1)
    guideline: str | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: int = Field(default=1, ge=1, le=128)
    presence_penalty: Penalty | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tool_prompt: str | None = None
    tools: list[_Tool] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_N_TOKENS)


class Completions(_Generation):
    prompt: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)]
    suffix: str | None = None


def _checked(body: Mapping[str, Any], model: type[_Generation]) -> dict[str, Any]:
    """The fields of `body` that are TGI's. Raises Unprocessable, naming the field."""
    try:
        model.model_validate(body)
    except ValidationError as error:
        problem = first_problem(error)
        text = f"`{problem.path}`{problem.message.removeprefix(problem.path)}"
        raise Unprocessable(text, param=problem.path, value=value_at(body, problem.path)) from None
    return {name: body[name] for name in model.model_fields if name in body and name != "model"}


def _for_the_sampler(body: dict[str, Any]) -> dict[str, Any]:
    """Rewrites what vLLM's own bounds exclude."""
    if "seed" in body:
        body["seed"] = folded(body["seed"])
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


def possible(body: dict[str, Any], served: Served) -> dict[str, Any]:
    """`body`, which the deployment can do. Raises Unprocessable."""
    refuse_extras(body, served)
    return body


def limited(body: dict[str, Any], served: Served, profile: Profile) -> dict[str, Any]:
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


def tokens_of_the_template(body: bytes, served: Served) -> Reply:
    """`/chat_tokenize`: the tokens of a chat's prompt with their places in its text. Raises Broken."""
    try:
        told = from_json(body)
        tokenizer, ids, offsets = served.known_model.tokenizer, told["token_ids"], told["token_offsets"]
        text: str = tokenizer.decode(ids, skip_special_tokens=False)
        if offsets is None:  # an engine that takes embeddings for prompts does not tell them
            encoding = tokenizer.encode(text, add_special_tokens=False)
            ids, offsets = encoding.ids, encoding.offsets
        tokens = [
            {"id": id, "text": text[start:stop], "start": start, "stop": stop}
            for id, (start, stop) in zip(ids, offsets, strict=True)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Broken("The deployment's answer is no prompt") from error
    return Reply(dump({"tokenize_response": tokens, "templated_text": text}))


def completed(body: bytes) -> Reply:
    """A whole answer with the fields without which TGI's clients do not read it. Raises Broken."""
    try:
        answer = _with_fingerprint(from_json(body))
        for choice in answer["choices"]:
            choice.setdefault("logprobs", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Broken("The deployment's answer is no completion") from error
    return Reply(dump(answer))


def text_of(answer: Mapping[str, Any]) -> str:
    """What a whole chat answer says. Raises Broken."""
    try:
        text: str = answer["choices"][0]["message"]["content"] or ""
    except (KeyError, TypeError, IndexError) as error:
        raise Broken("The deployment's answer is no completion") from error
    return text


def _with_fingerprint(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "system_fingerprint": answer.get("system_fingerprint") or _FINGERPRINT}


class ChatEvents(EndedOnce):
    """A `Stream` of chat chunks, each with the role, the tool calls and the fingerprint that TGI's have."""

    def __init__(self, *, hide_usage: bool) -> None:
        super().__init__(chat_error_events)
        self._decoder = Decoder()
        self._hide_usage = hide_usage
        self.usage: Usage | None = None

    def feed(self, chunk: bytes) -> bytes:
        try:
            return b"".join(self._frame(event.data) for event in self._decoder.feed(chunk))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken("The deployment's answer is no completion") from error

    def _frame(self, data: str) -> bytes:
        if self._ended:
            return b""
        if data == "[DONE]":
            self._ended = True
            return DONE
        chunk = from_json(data)
        if "error" in chunk:
            return self.fail(engine_error(data.encode(), status=500))
        if not chunk["choices"]:
            self.usage = find_usage(data.encode()) or self.usage
            if self._hide_usage:
                return b""
        for choice in chunk["choices"]:
            choice["delta"] = {"role": "assistant", "content": None, "tool_calls": None, **choice["delta"]}
        return encode(dump(_with_fingerprint(chunk)))
