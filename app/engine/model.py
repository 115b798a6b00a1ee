"""A deployment's model as the router knows it: tokenizer, end-of-sequence ids, context length.

Some dialects return tokens (TGI, Friendli): they count a prompt before it is sent and list each token of an answer.
A model application describes its model at `MODEL_PATH`, as a JSON object: ``tokenizer`` (the content of tokenizer.json
as a string), ``eos_token_ids``, ``max_model_len`` (prompt and answer together, in tokens), ``hidden_size``,
``vocab_size``, ``logprobs_mode`` (vLLM's engine argument), ``processors`` (the keys of `vllm_xargs` that its engine
supports), ``labels`` (the names of a classification model's classes), ``continues`` (whether its replicas continue one
another's streams). An external server's model is read from a
directory (`tokenizer_dir`), its context length from vLLM's `/v1/models`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Self

from pydantic_core import from_json
from tokenizers import Tokenizer

from app.engine.pieces import LONGEST_WORD, MOST_CHARACTERS, WINDOW, Piece, pieces
from app.errors import Broken
from app.internal_api import CONTINUES


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model. `max_len` is in tokens, prompt and answer together.

    `is_extended`: its server is a model application of this project, with routes that vLLM lacks. `processors` are the
    keys of `vllm_xargs` that it supports; a server silently ignores others. `gives_logits`: it returns raw logits in
    place of log-probabilities. `labels` are a classification model's. `continues`: its server continues streams that
    another one has begun.
    """

    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    max_len: int
    vocab_size: int
    hidden_size: int | None = None
    is_extended: bool = False
    gives_logits: bool = False
    processors: frozenset[str] = frozenset()
    labels: Sequence[str] = ()
    continues: bool = False
    _long_words: Lock = field(default_factory=Lock)
    """Held while a long word is encoded: several at once would take hundreds of megabytes."""

    @classmethod
    def build(
        cls,
        tokenizer_json: str,
        *,
        eos_ids: Iterable[int],
        max_len: int,
        vocab_size: int | None = None,
        hidden_size: int | None = None,
        is_extended: bool = False,
        gives_logits: bool = False,
        processors: Iterable[str] = (),
        labels: Sequence[str] = (),
        continues: bool = False,
    ) -> Self:
        """Raises Broken if `tokenizer_json` is not a tokenizer. `vocab_size` None: the tokenizer's."""
        try:
            tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the Rust side raises plain Exception
            raise Broken("The deployment's tokenizer cannot be read") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        special = (id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        return cls(
            tokenizer,
            frozenset(eos_ids),
            frozenset(special),
            max_len,
            vocab_size or 1 + max(tokenizer.get_vocab().values(), default=0),
            hidden_size,
            is_extended,
            gives_logits,
            frozenset(processors),
            labels,
            continues,
        )

    @classmethod
    def read(cls, card: bytes) -> Self:
        """Reads a model application's response. Raises Broken if it is malformed."""
        try:
            fields = from_json(card)
            return cls.build(
                fields["tokenizer"],
                eos_ids=fields["eos_token_ids"],
                max_len=fields["max_model_len"],
                vocab_size=fields.get("vocab_size"),
                hidden_size=fields.get("hidden_size"),
                is_extended=True,
                gives_logits=fields.get("logprobs_mode") == "raw_logits",
                processors=fields.get("processors", ()),
                labels=fields.get("labels", ()),
                continues=fields.get(CONTINUES) is True,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken("The deployment did not describe its model") from error

    @classmethod
    def load(cls, directory: Path, max_len: int) -> Self:
        """Reads a directory with a model's files, as model hubs store them. Raises OSError and Broken."""
        tokenizer = (directory / "tokenizer.json").read_text(encoding="utf-8")
        config = _json(directory / "config.json")
        eos = (_json(directory / "generation_config.json") or config).get("eos_token_id")
        listed = eos if isinstance(eos, list) else [eos]
        return cls.build(
            tokenizer,
            eos_ids=[id for id in listed if id is not None],
            max_len=max_len,
            vocab_size=config.get("vocab_size"),
            hidden_size=config.get("hidden_size"),
            labels=labels_of(config.get("id2label") or {}),
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a short prompt, special tokens added as the engine adds them; without, the ids of a fragment."""
        ids: list[int] = self.encodings([text], special=special)[0].ids
        return ids

    def encodings(self, texts: Sequence[str], *, special: bool = True) -> list[Any]:
        """`tokenizers.Encoding` of each text. A single text is a batch, too: alone, it would keep other threads from
        running, for seconds if it is long.
        """
        found: list[Any] = self.tokenizer.encode_batch(list(texts), add_special_tokens=special)
        return found

    def pieces(self, text: str) -> Iterator[Piece]:
        """The ids of a prompt and their places in it, as `encode` gives them, in pieces that take milliseconds each.

        Raises Unsplittable for a text of which a piece would take too much memory.
        """
        if len(text) <= WINDOW:
            (encoding,) = self.encodings([text])
            yield Piece(encoding.ids, encoding)
            return
        words, special = self.encodings(["a a", ""])
        before = next((at for at, is_special in enumerate(words.special_tokens_mask) if not is_special), 0)
        if before:
            yield Piece(special.ids[:before], special)
        keeps_whole = len({word for word in words.word_ids if word is not None}) < 2
        yield from pieces(text, self._encoded, longest=MOST_CHARACTERS if keeps_whole else LONGEST_WORD)
        if after := special.ids[before:]:
            yield Piece(after, special)

    def _encoded(self, text: str) -> Any:
        if len(text) <= WINDOW:
            return self.encodings([text], special=False)[0]
        with self._long_words:
            return self.encodings([text], special=False)[0]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of `ids`, special tokens left out unless `special`."""
        texts: list[str] = self.tokenizer.decode_batch([list(ids)], skip_special_tokens=not special)  # as `encodings`
        return texts[0]

    def decode_one(self, id: int) -> str:
        """One id's own text, a special token's too. Bytes of an incomplete character become U+FFFD."""
        text: str = self.tokenizer.decode([id], skip_special_tokens=False)
        return text


def labels_of(names: Mapping[Any, str]) -> list[str]:
    """The names of a model's classes in their order: `id2label` of its configuration, whose keys JSON makes texts."""
    return [name for _, name in sorted(names.items(), key=lambda item: int(item[0]))]


def _json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = from_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    return value
