"""A whole answer in TGI's form: the text, its details, and the headers with the times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

from app.dialects.base import Reply, ServingContext
from app.dialects.json_body import dump
from app.dialects.tgi.generation import Generation
from app.engine import tokens as token_reader
from app.engine.errors import MALFORMED_RESPONSE
from app.engine.model import Model
from app.engine.tokens import Finish, Reader, Token
from app.errors import Broken, Incomplete

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
