"""What the router knows of a deployment's model: its tokenizer, its end-of-sequence ids, its context length.

Some dialects speak of tokens (TGI, Friendli): they count a prompt before it is sent and name each token of an answer.
A model application tells all of it at `MODEL_PATH`, as a JSON object: ``tokenizer`` (the content of tokenizer.json as a
string), ``eos_token_ids``, ``max_model_len`` (prompt and answer together, in tokens), ``hidden_size``, ``vocab_size``,
``logprobs_mode`` (vLLM's engine argument), ``processors`` (the keys of `vllm_xargs` that its engine heeds). For a
server elsewhere a directory with the model's files says it (`tokenizer_dir`), and vLLM's own `/v1/models` the length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json
from tokenizers import Tokenizer

from app.errors import Broken


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model as its callers count it. `max_len` is in tokens, prompt and answer together.

    `is_extended`: its server is a model application of this project, with routes that vLLM's own lacks. `processors`
    are the keys of `vllm_xargs` that it heeds. What a server does not know it drops without a word. `gives_logits`: its
    log-probabilities are none, but the model's raw scores.
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
    ) -> Self:
        """Raises Broken where `tokenizer_json` is no tokenizer. `vocab_size` None: the tokenizer's."""
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
        )

    @classmethod
    def read(cls, card: bytes) -> Self:
        """From a model application's answer. Raises Broken where it is none."""
        try:
            told = from_json(card)
            return cls.build(
                told["tokenizer"],
                eos_ids=told["eos_token_ids"],
                max_len=told["max_model_len"],
                vocab_size=told.get("vocab_size"),
                hidden_size=told.get("hidden_size"),
                is_extended=True,
                gives_logits=told.get("logprobs_mode") == "raw_logits",
                processors=told.get("processors", ()),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken("The deployment did not describe its model") from error

    @classmethod
    def load(cls, directory: Path, max_len: int) -> Self:
        """From a directory with a model's files, as model hubs keep them. Raises OSError, and Broken on wrong ones."""
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
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a prompt, special tokens added as the engine adds them; without, the ids of a piece of text."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of `ids`, special tokens left out unless `special`."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=not special)
        return text

    def decode_one(self, id: int) -> str:
        """One id's own text, a special token's too. The bytes of a part of a character are U+FFFD."""
        text: str = self.tokenizer.decode([id], skip_special_tokens=False)
        return text


def _json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = from_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    return value
