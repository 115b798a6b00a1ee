"""What the router knows of a deployment's model: its tokenizer, its end-of-sequence ids, its context length.

Some dialects speak of tokens (TGI, Friendli): they count a prompt before it is sent and name each token of an answer.
A model application tells all of it at `MODEL_PATH`, as a JSON object: ``tokenizer`` (the content of tokenizer.json as a
string), ``eos_token_ids``, ``max_model_len`` (prompt and answer together, in tokens), ``hidden_size``. For a server
elsewhere a directory with the model's files says it (`tokenizer_dir`), and vLLM's own `/v1/models` the length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json
from tokenizers import Tokenizer

from app.errors import Broken

MODEL_PATH = "/switchyard/model"
"""Where a model application tells about its model."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model as its callers count it. `max_len` is in tokens, prompt and answer together."""

    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    max_len: int
    hidden_size: int | None = None

    @classmethod
    def build(
        cls, tokenizer_json: str, *, eos_ids: Iterable[int], max_len: int, hidden_size: int | None = None
    ) -> Self:
        """Raises Broken where `tokenizer_json` is no tokenizer."""
        try:
            tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the Rust side raises plain Exception
            raise Broken("The deployment's tokenizer cannot be read") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        special = (id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special)
        return cls(tokenizer, frozenset(eos_ids), frozenset(special), max_len, hidden_size)

    @classmethod
    def read(cls, card: bytes) -> Self:
        """From a model application's answer. Raises Broken where it is none."""
        try:
            told = from_json(card)
            return cls.build(
                told["tokenizer"],
                eos_ids=told["eos_token_ids"],
                max_len=told["max_model_len"],
                hidden_size=told.get("hidden_size"),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Broken("The deployment does not tell about its model") from error

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
            hidden_size=config.get("hidden_size"),
        )

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, special tokens added as the engine adds them."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def piece(self, id: int) -> str:
        """One id's own text, a special token's too. The bytes of a part of a character are U+FFFD."""
        text: str = self.tokenizer.decode([id], skip_special_tokens=False)
        return text


def _json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = from_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    return value
