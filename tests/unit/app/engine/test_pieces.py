"""A long text's tokens, piece by piece: those of the whole text."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from app.engine.model import Model
from app.engine.pieces import LONGEST_WORD, MOST_CHARACTERS, WINDOW, Unsplittable, pieces
from tests.support.clients.samples import EOS, tokenizer

SIZE = 1024
"""Characters of a window here: a text of some thousand has several pieces."""


def _byte_level(**ends: Any) -> Tokenizer:
    made = tokenizer()
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(**ends),
            processors.TemplateProcessing(
                single=f"{EOS} $A {EOS} {EOS}", pair="$A $B", special_tokens=[(EOS, made.token_to_id(EOS))]
            ),
        ]
    )
    return made


def _digits() -> Tokenizer:
    """Groups of three digits from the left: a piece that begins elsewhere would group them otherwise."""
    made = tokenizer()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                pattern=Regex(
                    r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                behavior="isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return made


def _word_piece() -> Tokenizer:
    words = ["[UNK]", "a", "b", "1", ".", "##a", "##b", "##1", "ab", "##ab"]
    made = Tokenizer(WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _unigram() -> Tokenizer:
    made = Tokenizer(Unigram([("<unk>", -9.0), ("▁", -1.0), ("a", -2.0), ("▁a", -1.5), ("b", -2.0)], 0, False))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.add_special_tokens([AddedToken("<s>", special=True)])
    return made


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": tokenizer,
    "byte level, special ids around": lambda: _byte_level(trim_offsets=False),
    "byte level, spaces left out of offsets": lambda: _byte_level(trim_offsets=True),
    "groups of digits": _digits,
    "word pieces": _word_piece,
    "unigrams": _unigram,
}

_PARTS = st.one_of(
    st.sampled_from(
        ["a", "b", "ab a", " ", "  ", "\n", "\r\n", ".", "!?", "1", "123", "1234567", EOS, "<s>", "'s", "\t"]
    ),
    st.sampled_from(["日本", "é", "e\u0301", "\u0301", "😀", "👩‍👩‍👧", "\u200d", "\x00"]),
    st.characters(codec="utf-8"),
)
TEXTS = st.lists(st.tuples(_PARTS, st.integers(1, 300)), max_size=12).map(
    lambda parts: "".join(part * count for part, count in parts)
)


def covered(place: tuple[int, int]) -> tuple[int, int] | None:
    """The characters; None if a tokenizer leaves spaces out, and nothing else is there."""
    return place if place[0] < place[1] else None


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_have_the_ids_and_places_of_the_whole_text(name: str) -> None:
    made = TOKENIZERS[name]()

    def encode(text: str) -> Any:
        return made.encode(text, add_special_tokens=False)

    @given(text=TEXTS)
    def law(text: str) -> None:
        whole = encode(text)
        try:
            cut = list(pieces(text, encode, size=SIZE, longest=8 * SIZE))
        except Unsplittable:
            return
        assert [id for piece in cut for id in piece.ids] == whole.ids
        assert [covered(place) for piece in cut for place in piece.offsets] == [*map(covered, whole.offsets)]

    law()


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("sentence", ["a b ab. ", "ab a1b\n", "日本 é, 12345 b\n\n", "a\t b  a. "])
def test_ordinary_texts_have_pieces(name: str, sentence: str) -> None:
    made = TOKENIZERS[name]()
    model, text = Model.build(made.to_str(), eos_ids=[], max_len=100), sentence * (4 * WINDOW // len(sentence))
    cut, whole = list(model.pieces(text)), made.encode(text)
    assert [id for piece in cut for id in piece.ids] == whole.ids
    assert [covered(place) for piece in cut for place in piece.offsets] == [*map(covered, whole.offsets)]
    assert len(cut) >= 4


def test_a_tokenizer_that_takes_a_text_for_one_word_gets_all_of_it() -> None:
    made = Tokenizer(BPE({"a": 0, "▁": 1, "b": 2}, []))
    made.normalizer = normalizers.Replace(" ", "▁")
    model, text = Model.build(made.to_str(), eos_ids=[], max_len=100), "a b " * (LONGEST_WORD // 2)
    assert [id for piece in model.pieces(text) for id in piece.ids] == made.encode(text).ids
    with pytest.raises(Unsplittable):
        list(model.pieces("a" * (MOST_CHARACTERS + 1)))


@pytest.mark.parametrize("repeated", ["a", "日", "!", " ", "😀"])
def test_a_word_is_bounded(repeated: str) -> None:
    model = Model.build(tokenizer().to_str(), eos_ids=[], max_len=100)
    with pytest.raises(Unsplittable, match=str(LONGEST_WORD)):
        list(model.pieces(repeated * 2 * LONGEST_WORD))
    text = "a " + repeated * (WINDOW + 100) + " b"
    assert [id for piece in model.pieces(text) for id in piece.ids] == model.encode(text)
