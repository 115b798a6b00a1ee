"""A completion request in vLLM's fields.

vLLM's own `/v1/completions` gets the requests that it supports. `EXTENDED_PATH` is the model applications' own route:
the same fields, and `seeds`, `beam` and `replace_embeddings`. Other extensions are logits processors (`vllm_xargs`).

Checks of a request against its deployment's model, and the fields that depend on that model.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from app.dialects.base import ServingContext
from app.dialects.common.requests import Steps, draw_seed, missing_capability
from app.dialects.friendli.fields import Completions, TokenSequence
from app.dialects.friendli.sampling import sampling, seed_fields, seeds_count_up
from app.engine.context import PromptTokens
from app.engine.model import Model
from app.engine.pieces import WINDOW
from app.errors import CONTEXT_EXCEEDED, BadRequest
from app.internal_api import BAD_WORD_SEPARATOR, EXTENDED_PATH, LARGEST_SEED, Xarg
from app.routing.traffic import Random

PATH = "/v1/completions"
_MOST_OF_BAD_WORDS = 8 * WINDOW
"""Characters. They are tokenized while the client waits: a quarter of a second."""

_PASSED_ON = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "top_k", "top_p")


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The client's fields, and one seed per choice."""

    fields: Completions
    seeds: Sequence[int]

    @classmethod
    def from_fields(cls, fields: Completions, random: Random) -> Self:
        """Draws a seed if the client gave none."""
        if isinstance(fields.seed, list) and fields.seed:
            return cls(fields, fields.seed)
        first = draw_seed(random) if isinstance(fields.seed, list) else fields.seed
        return cls(fields, [(first + index) % (LARGEST_SEED + 1) for index in range(fields.n)])

    @property
    def path(self) -> str:
        """The engine's route that can do it."""
        extended = self.fields.searches or self.fields.token_index_to_replace or not seeds_count_up(self.seeds)
        return EXTENDED_PATH if extended else PATH

    @property
    def top_logprobs(self) -> int | None:
        """The number of likeliest tokens listed for each token; None for no log-probabilities at all."""
        fields = self.fields
        return 0 if fields.include_output_logprobs or fields.include_output_logits else fields.logprobs

    @property
    def gets_text_at_once(self) -> bool:
        """Whether the engine sends each token's text with the token, and no log-probabilities."""
        return self.top_logprobs is None and not self.fields.stop

    def engine_body(self) -> dict[str, Any]:
        """vLLM's request, except for what depends on its model. Raises BadRequest."""
        fields = self.fields
        body: dict[str, Any] = {
            "prompt": fields.tokens if fields.prompt is None else fields.prompt,
            "stream": fields.stream,
            "return_token_ids": True,
        }
        if self.top_logprobs is not None:
            body |= {"logprobs": self.top_logprobs, "return_tokens_as_token_ids": True}
        body |= {name: value for name in _PASSED_ON if (value := getattr(fields, name)) is not None}
        if fields.token_index_to_replace:
            replaced = {"indices": fields.token_index_to_replace, "values": fields.embedding_to_replace}
            body["replace_embeddings"] = replaced
        return {**body, **(self._beam_search() if fields.searches else self._sampling())}

    def _sampling(self) -> dict[str, Any]:
        fields, count_up = self.fields, seeds_count_up(self.seeds)
        body = sampling(fields, several=fields.n > 1 and count_up)
        body |= seed_fields(self.seeds) if count_up else {"seeds": list(self.seeds)}
        if processors := {**body.get("vllm_xargs", {}), **self._processors()}:
            body["vllm_xargs"] = processors
        if fields.stop:
            body["stop"] = fields.stop
        if stop_ids := sorted({*ids_in(fields.stop_tokens), *fields.eos_token}):
            body["stop_token_ids"] = stop_ids
        if fields.eos_token or fields.forced_output_tokens:
            body["ignore_eos"] = True
        return body

    def _processors(self) -> dict[str, Any]:
        processors: dict[str, Any] = {}
        if self.fields.no_repeat_ngram > 1:
            processors[Xarg.NO_REPEAT_NGRAM] = self.fields.no_repeat_ngram
        if self.fields.forced_output_tokens:
            processors[Xarg.FORCED_OUTPUT_TOKENS] = self.fields.forced_output_tokens
        return processors

    def _beam_search(self) -> dict[str, Any]:
        fields = self.fields
        beam: dict[str, Any] = {"width": fields.num_beams, "type": fields.beam_search_type, "seed": self.seeds[0]}
        if fields.length_penalty is not None:
            beam["length_penalty"] = fields.length_penalty
        if fields.early_stopping is not None:
            beam["early_stopping"] = fields.early_stopping
        if fields.eos_token:
            beam["eos_token_ids"] = fields.eos_token
        if ids := ids_in(fields.stop_tokens):
            beam["stop_tokens"] = [[id] for id in ids]
        if fields.no_repeat_ngram > 1:
            beam["no_repeat_ngram"] = fields.no_repeat_ngram
        # A deterministic search ranks its beams the same at any temperature.
        sampled = fields.draws_beams and fields.temperature is not None
        return {"beam": beam, **({"temperature": fields.temperature} if sampled else {})}


def ids_in(sequences: Sequence[TokenSequence]) -> list[int]:
    """The distinct ids in all sequences, sorted."""
    return sorted({id for sequence in sequences for id in sequence.tokens})


# Everything here raises BadRequest, which names the client's field.

_CLIENT_NAMES: Mapping[str, str] = {
    "beam": "num_beams",
    "replace_embeddings": "token_index_to_replace",
    "seeds": "seed",
}


def _wrong(name: str, why: str, code: str | None = None) -> BadRequest:
    return BadRequest(f"{name}: {why}", param=name, code=code)


def check_extensions(body: Mapping[str, Any], serving: ServingContext, bad_words: str = "bad_word_tokens") -> None:
    """Rejects a request for an extension that the deployment lacks. `bad_words`: the field that forbids words."""
    if (missing := missing_capability(body, serving)) is not None:
        name, why = missing
        raise _wrong(bad_words if name == Xarg.BAD_WORD_TOKENS else _CLIENT_NAMES.get(name, name), why)


def check_ids(fields: Completions, model: Model) -> None:
    """Rejects ids beyond the model's vocabulary."""
    for name, ids in (
        ("tokens", fields.tokens),
        ("stop_tokens", ids_in(fields.stop_tokens)),
        ("eos_token", fields.eos_token),
        ("bad_word_tokens", ids_in(fields.bad_word_tokens)),
        ("forced_output_tokens", fields.forced_output_tokens),
    ):
        if ids and max(ids) >= model.vocab_size:
            raise _wrong(name, f"{max(ids)} is not a token id; ids are 0 to {model.vocab_size - 1}")
    if (fields.top_k or 0) > model.vocab_size:
        raise _wrong("top_k", f"must be at most {model.vocab_size}, the vocabulary's size")


def check_replaced_embeddings(fields: Completions, prompt: PromptTokens, model: Model) -> None:
    """Rejects indices beyond the prompt, and embeddings of another size than the model's."""
    indices, values, size = fields.token_index_to_replace, fields.embedding_to_replace, model.hidden_size
    if indices and max(indices) >= prompt.longest:
        raise _wrong(
            "token_index_to_replace", f"{max(indices)} is out of range, the prompt has {prompt.longest} tokens"
        )
    if size is not None and len(values) != len(indices) * size:
        wanted = f"{size} numbers for each of {len(indices)} indices"
        raise _wrong("embedding_to_replace", f"must hold {wanted}, {len(indices) * size} in all, not {len(values)}")


def check_scores(fields: Completions, serving: ServingContext) -> None:
    """Rejects logits where the engine gives log-probabilities, and the other way round."""
    gives_logits, name = serving.known_model.gives_logits, "include_output_logits"
    if fields.include_output_logits and not gives_logits:
        raise _wrong(name, f"deployment '{serving.deployment}' gives none: it needs logprobs_mode raw_logits")
    name = "include_output_logprobs" if fields.include_output_logprobs else "logprobs"
    if gives_logits and (fields.include_output_logprobs or fields.logprobs is not None):
        raise _wrong(name, f"deployment '{serving.deployment}' gives logits instead (logprobs_mode raw_logits)")


def lengths(fields: Completions, prompt: PromptTokens) -> dict[str, Any]:
    """`max_tokens` and `min_tokens`."""
    if prompt.room < 1:
        name = "tokens" if fields.prompt is None else "prompt"
        why = f"has {prompt.counted} tokens, which leaves no room for an answer in a context of {prompt.context}"
        raise _wrong(name, why, CONTEXT_EXCEEDED)
    name, most = _most_tokens(fields, prompt)
    if most > prompt.room:
        why = f"the prompt's {prompt.longest} tokens leave {prompt.room} of the model's {prompt.context}"
        raise _wrong(name, why, CONTEXT_EXCEEDED)
    if most < 1:
        raise _wrong(name, f"must exceed the prompt's length, {prompt.longest}")
    least = fields.min_tokens or max(0, (fields.min_total_tokens or 0) - prompt.longest)
    if least > most:
        name = "min_tokens" if fields.min_tokens else "min_total_tokens"
        raise _wrong(name, f"asks for {least} tokens at least, where {most} are allowed at most")
    return {"max_tokens": most, **({"min_tokens": least} if least else {})}


def _most_tokens(fields: Completions, prompt: PromptTokens) -> tuple[str, int]:
    """The largest number of tokens that the client allows, and the field that sets it."""
    name, most = "max_tokens", prompt.room
    if fields.max_tokens is not None:
        most = fields.max_tokens
    elif fields.max_total_tokens is not None:
        name, most = "max_total_tokens", fields.max_total_tokens - prompt.longest
    elif fields.forced_output_tokens:
        name, most = "forced_output_tokens", len(fields.forced_output_tokens)
    return name, min(most, len(fields.forced_output_tokens) or most)


def with_bad_words(body: dict[str, Any], fields: Completions, serving: ServingContext) -> Steps[dict[str, Any]]:
    """`body` with the forbidden sequences, for the logits processor or for the beam search."""
    if any(fields.bad_words) and "beam" not in body:
        check_extensions({"vllm_xargs": {Xarg.BAD_WORD_TOKENS: []}}, serving, "bad_words")
    joined = array("q")  # a list for each word would take ten times the memory
    for batch in _batches(fields.bad_words):
        if joined:
            yield ()
        for encoding in serving.known_model.encodings(batch, special=False):
            _join(joined, encoding.ids)
    for sequence in fields.bad_word_tokens:
        _join(joined, sequence.tokens)
    if not joined:
        return body
    if "beam" in body:
        return {**body, "beam": {**body["beam"], "bad_word_tokens": _split(joined)}}
    return {**body, "vllm_xargs": {**body.get("vllm_xargs", {}), Xarg.BAD_WORD_TOKENS: joined.tolist()}}


def _join(joined: "array[int]", ids: Sequence[int]) -> None:
    if joined and ids:
        joined.append(BAD_WORD_SEPARATOR)
    joined.extend(ids)


def _split(joined: "array[int]") -> list[list[int]]:
    split: list[list[int]] = [[]]
    for id in joined:
        if id == BAD_WORD_SEPARATOR:
            split.append([])
        else:
            split[-1].append(id)
    return split


def _batches(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The words, in batches that are tokenized within milliseconds."""
    if sum(map(len, words)) > _MOST_OF_BAD_WORDS:
        raise _wrong("bad_words", f"the words have at most {_MOST_OF_BAD_WORDS} characters together")
    begin = size = 0
    for at, word in enumerate(words):
        if len(word) > WINDOW:
            raise _wrong("bad_words", f"a word has at most {WINDOW} characters, not {len(word)}")
        if at > begin and size + len(word) > WINDOW:
            yield words[begin:at]
            begin, size = at, 0
        size += len(word)
    if words:
        yield words[begin:]
