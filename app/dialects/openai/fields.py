"""The fields of OpenAI's requests: types and bounds of the documented ones; vLLM checks its own (`vllm_fields`).

The names of vLLM's own fields, which the router does not import.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from app.dialects.common import fields
from app.dialects.common.fields import (
    BEST_OF,
    BEST_OF_WITHOUT_STREAM,
    CACHE_KEY,
    ECHOED,
    ECHOED_USER,
    FALLBACK_USER,
    GREEDY_N,
    GREEDY_TOP_P,
    MODEL,
    RECORDS,
    SINGLE_TOOL_CALL,
    SOME_TOOLS,
    STREAM_OPTIONS_WITH_STREAM,
    TOP_LOGPROBS_WITH_LOGPROBS,
    USAGE_IN_LAST_EVENT,
    USER,
    WITH_CONTENT,
    AnyPart,
    ChosenFunction,
    Function,
    NonEmpty,
    NonEmptyList,
    SamplingFields,
    absent,
    both,
    check_without_prefix,
    content_for,
    described_by,
    either,
    given,
    has_content_for,
    has_for,
    is_true,
    values,
)
from app.dialects.schemas import NOT_USED
from app.engine.pieces import MOST_TOKENS
from app.internal_api import MAX_STOP_STRINGS

TokenIds = Annotated[list[int], Field(min_length=1)]


class OperationBody(BaseModel):
    """The fields that the bodies of all operations share."""

    # Strict, like OpenAI: numbers sent as strings are rejected.
    model_config = ConfigDict(extra="ignore", strict=True)

    refused: ClassVar[Mapping[str, str]] = {
        "audio": "audio output is not supported",
        "context_management": "conversations are not compacted; send fewer items in `input`",
        "conversation": "conversations are not stored; send the items in `input`",
        "max_tool_calls": "it limits built-in tools, which are not supported; for functions there is "
        "`parallel_tool_calls`",
        "moderation": "content is filtered by the endpoint's `content_filter`, if it has one",
        "prediction": "predicted outputs are not supported",
        "previous_response_id": "responses are not stored; send the items in `input`",
        "web_search_options": "web search is not supported",
    }

    model: str | None = Field(default=None, description=MODEL)


class Recorded(OperationBody):
    """Fields for the caller's own records, which the engine does not get."""

    metadata: Any = Field(default=None, description=RECORDS)
    prompt_cache_key: str | None = Field(default=None, description=CACHE_KEY)
    prompt_cache_options: Any = Field(default=None, description="accepted; changes nothing: every prefix is cached")
    prompt_cache_retention: Any = Field(default=None, description=RECORDS)
    safety_identifier: str | None = Field(default=None, description=FALLBACK_USER)
    service_tier: Any = Field(default=None, description=RECORDS)
    store: Any = Field(default=None, description="accepted; nothing is stored")
    user: str | None = Field(default=None, description=USER)


class StreamOptions(fields.StreamOptions):
    """`stream_options`."""

    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Resume(BaseModel):
    """The part of a stream that its client has."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token_ids: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(min_length=1)


RESUME_ONE_STREAM = either(absent("resume"), both(is_true("stream"), values({"n": [None, 1]})))


class _Sampling(SamplingFields, Recorded):
    stream_options: StreamOptions | None = Field(default=None, description="vLLM's; only with `stream`")
    top_p: float | None = Field(default=None, ge=0, le=1, description=GREEDY_TOP_P)
    n: int = Field(default=1, ge=1, le=128, description=GREEDY_N)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    resume: Resume | None = Field(
        default=None,
        description="the rest of a stream that broke off with its router, after the `token_ids` that came with "
        "`return_token_ids`; the other fields are the first request's, and the deployment is named",
    )

    @model_validator(mode="after")
    def _resumes_one_stream(self) -> Self:
        if self.resume is not None and not (self.stream and self.n == 1):
            raise ValueError("resume: only allowed when stream is true and n is 1")
        return self


class Part(AnyPart):
    """One part of a message's content; which types it may have depends on the model."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra=either({"properties": {"type": {"not": {"const": "text"}}}}, given("text")),
    )

    type: str
    text: str | None = None

    @model_validator(mode="after")
    def _text_has_text(self) -> Self:
        if self.type == "text" and self.text is None:
            raise ValueError("a part of type 'text' needs the field 'text'")
        return self


class FunctionCall(BaseModel):
    """A call in the former form. `arguments` is JSON."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str
    arguments: str


_WITH_PARTS = ("developer", "system", "user")
"""The roles whose content is no empty list. A tool's result may be empty."""


class Message(BaseModel):
    """One chat message."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra=both(
            either(absent("function_call"), absent("tool_calls")),
            has_content_for(WITH_CONTENT, parts_for=_WITH_PARTS),
            has_for(("tool",), "tool_call_id", {"type": "string"}),
        ),
    )

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | list[Part] | None, content_for(WITH_CONTENT, parts_for=_WITH_PARTS)] = Field(
        default=None, validate_default=True
    )
    tool_call_id: Annotated[str | None, content_for(("tool",))] = Field(default=None, validate_default=True)
    tool_calls: Any = None
    function_call: FunctionCall | None = None

    @model_validator(mode="after")
    def _has_one_form_of_calls(self) -> Self:
        if self.function_call is not None and self.tool_calls is not None:
            raise ValueError("function_call: not together with `tool_calls`")
        return self


class Chat(_Sampling):
    """POST /v1/chat/completions."""

    model_config = described_by(
        STREAM_OPTIONS_WITH_STREAM,
        RESUME_ONE_STREAM,
        TOP_LOGPROBS_WITH_LOGPROBS,
        either(values({"tool_choice": [None, "none"]}), SOME_TOOLS),
        either(values({"function_call": [None, "none"]}), given("functions", {"type": "array", "minItems": 1})),
        either(both(absent("functions"), absent("function_call")), both(absent("tools"), absent("tool_choice"))),
    )

    messages: list[Message] = Field(
        min_length=1, description="vLLM's; `function_call`, and messages of the role `function`, become tool calls"
    )
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    modalities: list[Literal["text"]] | None = Field(
        default=None, description="only text is generated: `audio` is rejected, and `text` changes nothing"
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None, description="accepted; changes nothing: models have no such setting"
    )
    tools: list[dict[str, Any]] | None = Field(default=None, description="vLLM's; an empty list is the same as none")
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = Field(
        default=None, description="vLLM's; of `allowed_tools` the engine gets the allowed tools, and the mode"
    )
    functions: list[Function] | None = Field(
        default=None,
        description="OpenAI's former form of `tools`: the engine gets tools, the answer has the former form",
    )
    function_call: Literal["none", "auto"] | ChosenFunction | None = Field(
        default=None, description="the same for `tool_choice`"
    )
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _companions(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only allowed when logprobs is true")
        former = self.functions is not None or self.function_call is not None
        if former and (self.tools is not None or self.tool_choice is not None):
            raise ValueError("functions: not together with tools or tool_choice")
        without = self.tools is None or (self.tools == [] and self.tool_choice != "auto")
        if self.tool_choice not in (None, "none") and without:
            raise ValueError("tool_choice: only allowed when tools are specified")
        if self.function_call not in (None, "none") and not self.functions:
            raise ValueError("function_call: only allowed when functions are specified")
        if isinstance(self.function_call, ChosenFunction) and not any(
            function.name == self.function_call.name for function in self.functions or ()
        ):
            raise ValueError(f"function_call: no function is named '{self.function_call.name}'")
        return self


class Completions(_Sampling):
    """POST /v1/completions."""

    model_config = described_by(
        STREAM_OPTIONS_WITH_STREAM,
        RESUME_ONE_STREAM,
        BEST_OF_WITHOUT_STREAM,
        either(given("prompt"), given("prompt_embeds")),
    )

    prompt: str | TokenIds | NonEmptyList[str] | NonEmptyList[TokenIds] | None = None
    prompt_embeds: Any = Field(
        default=None, description="vLLM's; rejected unless the engine has `enable_prompt_embeds`"
    )
    best_of: int | None = Field(default=None, ge=1, le=20, description=BEST_OF)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0)
    suffix: Annotated[str | None, WithJsonSchema({"enum": ["", None]})] = Field(
        default=None, description="rejected unless it is empty: the engine cannot fill in text before a suffix"
    )

    @model_validator(mode="after")
    def _has_a_prompt_alone(self) -> Self:
        if self.suffix:
            raise ValueError("suffix: not supported: the engine cannot fill in text before a suffix")
        if self.prompt_embeds is None and (self.prompt is None or self.prompt == []):
            raise ValueError("prompt: must be given and not be empty")
        return self


class Classify(Recorded):
    """vLLM's POST /classify. `messages` is its alternative to `input`."""

    model_config = described_by(either(given("input"), given("messages")))

    input: NonEmpty | TokenIds | NonEmptyList[str] | NonEmptyList[TokenIds] | None = None
    messages: NonEmptyList[Any] | None = None

    @model_validator(mode="after")
    def _has_an_input(self) -> Self:
        if not self.input and not self.messages:
            raise ValueError("input: must be given and not be empty")
        check_without_prefix(self.messages or ())
        return self


class Embeddings(Classify):
    """POST /v1/embeddings, with the same two forms of texts."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)


_OWN_ROUTES: Mapping[str, str] = {
    "classify": "; for classes use POST /classify",
    "score": "; for scores use POST /score",
}
"""vLLM's other tasks of `/pooling`."""


class Pooling(Embeddings):
    """vLLM's POST /pooling: the vectors of the model's pooler, or of every token."""

    refused: ClassVar[Mapping[str, str]] = {
        **Embeddings.refused,
        "data": "the engines have no plugins for it; send the text as `input`",
    }

    task: Annotated[Any, WithJsonSchema({"enum": ["embed", "token_embed", None]})] = Field(
        default=None, description="vLLM's `embed` and `token_embed`; `classify` and `score` have their own routes"
    )

    @field_validator("task")
    @classmethod
    def _is_served_here(cls, value: Any) -> Any:
        if value not in (None, "embed", "token_embed"):
            own = _OWN_ROUTES.get(value, "") if isinstance(value, str) else ""
            raise ValueError(f"takes 'embed', a vector for each text, or 'token_embed', one for each token{own}")
        return value


class Detokenize(OperationBody):
    """vLLM's POST /detokenize."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(
        max_length=MOST_TOKENS, description=f"vLLM's; at most {MOST_TOKENS}"
    )


class Tokenize(OperationBody):
    """vLLM's POST /tokenize: a prompt or a conversation."""

    refused: ClassVar[Mapping[str, str]] = {**OperationBody.refused, "text": "send it as `prompt`"}  # Cohere's name

    model_config = described_by(
        either(both(given("prompt"), absent("messages")), both(given("messages"), absent("prompt")))
    )

    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _has_either(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("prompt: either it or `messages` must be given")
        return self


Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class Responses(Recorded):
    """POST /v1/responses."""

    refused: ClassVar[Mapping[str, str]] = {
        **OperationBody.refused,
        "prompt": "prompts are not stored; send the text in `instructions` and `input`",
    }

    input: NonEmpty | NonEmptyList[Any]
    stream: bool = False
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1, description=GREEDY_TOP_P)
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    parallel_tool_calls: bool | None = Field(default=None, description=SINGLE_TOOL_CALL)
    truncation: Literal["auto", "disabled"] | None = None
    background: Annotated[bool | None, WithJsonSchema({"enum": [False, None]})] = Field(
        default=None, description="only false: every response is generated while the client waits"
    )
    store: Any = Field(default=None, description="accepted; nothing is stored, and the answer has false")
    stream_options: Any = Field(default=None, description=USAGE_IN_LAST_EVENT)
    client_metadata: Any = Field(default=None, description=RECORDS)
    include: list[Include] | None = Field(
        default=None,
        description="OpenAI's values are accepted; only `message.output_text.logprobs` changes the answer: the others "
        "are about what this server does not make",
    )
    tools: Any = Field(
        default=None,
        description="vLLM's for `function` and `namespace`. Others are left out if there are functions, too, and the "
        "endpoint's `unsupported_tools` is `drop`: the answer's `tools` are those in force. Else they are rejected",
    )
    tool_choice: Any = Field(
        default=None, description="vLLM's; of `allowed_tools` the engine gets the allowed tools, and the mode"
    )
    metadata: dict[str, str] | None = Field(default=None, max_length=16, description=ECHOED)
    user: str | None = Field(default=None, description=ECHOED_USER)

    @model_validator(mode="after")
    def _is_answered_at_once(self) -> Self:
        if self.background:
            raise ValueError("background: not supported: every response is generated while the client waits")
        return self

    @model_validator(mode="after")
    def _has_an_input(self) -> Self:
        if not self.input:
            raise ValueError("input: must not be empty")
        return self


_COUNTED = "counted as vLLM puts it into the prompt"


class InputTokens(OperationBody):
    """POST /v1/responses/input_tokens: the fields that make up a prompt, and those that change nothing."""

    input: NonEmpty | NonEmptyList[Any] = Field(description=_COUNTED)
    instructions: str | None = Field(default=None, description=_COUNTED)
    tools: Any = Field(default=None, description=f"{_COUNTED}; others than functions are left out or rejected")
    tool_choice: Any = Field(default=None, description=NOT_USED)
    parallel_tool_calls: Any = Field(default=None, description=NOT_USED)
    reasoning: Any = Field(default=None, description=NOT_USED)
    text: Any = Field(default=None, description=NOT_USED)
    truncation: Any = Field(default=None, description=NOT_USED)

    @model_validator(mode="after")
    def _has_an_input(self) -> Self:
        if not self.input:
            raise ValueError("input: must not be empty")
        return self


NOT_INCLUDED = frozenset({"web_search_call.action.sources", "web_search_call.results"})
"""Values of OpenAI's `include` that vLLM does not know."""

NOT_SENT = frozenset(Recorded.model_fields) - {"model"} | {"modalities", "resume", "verbosity"}
"""Fields of all operations but Responses that the engine does not get."""

NOT_SENT_OF_RESPONSES = frozenset(
    {
        "background",
        "client_metadata",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "stream_options",
    }
)


# `tests/engine/test_field_names.py` compares them.

_ENGINE = frozenset(
    "add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params echo frequency_penalty ignore_eos "
    "include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs max_tokens "
    "min_p min_tokens model n presence_penalty priority prompt_logprobs repetition_detection repetition_penalty "
    "request_id response_format return_token_ids return_token_offsets return_tokens_as_token_ids "
    "routed_experts_prompt_start seed session_id skip_special_tokens spaces_between_special_tokens stop "
    "stop_token_ids stream stream_interval stream_options structured_outputs temperature thinking_token_budget top_k "
    "top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs".split()
)

ENGINE_CHAT = _ENGINE | frozenset(
    "add_generation_prompt chat_template chat_template_kwargs continue_final_message documents include_reasoning "
    "max_completion_tokens media_io_kwargs messages mm_processor_kwargs parallel_tool_calls reasoning_effort "
    "return_assistant_tokens_mask return_prompt_text tool_choice tools top_logprobs".split()
)

ENGINE_COMPLETIONS = _ENGINE | frozenset({"prompt", "prompt_embeds", "suffix"})

ENGINE_EMBEDDINGS = frozenset(
    "add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs continue_final_message "
    "dimensions embed_dtype encoding_format endianness input media_io_kwargs messages mm_processor_kwargs model "
    "padding priority request_id truncate_prompt_tokens truncation_side use_activation user".split()
)

_SCORING = frozenset(
    "cache_salt chat_template_kwargs instruction max_tokens_per_doc max_tokens_per_query mm_processor_kwargs model "
    "padding priority request_id truncate_prompt_tokens truncation_side use_activation user".split()
)

ENGINE_POOLING = ENGINE_EMBEDDINGS | {"task"}

ENGINE_CLASSIFY = ENGINE_EMBEDDINGS - {"dimensions", "embed_dtype", "encoding_format", "endianness"}

ENGINE_RERANK = _SCORING | frozenset({"documents", "query", "top_n"})

ENGINE_SCORE = _SCORING | frozenset("data_1 data_2 documents items queries text_1 text_2".split())

ENGINE_RESPONSES = frozenset(
    "background cache_salt chat_template_kwargs ec_transfer_params enable_response_messages frequency_penalty "
    "ignore_eos include include_reasoning include_stop_str_in_output input instructions kv_transfer_params logit_bias "
    "max_output_tokens max_tool_calls media_io_kwargs metadata mm_processor_kwargs model parallel_tool_calls "
    "presence_penalty previous_input_messages previous_response_id priority prompt prompt_cache_key reasoning "
    "repetition_penalty request_id seed service_tier session_id skip_special_tokens stop store stream "
    "structured_outputs temperature text tool_choice tools top_k top_logprobs top_p truncation user vllm_xargs".split()
)

ENGINE_TOKENIZE = frozenset(
    "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message "
    "media_io_kwargs messages mm_processor_kwargs model prompt return_token_strs tools".split()
)
