"""vLLM's completions read token by token, in any chunking."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.dialects.base import MALFORMED_ANSWER_ERRORS
from app.engine.output import Usage
from app.engine.tokens import Detokenizer, Reader, Step, Token, TokenStream, choices, mean_logprob, prompt_tokens
from app.errors import Rejected
from tests.support.clients.samples import EOS, MODEL
from tests.support.engine import engine_answers as completions

PIECES = st.sampled_from(
    ["hello", " there", "日本", "é", "e\u0301", "😀", "👩‍👩‍👧‍👦", "🇫🇷", "\n", "\ufffd", EOS, "\x00"]
)
TEXTS = st.lists(PIECES, min_size=1, max_size=12).map("".join)
ANY_IDS = st.lists(st.integers(0, MODEL.tokenizer.get_vocab_size() - 1), min_size=1, max_size=20)
SIZES = st.lists(st.integers(0, 5), max_size=20)
CUTS = st.lists(st.floats(0, 1), max_size=10)


def read(data: bytes, cuts: list[float], *, top: int = 0) -> list[Step]:
    stream = TokenStream(MODEL, top=top)
    edges = sorted({0, len(data), *(int(cut * len(data)) for cut in cuts)})
    return [step for a, b in pairwise(edges) for step in stream.feed(data[a:b])]


def text_of(steps: list[Step]) -> str:
    return "".join(step.token.text for step in steps if step.token is not None and not step.token.special)


@given(text=TEXTS, prompt=TEXTS, sizes=SIZES, cuts=CUTS)
def test_any_chunking_gives_the_same_tokens_with_the_whole_text(
    text: str, prompt: str, sizes: list[int], cuts: list[float]
) -> None:
    prompt_ids, ids = MODEL.encode(prompt.rstrip("\ufffd") + "!"), MODEL.encode(text)
    choice = completions.choice(MODEL, prompt_ids, ids)
    steps = read(completions.stream(completions.portions(MODEL, choice, sizes)), cuts)
    assert steps == Reader(MODEL).feed(choice)
    assert [step.token.id for step in steps if step.token] == ids
    # An incomplete-looking end waits for bytes that never arrive.
    assert text_of(steps) == choice["text"] == text.replace(EOS, "").rstrip("\ufffd")
    ending = steps[-1].ending
    assert ending is not None
    assert (ending.text, ending.generated_tokens, ending.prompt_tokens) == (choice["text"], len(ids), len(prompt_ids))
    assert all(step.ending is None for step in steps[:-1])


@given(ids=ANY_IDS, prompt=ANY_IDS, sizes=SIZES, cuts=CUTS)
def test_any_chunking_gives_the_same_tokens_for_invalid_utf_8(
    ids: list[int], prompt: list[int], sizes: list[int], cuts: list[float]
) -> None:
    choice = completions.choice(MODEL, prompt, ids)
    steps = read(completions.stream(completions.portions(MODEL, choice, sizes)), cuts)
    assert steps == Reader(MODEL).feed(choice)
    assert steps[-1].ending is not None
    assert text_of(steps) == steps[-1].ending.text


@pytest.mark.parametrize("keep_end", [True, False])
@pytest.mark.parametrize("finish_reason", ["length", "stop"])
@given(text=st.lists(PIECES, min_size=1, max_size=40).map("".join), sizes=st.lists(st.integers(0, 2), max_size=60))
def test_the_fast_path_gives_the_same_steps(keep_end: bool, finish_reason: str, text: str, sizes: list[int]) -> None:
    choice = completions.choice(MODEL, MODEL.encode("!"), MODEL.encode(text), top=None, finish_reason=finish_reason)
    portions = completions.portions(MODEL, choice, sizes)
    taken, other = (Reader(MODEL, keep_end=keep_end, at_once=at_once) for at_once in (True, False))
    assert [taken.feed(part) for part in portions] == [other.feed(part) for part in portions]


@given(text=TEXTS, stop=st.sampled_from(["h", "el", "there", "\n", "日", "😀"]), sizes=SIZES)
def test_the_text_ends_with_the_stop_string_even_inside_a_token(text: str, stop: str, sizes: list[int]) -> None:
    ids = MODEL.encode("x" + text + stop)
    texts = completions.texts(MODEL, [300], ids)
    needed = next(n for n in range(1, len(ids) + 1) if stop in "".join(texts[:n]))
    choice = completions.choice(MODEL, [300], ids[:needed], stop=stop)
    steps = read(completions.stream(completions.portions(MODEL, choice, sizes)), [])
    assert text_of(steps) == choice["text"]
    assert text_of(steps).endswith(stop)
    assert steps == Reader(MODEL).feed(choice)


def test_tokens_after_the_stop_string_have_no_text() -> None:
    ids = MODEL.encode("hello there world")  # the engine took several at once
    steps = Reader(MODEL).feed(completions.choice(MODEL, [300], ids, stop="hello t"))
    assert text_of(steps) == "hello t"
    assert len(steps) == len(ids)


@pytest.mark.parametrize("sizes", [[], [1] * 20, [2, 0, 3]])
@pytest.mark.parametrize(
    ("text", "stop", "kept_text", "kept_ids"),
    [
        ("hello there", " the", "hello", MODEL.encode("hello")),
        ("hello there", "ello", "h", MODEL.encode("hello")),
        ("a日本", "日", "a", MODEL.encode("a")),
        ("日", "日", "", []),
    ],
)
def test_the_stop_string_can_be_excluded(
    text: str, stop: str, kept_text: str, kept_ids: list[int], sizes: list[int]
) -> None:
    ids = MODEL.encode(text)
    texts = completions.texts(MODEL, [300], ids)
    needed = next(n for n in range(1, len(ids) + 1) if stop in "".join(texts[:n]))
    choice = {**completions.choice(MODEL, [300], ids[:needed], stop=stop), "text": kept_text}
    reader = Reader(MODEL, keep_end=False)
    steps = [step for part in completions.portions(MODEL, choice, sizes) for step in reader.feed(part)]
    assert text_of(steps) == kept_text
    assert [step.token.id for step in steps if step.token] == kept_ids
    assert [step.ending is not None for step in steps] == [False] * (len(steps) - 1) + [True]
    assert steps[-1].ending is not None
    assert steps[-1].ending.text == kept_text


@pytest.mark.parametrize("sizes", [[], [1] * 20])
def test_tokens_are_withheld_until_the_engine_sends_their_text(sizes: list[int]) -> None:
    choice = completions.choice(MODEL, [300], MODEL.encode("hello there"))
    reader = Reader(MODEL, keep_end=False)
    quiet = {**choice, "finish_reason": None, "text": ""}
    assert [step for part in completions.portions(MODEL, quiet, sizes) for step in reader.feed(part)] == []
    rest = reader.feed({**choice, "token_ids": [], "logprobs": None})
    assert [step.token.id for step in rest if step.token] == MODEL.encode("hello there")


def test_the_token_that_ends_an_answer_can_be_excluded() -> None:
    ids = MODEL.encode("hello")
    for end, stop in ((0, None), (5, 5)):
        choice = {**completions.choice(MODEL, [300], [*ids, end], finish_reason="stop"), "stop_reason": stop}
        steps = Reader(MODEL, keep_end=False).feed({**choice, "text": "hello"})
        assert [step.token.id for step in steps if step.token] == ids
        assert steps[-1].ending is not None
        assert steps[-1].ending.text == "hello"


def test_a_special_token_has_its_own_text_which_the_whole_text_excludes() -> None:
    steps = Reader(MODEL).feed(completions.choice(MODEL, [300], [*MODEL.encode("hello"), 0], finish_reason="stop"))
    assert steps[-1].token == Token(0, EOS, -0.5 - (len(steps) - 1), True)
    assert steps[-1].ending is not None
    assert (steps[-1].ending.text, steps[-1].ending.finish_reason) == ("hello", "stop")


def test_bytes_that_complete_no_character_have_no_text() -> None:
    ids = MODEL.encode("a😀")[:-1]
    steps = Reader(MODEL).feed(completions.choice(MODEL, [300], ids))
    assert text_of(steps) == "a"
    assert len(steps) == len(ids)


def test_a_character_that_the_prompt_began_is_complete_and_not_repeated() -> None:
    ids = MODEL.encode("🦄")
    assert len(ids) > 2
    detokenizer = Detokenizer(MODEL, [*MODEL.encode("hello"), *ids[:2]])
    assert "".join(detokenizer.text(id) for id in ids[2:]) == "🦄"


def test_unknown_ids_have_no_text() -> None:
    detokenizer = Detokenizer(MODEL, [])
    assert [detokenizer.text(id) for id in (10**6, -1, 2**40)] == ["", "", ""]


def test_the_likeliest_tokens_are_listed_best_first_and_at_most_top_many() -> None:
    choice = completions.choice(MODEL, [300], [305, 310], top=3)
    first, second = (step.token for step in Reader(MODEL, top=3).feed(choice))
    assert first is not None
    assert second is not None
    assert [(token.id, token.logprob) for token in first.top] == [(305, -0.5), (3, -2.0), (4, -3.0)]
    assert [token.id for token in second.top] == [310, 3, 4]
    assert all(token.text == MODEL.decode_one(token.id) for token in second.top)
    taken_unlikely = {**choice["logprobs"], "top_logprobs": [{"token_id:9": -9.0, "token_id:3": -1.0}] * 2}
    (best, _) = Reader(MODEL, top=1).feed({**choice, "logprobs": taken_unlikely})
    assert best.token is not None
    assert [token.id for token in best.token.top] == [3]


def test_without_logprobs_there_are_none() -> None:
    (step,) = Reader(MODEL, top=2).feed(completions.choice(MODEL, [300], [5], top=None))
    assert step.token == Token(5, MODEL.decode_one(5), None, False)


def test_prompt_tokens_are_decoded_one_by_one_and_the_first_has_no_logprob() -> None:
    prompt = MODEL.encode("hello" + EOS)
    tokens = prompt_tokens(MODEL, completions.choice(MODEL, prompt, [5]))
    assert [token.id for token in tokens] == prompt
    assert [token.logprob for token in tokens] == [None, *[-3.0] * (len(prompt) - 1)]
    assert "".join(token.text for token in tokens) == "hello" + EOS
    assert tokens[-1].special
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        prompt_tokens(MODEL, {"prompt_token_ids": [1, 2], "prompt_logprobs": None})


def test_choices_are_read_independently() -> None:
    first = completions.portions(MODEL, completions.choice(MODEL, [300], MODEL.encode("hello there")), [1])
    second = completions.portions(MODEL, completions.choice(MODEL, [300], MODEL.encode("日本"), index=1), [1])
    mixed = [part for pair in zip(first, second, strict=True) for part in pair]
    steps = read(completions.stream(mixed), [])
    assert text_of([step for step in steps if step.index == 0]) == "hello there"
    assert text_of([step for step in steps if step.index == 1]) == "日本"


def test_tokens_are_counted_as_they_arrive() -> None:
    assert TokenStream(MODEL).usage is None
    stream = TokenStream(MODEL)
    parts = completions.portions(MODEL, completions.choice(MODEL, [300, 301], [5, 6, 7]), [1])
    stream.feed(completions.stream(parts[:1]))
    assert stream.usage == Usage(2, 1)
    stream.feed(completions.stream(parts[1:]))
    assert stream.usage == Usage(2, 3)


def test_an_ending_without_a_token_is_a_step() -> None:
    choice = completions.choice(MODEL, [300], MODEL.encode("hello"))
    reader = Reader(MODEL)
    reader.feed({**choice, "finish_reason": None})
    (step,) = reader.feed({**choice, "text": "", "token_ids": [], "logprobs": None})
    assert step.token is None
    assert step.ending is not None
    assert step.ending.text == "hello"


def test_the_engines_error_ends_the_stream() -> None:
    error = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}
    choice = completions.choice(MODEL, [300], [5])
    stream = TokenStream(MODEL)
    steps = stream.feed(completions.frame(error) + completions.stream([choice]))
    assert steps == []
    assert isinstance(stream.error, Rejected)


@pytest.mark.parametrize(
    "data",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b'data: "x"\n\n',
        b'data: {"x":1}\n\n',
        b'data: {"choices":[{}]}\n\n',
        b'data: {"choices":[{"index":0,"text":null,"token_ids":[],"prompt_token_ids":[]}]}\n\n',
        b'data: {"choices":[{"index":0,"text":"a","token_ids":[1],"prompt_token_ids":null}]}\n\n',
        b'data: {"choices":[{"index":0,"text":"a","token_ids":null,"prompt_token_ids":[1]}]}\n\n',
        b"data: \xff\n\n",
    ],
)
def test_a_malformed_chunk_raises(data: bytes) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        TokenStream(MODEL).feed(data)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[{}]}', b'{"choices":null}'])
def test_an_answer_without_choices_raises(body: bytes) -> None:
    with pytest.raises(MALFORMED_ANSWER_ERRORS):
        choices(body)


def test_mean_logprob_ranks_by_log_probability_per_token() -> None:
    def tokens(*logprobs: float | None) -> list[Token]:
        return [Token(1, "", logprob, False) for logprob in logprobs]

    assert mean_logprob(tokens(-1.0, -1.0, -1.0)) > mean_logprob(tokens(-2.0))
    assert mean_logprob(tokens(None, -1.0)) == -1.0
    assert mean_logprob([]) == float("-inf")


def test_choices_are_sorted_by_index() -> None:
    body: Any = b'{"choices":[{"index":1},{"index":0}]}'
    assert [choice["index"] for choice in choices(body)] == [0, 1]
