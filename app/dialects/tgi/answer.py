"""What TGI answers: the text, its details, its stream of tokens, and the headers that tell how long it took."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import Reply, ServingContext
from app.dialects.json_body import dump
from app.dialects.tgi.generation import Generation
from app.engine import token_reader as tokens
from app.engine.model import Model
from app.engine.token_reader import Finish, Reader, Token
from app.errors import Broken, Incomplete

_COMPUTE_TYPE = "gpu+optimized"  # what TGI always says


def answer(generation: Generation, body: bytes, served: ServingContext) -> Reply:
    """The whole answer. Raises Broken on nonsense."""
    best, *others = _sequences(generation, body, served.known_model)
    answer: dict[str, Any] = {"generated_text": best.text}
    if generation.tells_tokens:
        answer["details"] = best.details()
        if others:
            answer["details"]["best_of_sequences"] = [
                {"generated_text": other.text, **other.details()} for other in others
            ]
    headers = _timing(generation, served, best.ending)
    return Reply(dump([answer] if generation.as_list else answer), headers=headers)


def generated_text(generation: Generation, body: bytes, served: ServingContext) -> str:
    """The text alone. Raises Broken on nonsense."""
    return _sequences(generation, body, served.known_model)[0].text


class _Sequence:
    """One of the answer's choices, as TGI tells it."""

    def __init__(self, generation: Generation, choice: Mapping[str, Any], model: Model) -> None:
        self._generation, self._choice, self._model = generation, choice, model
        steps = Reader(model, top=generation.parameters.top_n_tokens).feed(choice)
        if not steps or steps[-1].ending is None:
            raise Incomplete("The deployment's answer has no end")
        self.tokens: Sequence[Token] = [step.token for step in steps if step.token is not None]
        self.ending: Finish = steps[-1].ending
        self.text = whole_text(generation, self.ending)
        self.merit = tokens.mean_logprob(self.tokens)

    def details(self) -> dict[str, Any]:
        """`details`, and the same of another sequence."""
        generation = self._generation
        # Each of several candidates has a seed of its own: the engine counts up.
        seed = None if generation.seed is None else generation.seed + self._choice["index"]
        prefill = generation.parameters.decoder_input_details
        details = {
            **_ended(generation, self.ending, self._model),
            "seed": seed,
            "prefill": [_token(token) for token in tokens.prompt_tokens(self._model, self._choice)] if prefill else [],
            "tokens": [_token(token) for token in self.tokens],
        }
        if generation.parameters.top_n_tokens:
            details["top_tokens"] = [[_token(other) for other in token.top] for token in self.tokens]
        return details


def _sequences(generation: Generation, body: bytes, model: Model) -> list[_Sequence]:
    """The best first, the others as they came."""
    found = [_Sequence(generation, choice, model) for choice in tokens.choices(body)]
    if not found:
        raise Broken("The deployment's answer is empty")
    best = max(found, key=lambda sequence: sequence.merit)
    return [best, *(sequence for sequence in found if sequence is not best)]


def whole_text(generation: Generation, ending: Finish) -> str:
    """`generated_text`: the answer, after the whole prompt where that was asked for."""
    return generation.inputs + ending.text if generation.return_full_text else ending.text


def _token(token: Token) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.special}


def _ended(generation: Generation, ending: Finish, model: Model) -> dict[str, Any]:
    """What `details` tells with a stream and without. Both names of the prompt's length are in use."""
    return {
        "finish_reason": _finish_reason(generation, ending, model),
        "generated_tokens": ending.generated_tokens,
        "prompt_tokens": ending.prompt_tokens,
        "input_length": ending.prompt_tokens,
    }


def _finish_reason(generation: Generation, ending: Finish, model: Model) -> str:
    """In TGI's words, and by its order: an end at the very last token that was allowed is its length."""
    allowed = generation.max_new_tokens or model.max_len
    allowed = min(allowed, model.max_len - ending.prompt_tokens)
    if ending.finish_reason == "length" or (ending.finish_reason == "stop" and ending.generated_tokens >= allowed):
        return "length"
    if ending.finish_reason == "stop":
        at_eos = ending.stop_reason is None or ending.stop_reason in model.eos_ids
        return "eos_token" if at_eos else "stop_sequence"
    raise Broken("The deployment gave up on the answer")


def compute_headers(generation: Generation) -> dict[str, str]:
    """What is known before the answer."""
    return {"x-compute-type": _COMPUTE_TYPE, "x-compute-characters": str(len(generation.inputs))}


def _timing(generation: Generation, served: ServingContext, ending: Finish) -> dict[str, str]:
    """TGI's headers of a whole answer: `x-compute-time` in seconds, the other times in milliseconds.

    The router keeps no queue; the engine's own is part of `x-inference-time`.
    """
    inference = served.engine_s * 1000
    return {
        **compute_headers(generation),
        "x-compute-time": f"{served.total_s:.6f}",
        "x-total-time": str(round(served.total_s * 1000)),
        "x-validation-time": str(round(served.total_s * 1000 - inference)),
        "x-queue-time": "0",
        "x-inference-time": str(round(inference)),
        "x-time-per-token": str(round(inference / max(1, ending.generated_tokens))),
        "x-prompt-tokens": str(ending.prompt_tokens),
        "x-generated-tokens": str(ending.generated_tokens),
    }
