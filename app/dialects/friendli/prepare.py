"""A completion of Friendli's and the deployment that serves it: ids for a prompt, lengths, what it can do at all."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.dialects.base import ServingContext
from app.dialects.common.engine_request import missing_capability
from app.dialects.friendli.fields import Completions
from app.dialects.friendli.generation import ids_in
from app.engine.model import Model
from app.errors import BadRequest
from app.internal_api import BAD_WORD_SEPARATOR, Xarg

_FIELDS: Mapping[str, str] = {"beam": "num_beams", "replace_embeddings": "token_index_to_replace", "seeds": "seed"}


def fit(fields: Completions, question: dict[str, Any], served: ServingContext) -> dict[str, Any]:
    """The question as the deployment's engine takes it. Raises BadRequest, naming the field."""
    model = served.known_model
    _check_ids(fields, model)
    prompt = fields.tokens if fields.prompt is None else model.encode(fields.prompt)
    _check_replaced(fields, prompt, model)
    _check_logprobs(fields, served)
    question = {**question, "prompt": prompt, **_lengths(fields, len(prompt), model.max_len)}
    question = _without_bad_words(fields, question, model)
    refuse_extras(question, served, "bad_words" if fields.bad_words else "bad_word_tokens")
    return question


def refuse_extras(question: Mapping[str, Any], served: ServingContext, bad_words: str = "bad_word_tokens") -> None:
    """Raises BadRequest where the question asks the deployment for what it does not have."""
    if (lack := missing_capability(question, served)) is not None:
        name, why = lack
        raise _wrong(bad_words if name == "bad_word_tokens" else _FIELDS.get(name, name), why)


def _wrong(name: str, why: str) -> BadRequest:
    return BadRequest(f"{name}: {why}", param=name)


def _check_ids(fields: Completions, model: Model) -> None:
    for name, ids in (
        ("tokens", fields.tokens),
        ("stop_tokens", ids_in(fields.stop_tokens)),
        ("eos_token", fields.eos_token),
        ("bad_word_tokens", ids_in(fields.bad_word_tokens)),
        ("forced_output_tokens", fields.forced_output_tokens),
    ):
        if ids and max(ids) >= model.vocab_size:
            raise _wrong(name, f"{max(ids)} is no token id, they are 0 to {model.vocab_size - 1}")
    if (fields.top_k or 0) > model.vocab_size:
        raise _wrong("top_k", f"must be at most {model.vocab_size}, the vocabulary's size")


def _check_replaced(fields: Completions, prompt: Sequence[int], model: Model) -> None:
    indices, values, size = fields.token_index_to_replace, fields.embedding_to_replace, model.hidden_size
    if indices and max(indices) >= len(prompt):
        raise _wrong("token_index_to_replace", f"{max(indices)} is out of range, the prompt has {len(prompt)} tokens")
    if size is not None and len(values) != len(indices) * size:
        wanted = f"{size} numbers for each of {len(indices)} indices"
        raise _wrong("embedding_to_replace", f"must hold {wanted}, {len(indices) * size} in all, not {len(values)}")


def _lengths(fields: Completions, prompt: int, context: int) -> dict[str, Any]:
    """`max_tokens` and `min_tokens` for a prompt of `prompt` tokens in a context of `context`."""
    rest = context - prompt
    if rest < 1:
        name = "tokens" if fields.prompt is None else "prompt"
        raise _wrong(name, f"has {prompt} tokens, which leaves no room for an answer in a context of {context}")
    name, most = _longest(fields, prompt, rest)
    if most > rest:
        raise _wrong(name, f"the prompt's {prompt} tokens leave {rest} of the model's {context}")
    if most < 1:
        raise _wrong(name, f"must exceed the prompt's length, {prompt}")
    least = fields.min_tokens or max(0, (fields.min_total_tokens or 0) - prompt)
    if least > most:
        name = "min_tokens" if fields.min_tokens else "min_total_tokens"
        raise _wrong(name, f"asks for {least} tokens at least, where {most} are allowed at most")
    return {"max_tokens": most, **({"min_tokens": least} if least else {})}


def _longest(fields: Completions, prompt: int, rest: int) -> tuple[str, int]:
    """How many tokens are allowed, and the field that says so."""
    name, most = "max_tokens", rest
    if fields.max_tokens is not None:
        most = fields.max_tokens
    elif fields.max_total_tokens is not None:
        name, most = "max_total_tokens", fields.max_total_tokens - prompt
    elif fields.forced_output_tokens:
        name, most = "forced_output_tokens", len(fields.forced_output_tokens)
    return name, min(most, len(fields.forced_output_tokens) or most)


def _check_logprobs(fields: Completions, served: ServingContext) -> None:
    logits, name = served.known_model.gives_logits, "include_output_logits"
    if fields.include_output_logits and not logits:
        raise _wrong(name, f"deployment '{served.deployment}' gives none: it needs logprobs_mode raw_logits")
    name = "include_output_logprobs" if fields.include_output_logprobs else "logprobs"
    if logits and (fields.include_output_logprobs or fields.logprobs is not None):
        raise _wrong(name, f"deployment '{served.deployment}' gives logits instead (logprobs_mode raw_logits)")


def _without_bad_words(fields: Completions, question: dict[str, Any], model: Model) -> dict[str, Any]:
    words = [model.encode(word, special=False) for word in fields.bad_words]
    forbidden = [ids for ids in (*words, *(sequence.tokens for sequence in fields.bad_word_tokens)) if ids]
    if not forbidden:
        return question
    if "beam" in question:
        return {**question, "beam": {**question["beam"], "bad_word_tokens": forbidden}}
    in_a_row = [id for ids in forbidden for id in (BAD_WORD_SEPARATOR, *ids)][1:]
    return {**question, "vllm_xargs": {**question.get("vllm_xargs", {}), Xarg.BAD_WORD_TOKENS: in_a_row}}
