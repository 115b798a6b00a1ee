"""The fields of Anthropic's requests, as far as vLLM 0.29 models them; it would ignore any other one silently."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.config.meant import nearest
from app.dialects.common.fields import MODEL, NEEDS_TOOLS, RECORDS, check_without_prefix

_BLOCKS = frozenset("text image tool_use tool_result tool_reference thinking redacted_thinking".split())
"""The types of content blocks that vLLM models."""

_RESULTS = frozenset({"text", "image", "tool_reference"})
"""Those of the blocks in a tool's result. vLLM would leave out any other."""

_NEEDED: Mapping[str, Sequence[str]] = {
    "text": ("text",),
    "image": ("source",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "tool_reference": ("tool_name",),
    "thinking": ("thinking",),
}
"""What a block of a type must have. vLLM would leave it out of the prompt."""

_Type = type | tuple[type, ...]
_TYPES: Mapping[str, _Type] = {
    **dict.fromkeys("id name text thinking tool_name tool_use_id".split(), str),
    **dict.fromkeys("input source".split(), dict),
    "content": (str, list),
}
"""The types of a block's members. vLLM names the block's list instead."""

_WORDS: Mapping[_Type, str] = {str: "a valid string", dict: "an object", (str, list): "a string or a list of blocks"}

_CLEARING = "clear_"
"""Edits of the context that remove what is no longer needed: a server that removes nothing answers the same request."""

_STORED = "this server stores no files and runs no tools"


class _Thinking(BaseModel):
    # A model may think less than its budget, and thinking that is adaptive is the model's own decision.
    model_config = ConfigDict(extra="forbid", strict=True)

    block_binding: Any = None
    display: Any = None


class _Disabled(_Thinking):
    type: Literal["disabled"]


class _Adaptive(_Thinking):
    type: Literal["adaptive"]


class _Enabled(_Thinking):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024)


Thinking = Annotated[_Disabled | _Adaptive | _Enabled, Field(discriminator="type")] | None


class CountTokens(BaseModel):
    """POST /v1/messages/count_tokens: the fields that make up a prompt. Anthropic's own API rejects the other fields
    here.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    refused: ClassVar[Mapping[str, str]] = {
        "compaction": "conversations are not summarized; ask for a summary in `messages`",
        "container": _STORED,
        "thread": "this server stores no threads; send the whole conversation in `messages`. The error tells SDKs' "
        'tool runners, which then do so; a `thread()` needs `unsupported_request_behavior="continue_unthreaded"`',
        "mcp_servers": "this server calls no MCP servers; the client can, and offer their tools in `tools`",
    }

    model: str = Field(description=MODEL)
    messages: list[Any] = Field(min_length=1)
    cache_control: dict[str, Any] | None = Field(
        default=None, description="here and on every block and tool: changes nothing; every prefix is cached anyway"
    )
    chat_template_kwargs: Any = None
    context_management: dict[str, Any] | None = Field(
        default=None,
        description="edits that clear are accepted, and never applied: `applied_edits` is empty; others are rejected",
    )
    billing_policy: Any = Field(default=None, description=RECORDS)
    betas: Any = Field(default=None, description=RECORDS)
    output_config: Any = Field(default=None, description="accepted; changes nothing: vLLM has no tokens of a format")
    output_format: dict[str, Any] | None = Field(default=None, description="the former name of `output_config.format`")
    speed: Literal["standard", "fast"] | None = Field(
        default=None, description="accepted; changes nothing: engines are as fast as they can be"
    )
    system: str | list[Any] | None = None
    thinking: Thinking = Field(
        default=None,
        description="accepted; changes nothing: whether a model thinks depends on its chat template "
        "(`chat_template_kwargs`). A `budget_tokens` is checked, and does not end the thinking earlier",
    )
    tool_choice: Any = Field(default=None, description=NEEDS_TOOLS)
    tools: list[Any] | None = Field(default=None, description="vLLM's; an empty list is the same as none")
    user_profile_id: Any = Field(default=None, description=RECORDS)
    workspace_id: Any = Field(default=None, description=RECORDS)

    @model_validator(mode="after")
    def _has_one_format(self) -> Self:
        if self.output_format is not None and not isinstance(self.output_config or {}, dict):
            raise ValueError("output_config: must be an object")
        if self.output_format is not None and "format" in (self.output_config or {}):
            raise ValueError("output_format: not together with `output_config.format`")
        return self

    @model_validator(mode="after")
    def _chooses_among_its_tools(self) -> Self:
        choice = self.tool_choice if isinstance(self.tool_choice, dict) else {}
        if (kind := choice.get("type")) not in ("any", "tool"):
            return self
        if not self.tools:
            raise ValueError(f"tool_choice: tool_choice.{kind} may only be specified while providing tools")
        name = choice.get("name")
        if kind == "tool" and isinstance(name, str):
            offered = {str(tool.get("name")) for tool in self.tools if isinstance(tool, dict)}
            if name not in offered:
                hint = nearest(name, offered)
                raise ValueError(f"tool_choice: Tool '{name[:64]}' not found in provided tools{hint}")
        return self

    @model_validator(mode="after")
    def _has_what_this_server_has(self) -> Self:
        # vLLM names another place for these, or leaves them out.
        check_without_prefix(self.messages)
        _check_blocks({"content": self.system}, "system", frozenset({"text"}))
        last = len(self.messages) - 1
        for number, message in enumerate(self.messages):
            is_said = not isinstance(message, dict) or message.get("content") not in ("", [])
            if not is_said and (number < last or message.get("role") != "assistant"):
                raise ValueError(
                    f"messages[{number}]: all messages must have non-empty content except for the optional final "
                    "assistant message"
                )
            _check_blocks(message, f"messages[{number}].content", _BLOCKS)
            _check_clear_at(message, f"messages[{number}].clear_at")
        for number, tool in enumerate(self.tools or []):
            if not isinstance(tool, dict):
                raise ValueError(f"tools[{number}]: must be an object")
            if (kind := tool.get("type")) not in (None, "custom"):
                raise ValueError(
                    f"tools[{number}]: '{str(kind)[:64]}' is not supported; this server has only tools of type "
                    "'custom', with an `input_schema`, which the client runs"
                )
        edits = (self.context_management or {}).get("edits")
        for number, edit in enumerate(edits if isinstance(edits, list) else []):
            kind = edit.get("type") if isinstance(edit, dict) else None
            if not (isinstance(kind, str) and kind.startswith(_CLEARING)):
                raise ValueError(
                    f"context_management.edits[{number}]: '{str(kind)[:64]}' is not supported; only edits that clear "
                    "are, which this server need not apply"
                )
        return self


class Messages(CountTokens):
    """POST /v1/messages."""

    max_tokens: int
    cache_salt: Any = None
    diagnostics: Any = Field(default=None, description="accepted; the answer has no `diagnostics`")
    ec_transfer_params: Any = None
    fallback_credit_token: Any = Field(default=None, description=RECORDS)
    fallbacks: Any = Field(
        default=None, description="accepted; changes nothing: a model of this server declines nothing for its policy"
    )
    inference_geo: Any = Field(default=None, description="accepted; changes nothing: it is your server")
    kv_transfer_params: Any = None
    output_config: Any = None
    metadata: dict[str, Any] | None = Field(
        default=None,
        description="`user_id` is the sticky key if the endpoint is sticky by user; otherwise changes nothing",
    )
    service_tier: Any = Field(default=None, description=RECORDS)
    stop_sequences: list[Any] | None = None
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    vllm_xargs: Any = None

    @model_validator(mode="after")
    def _answers_after_thinking(self) -> Self:
        if isinstance(self.thinking, _Enabled) and self.thinking.budget_tokens >= self.max_tokens:
            raise ValueError("max_tokens: must be greater than `thinking.budget_tokens`")
        return self

    @model_validator(mode="after")
    def _ends_with_the_user(self) -> Self:
        # vLLM would begin a new message behind it.
        last = self.messages[-1]
        if isinstance(last, dict) and last.get("role") == "assistant":
            raise ValueError(
                f"messages[{len(self.messages) - 1}]: this server does not support assistant message prefill; the "
                "conversation must end with a user message"
            )
        return self


def _check_blocks(holder: Any, path: str, known: frozenset[str]) -> None:
    """Raises ValueError, which begins with the place, for what vLLM would reject under another name or leave out."""
    content = holder.get("content") if isinstance(holder, dict) else None
    if not isinstance(content, str | list | None):
        raise ValueError(f"{path}: Input should be {_WORDS[str, list]}")
    for number, block in enumerate(content if isinstance(content, list) else ()):
        where = f"{path}[{number}]"
        if not isinstance(block, dict):
            raise ValueError(f"{where}: Input should be an object")
        _check_members(block, where, {"type": str}, "type")
        kind = block["type"]
        if kind not in known:
            raise ValueError(f"{where}: blocks of type '{kind[:64]}' are not supported; send text or images")
        _check_members(block, where, _TYPES, *_NEEDED.get(kind, ()))
        if kind == "text" and block["text"] == "" and known is not _RESULTS:
            raise ValueError(f"{where}: text content blocks must be non-empty")
        if kind == "image":
            _check_source(block["source"], f"{where}.source")
        if kind == "tool_result":
            _check_blocks(block, f"{where}.content", _RESULTS)


def _check_source(source: Mapping[str, Any], path: str) -> None:
    kind = source.get("type")
    if kind not in ("base64", "url"):
        raise ValueError(f"{path}: {_STORED}; send the image as `base64` or `url`")
    _check_members(source, path, {"data": str, "url": str}, "data" if kind == "base64" else "url")


def _check_members(value: Mapping[str, Any], path: str, types: Mapping[str, _Type], *needed: str) -> None:
    for name in needed:
        if name not in value:
            raise ValueError(f"{path}.{name}: Field required")
    for name in types.keys() & value.keys():
        is_absent = value[name] is None and name not in needed
        if not is_absent and not isinstance(value[name], types[name]):
            raise ValueError(f"{path}.{name}: Input should be {_WORDS[types[name]]}")


def _check_clear_at(message: Any, path: str) -> None:
    clear_at = message.get("clear_at") if isinstance(message, dict) else None
    if clear_at is None:
        return
    if message.get("role") != "system" or clear_at not in ("never", "next_user_message"):
        raise ValueError(f"{path}: must be 'never' or 'next_user_message', in a system message")


def in_force(messages: list[Any]) -> list[Any]:
    """Checked messages without those that are for an earlier user's turn only (`clear_at`)."""
    last = max((number for number, message in enumerate(messages) if _role(message) == "user"), default=-1)
    return [
        message
        for number, message in enumerate(messages)
        if number > last or not isinstance(message, dict) or message.get("clear_at") != "next_user_message"
    ]


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


NOT_SENT = frozenset(
    "betas billing_policy cache_control context_management diagnostics fallback_credit_token fallbacks inference_geo "
    "output_format service_tier speed thinking user_profile_id workspace_id".split()
)
"""Anthropic's fields that vLLM does not have, and that change nothing."""

NOT_COUNTED = NOT_SENT | {"output_config"}
"""The same where tokens are counted: an output's format is no part of vLLM's prompt."""

# `tests/engine/test_field_names.py` compares these with the installed vLLM.
ENGINE = Messages.model_fields.keys() - NOT_SENT
ENGINE_COUNT = CountTokens.model_fields.keys() - NOT_COUNTED
