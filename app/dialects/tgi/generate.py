"""`POST /`, `/generate`, `/generate_stream` and `/invocations`: one generation.

- One generation in TGI's form, and vLLM's completions request for it.
- Rejections that depend on the deployment: its context length and its capabilities.
- A whole answer in TGI's form: the text, its details, and the headers with the times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Self

from pydantic_core import from_json

from app.dialects.base import (
    Call,
    EngineRequest,
    Flow,
    ParseContext,
    Reply,
    Request,
    ServingContext,
    Stream,
    Translation,
)
from app.dialects.bodies import dump, request_object
from app.dialects.common import streams
from app.dialects.common.requests import draw_seed, missing_capability, temperature, tokenize
from app.dialects.tgi.errors import error_event
from app.dialects.tgi.fields import GenerateRequest, Parameters, read, structured_outputs
from app.dialects.tgi.profile import RequestStyle, adapter_deployment, profile_of, request_style
from app.dialects.tgi.rules import check, samples
from app.engine import tokens as token_reader
from app.engine.context import PromptTokens
from app.engine.errors import MALFORMED_RESPONSE
from app.engine.model import Model
from app.engine.tokens import Finish, Reader, Step, Token, TokenStream
from app.errors import Broken, Incomplete, Unprocessable
from app.internal_api import to_int64_seed
from app.routing.traffic import Random
from app.sse import encode


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request with its defaults.

    `max_new_tokens` None is the rest of the context. `as_list`: the answer is a list of one object. `seed` is for the
    engine; the details report it if `reports_seed`.
    """

    inputs: str
    parameters: Parameters
    stream: bool
    samples: bool
    max_new_tokens: int | None
    return_full_text: bool
    as_list: bool
    seed: int
    reports_seed: bool
    top_k_below_vocabulary: bool

    @classmethod
    def from_request(cls, request: GenerateRequest, style: RequestStyle, random: Random) -> Self:
        """Raises Unprocessable."""
        profile = style.profile
        parameters = request.parameters or Parameters(do_sample=profile.samples_without_parameters)
        check(request.inputs, parameters, style)
        sampled, full_text = samples(parameters, style), parameters.return_full_text
        return cls(
            inputs=request.inputs,
            parameters=parameters,
            stream=style.stream,
            samples=sampled,
            max_new_tokens=(profile.max_new_tokens if parameters.max_new_tokens is None else parameters.max_new_tokens),
            return_full_text=style.at_root and profile.full_text_at_root if full_text is None else full_text,
            as_list=style.at_root and style.is_tgi,
            seed=draw_seed(random) if parameters.seed is None else parameters.seed,
            reports_seed=sampled or profile.reports_greedy_seed,
            top_k_below_vocabulary=profile.top_k_below_vocabulary,
        )

    @property
    def has_details(self) -> bool:
        """Either flag asks for all details."""
        return self.parameters.details or self.parameters.decoder_input_details

    def reported_seed(self, index: int = 0) -> int | None:
        """The seed of the candidate at `index`: the engine counts up from the first."""
        return self.seed + index if self.reports_seed else None

    def engine_body(self) -> dict[str, Any]:
        """vLLM's completions request; its prompt is text, and `max_tokens` is left out. Raises Unprocessable."""
        parameters = self.parameters
        body: dict[str, Any] = {
            "prompt": self.inputs,
            "n": parameters.best_of,
            "stream": self.stream,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if parameters.stop:
            body |= {"stop": parameters.stop, "include_stop_str_in_output": True}
        if self.stream or self.has_details or parameters.best_of > 1:
            body["logprobs"] = parameters.top_n_tokens
        if parameters.decoder_input_details:
            body["prompt_logprobs"] = 0
        if parameters.grammar is not None:
            body["structured_outputs"] = structured_outputs(parameters.grammar, "parameters.grammar")
        return {**body, **self._sampling()}

    def _sampling(self) -> dict[str, Any]:
        """vLLM's sampling fields; logits processors of the deployment add the missing ones (`vllm_xargs`)."""
        parameters = self.parameters
        extensions: dict[str, Any] = {"watermark": True} if parameters.watermark else {}
        fields = self._sent("repetition_penalty", "frequency_penalty")
        if not self.samples:
            fields["temperature"] = 0.0
        else:
            heat = temperature(1.0 if parameters.temperature is None else parameters.temperature)
            extensions |= heat.pop("vllm_xargs", {})
            fields |= {**heat, "seed": to_int64_seed(self.seed), **self._sent("top_k", "top_p")}
            if parameters.typical_p is not None and parameters.typical_p < 1:
                extensions["typical_p"] = parameters.typical_p
        return {**fields, "vllm_xargs": extensions} if extensions else fields

    def _sent(self, *names: str) -> dict[str, Any]:
        """The parameters that the request has."""
        return {name: value for name in names if (value := getattr(self.parameters, name)) is not None}


def check_capabilities(body: Mapping[str, Any], serving: ServingContext, prefix: str = "") -> None:
    """Raises Unprocessable if `body`, in vLLM's form, needs an extension that the deployment does not have.

    `prefix` is the path of these fields in the client's request.
    """
    if (missing := missing_capability(body, serving)) is not None:
        name, reason = missing
        raise Unprocessable(f"`{name}`: {reason}", param=prefix + name, value=body["vllm_xargs"][name])


def check_top_k(top_k: int | None, model: Model) -> None:
    """Raises Unprocessable unless `top_k` is below the vocabulary's size, as MindIE requires."""
    if top_k is not None and top_k >= model.vocab_size:
        raise Unprocessable(
            f"`top_k` must be < {model.vocab_size}, the size of the vocabulary. Given: {top_k}",
            param="parameters.top_k",
            value=top_k,
        )


def truncated(ids: Sequence[int], truncate: int | None, context: int) -> Sequence[int]:
    """The last `truncate` ids. Raises Unprocessable unless `truncate` leaves room for a token of the answer."""
    if truncate is None:
        return ids
    if not 0 < truncate < context:
        raise Unprocessable(
            f"`truncate` must be strictly positive and less than {context - 1}. Given: {truncate}",
            param="parameters.truncate",
            value=truncate,
        )
    return ids[-truncate:]


def inputs_too_long(tokens: PromptTokens, param: str) -> Unprocessable:
    """The error for prompts that leave no room for an answer."""
    return Unprocessable(
        f"`inputs` must have less than {tokens.context - 1} tokens. Given: {tokens.counted}", param=param
    )


_COMPUTE_TYPE = "gpu+optimized"  # also a constant in TGI


def generation_reply(generation: Generation, answer: Mapping[str, Any], serving: ServingContext) -> Reply:
    """The reply for vLLM's `answer`. Raises Broken."""
    model = serving.known_model
    best, *others = _candidates(generation, answer, model)
    result: dict[str, Any] = {"generated_text": best.text}
    if generation.has_details:
        result["details"] = best.details(model)
        if others:
            result["details"]["best_of_sequences"] = [
                {"generated_text": other.text, **other.details(model)} for other in others
            ]
    headers = _timing(generation, serving, best.finish)
    return Reply(dump([result] if generation.as_list else result), headers=headers)


def generated_text(generation: Generation, answer: Mapping[str, Any], model: Model) -> str:
    """The best candidate's text. Raises Broken."""
    return _candidates(generation, answer, model)[0].text


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One of vLLM's choices: TGI's `best_of` asks for several."""

    generation: Generation
    choice: Mapping[str, Any]
    tokens: Sequence[Token]
    finish: Finish

    @classmethod
    def read(cls, generation: Generation, choice: Mapping[str, Any], model: Model) -> Self:
        """Raises Incomplete if the choice has no finish reason."""
        steps = Reader(model, top=generation.parameters.top_n_tokens).feed(choice)
        if not steps or (finish := steps[-1].ending) is None:
            raise Incomplete(MALFORMED_RESPONSE)
        return cls(generation, choice, [step.token for step in steps if step.token is not None], finish)

    @property
    def text(self) -> str:
        return full_text(self.generation, self.finish)

    @property
    def mean_logprob(self) -> float:
        return token_reader.mean_logprob(self.tokens)

    def details(self, model: Model) -> dict[str, Any]:
        """`details`, and the fields of an entry of `best_of_sequences` other than its text."""
        parameters = self.generation.parameters
        prompt = token_reader.prompt_tokens(model, self.choice) if parameters.decoder_input_details else []
        details = {
            **finish_details(self.generation, self.finish, model),
            "seed": self.generation.reported_seed(self.choice["index"]),
            "prefill": [token_json(token) for token in prompt],
            "tokens": [token_json(token) for token in self.tokens],
        }
        if parameters.top_n_tokens:
            details["top_tokens"] = [[token_json(other) for other in token.top] for token in self.tokens]
        return details


def _candidates(generation: Generation, answer: Mapping[str, Any], model: Model) -> list[_Candidate]:
    """The best first, the others by index."""
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    candidates = [_Candidate.read(generation, choice, model) for choice in choices]
    best = max(candidates, key=attrgetter("mean_logprob"))
    return [best, *(candidate for candidate in candidates if candidate is not best)]


def full_text(generation: Generation, finish: Finish) -> str:
    """`generated_text`: with the prompt before it if `return_full_text`."""
    return generation.inputs + finish.text if generation.return_full_text else finish.text


def token_json(token: Token) -> dict[str, Any]:
    """A token in TGI's form."""
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special}


def finish_details(generation: Generation, finish: Finish, model: Model) -> dict[str, Any]:
    """The part of `details` that streams have too. Clients use both names of the prompt's length. Raises Broken."""
    return {
        "finish_reason": _finish_reason(generation, finish, model),
        "generated_tokens": finish.generated_tokens,
        "prompt_tokens": finish.prompt_tokens,
        "input_length": finish.prompt_tokens,
    }


def _finish_reason(generation: Generation, finish: Finish, model: Model) -> str:
    """TGI's finish reason. TGI checks the length first: an end at the last allowed token is ``length``."""
    allowed = min(generation.max_new_tokens or model.max_len, model.max_len - finish.prompt_tokens)
    if finish.finish_reason == "length" or (finish.finish_reason == "stop" and finish.generated_tokens >= allowed):
        return "length"
    if finish.finish_reason == "stop":
        at_eos = finish.stop_reason is None or finish.stop_reason in model.eos_ids
        return "eos_token" if at_eos else "stop_sequence"
    raise Broken("The deployment aborted the generation")


def compute_headers(generation: Generation) -> dict[str, str]:
    """TGI's headers that do not depend on the answer."""
    return {"x-compute-type": _COMPUTE_TYPE, "x-compute-characters": str(len(generation.inputs))}


def _timing(generation: Generation, serving: ServingContext, finish: Finish) -> dict[str, str]:
    """TGI's headers of a whole answer: `x-compute-time` in seconds, the other times in milliseconds.

    The router has no queue; the engine's queue time is part of `x-inference-time`.
    """
    inference = serving.engine_s * 1000
    return {
        **compute_headers(generation),
        "x-compute-time": f"{serving.total_s:.6f}",
        "x-total-time": str(round(serving.total_s * 1000)),
        "x-validation-time": str(round(serving.total_s * 1000 - inference)),
        "x-queue-time": "0",
        "x-inference-time": str(round(inference)),
        "x-time-per-token": str(round(inference / max(1, finish.generated_tokens))),
        "x-prompt-tokens": str(finish.prompt_tokens),
        "x-generated-tokens": str(finish.generated_tokens),
    }


class TgiTokenEvents(streams.TokenEvents):
    """One event per token; the last has the whole text, and the details if the client asked for them."""

    def __init__(self, generation: Generation, model: Model) -> None:
        super().__init__(TokenStream(model, top=generation.parameters.top_n_tokens), error_event)
        self._generation, self._model = generation, model
        self._index = 0
        self._last_id = 0
        self.headers = compute_headers(generation)

    def _event(self, step: Step) -> bytes:
        # An event needs a token: an end without one gets a special token, which clients leave out of the text.
        token = step.token or Token(self._last_id, "", 0.0, True)
        self._last_id = token.id
        self._index += 1
        event: dict[str, Any] = {
            "index": self._index,
            "token": token_json(token),
            "generated_text": None,
            "details": None,
        }
        if self._generation.parameters.top_n_tokens:
            event["top_tokens"] = [token_json(other) for other in token.top]
        if step.ending is not None:
            event |= self._end(step.ending)
        return encode(dump(event))

    def _end(self, finish: Finish) -> dict[str, Any]:
        """The last event's text and details."""
        generation = self._generation
        details = {**finish_details(generation, finish, self._model), "seed": generation.reported_seed()}
        self._ended = True
        return {
            "generated_text": full_text(generation, finish),
            "details": details if generation.parameters.details else None,
        }


@dataclass(frozen=True, slots=True)
class Generate(Translation):
    """A generation. `body` is vLLM's request with text for a prompt, before a deployment is chosen."""

    generation: Generation
    body: Mapping[str, Any]
    stream: bool
    needs_model = True
    field_names: ClassVar[Mapping[str, str]] = {
        "max_tokens": "max_new_tokens",
        "prompt": "inputs",
        "structured_outputs": "parameters.grammar",
    }
    """The client's names of vLLM's fields, for errors."""

    @classmethod
    def parse(cls, request: Request, context: ParseContext, *, stream: bool | None = None) -> Call:
        """`stream` None: the request came to `POST /` or its synonym, and the field in its body decides whether to
        stream.
        """
        body = request_object(request.body)
        fields = read(body)
        style = request_style(
            body,
            request.headers.get("user-agent", ""),
            profile_of(context.config),
            stream=fields.stream if stream is None else stream,
            at_root=stream is None,
        )
        translation = cls.from_request(fields, style, context.random)
        adapter = translation.generation.parameters.adapter_id
        deployment = adapter_deployment(adapter, request, context)
        return Call("completions", translation.body, translation, deployment=deployment, field_names=cls.field_names)

    @classmethod
    def from_request(cls, fields: GenerateRequest, style: RequestStyle, random: Random) -> Self:
        """Raises Unprocessable."""
        generation = Generation.from_request(fields, style, random)
        return cls(generation, generation.engine_body(), style.stream)

    def engine_requests(self, serving: ServingContext) -> Flow:
        check_capabilities(self.body, serving, "parameters.")
        if self.generation.top_k_below_vocabulary:
            check_top_k(self.generation.parameters.top_k, serving.known_model)
        truncate = self.generation.parameters.truncate
        prompts = [{"prompt": self.generation.inputs}]
        tokens = yield from tokenize(prompts, serving, "inputs", whole=truncate is not None)
        ids = list(truncated(tokens.ids[0], truncate, tokens.context))
        max_tokens = self._max_tokens(replace(tokens, ids=[ids]))
        return EngineRequest("/v1/completions", {**self.body, "prompt": ids, "max_tokens": max_tokens})

    def _max_tokens(self, tokens: PromptTokens) -> int:
        """The client's `max_new_tokens`, or the profile's default if that fits. Raises Unprocessable."""
        requested = self.generation.parameters.max_new_tokens
        if requested is not None and requested > tokens.room:
            raise Unprocessable(
                f"`inputs` tokens + `max_new_tokens` must be <= {tokens.context}. "
                f"Given: {tokens.counted} `inputs` tokens and {requested} `max_new_tokens`",
                param="parameters.max_new_tokens",
                value=requested,
            )
        if tokens.room < 1:
            raise inputs_too_long(tokens, "inputs")
        limit = self.generation.max_new_tokens
        return tokens.room if limit is None else min(limit, tokens.room)

    def reply(self, answer: bytes, serving: ServingContext) -> Reply:
        return generation_reply(self.generation, from_json(answer), serving)

    def text(self, answer: Mapping[str, Any], serving: ServingContext) -> str:
        """The generated text alone, as `/vertex` returns it."""
        return generated_text(self.generation, answer, serving.known_model)

    def open_stream(self, serving: ServingContext) -> Stream:
        return TgiTokenEvents(self.generation, serving.known_model)
