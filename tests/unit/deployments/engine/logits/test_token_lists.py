"""Forbidden and forced token ids."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.logits.processor import MAX_TOKEN_IDS, SamplingRequest
from deployments.engine.logits.processors import BadWordTokens, ForcedOutputTokens
from tests.support.engine.token_sampling import generate, made_up_scores, present, ruled_out

SEQUENCES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=6)
KINDS = pytest.mark.parametrize(
    ("key", "kind"), [("bad_word_tokens", BadWordTokens), ("forced_output_tokens", ForcedOutputTokens)]
)


def on_the_wire(sequences: list[list[int]]) -> list[int]:
    return [number for ids in sequences for number in (-1, *ids)][1:]


@given(sequences=SEQUENCES, output=st.lists(st.integers(0, 4), max_size=12))
def test_the_last_id_is_ruled_out_where_the_output_ends_in_the_others(
    sequences: list[list[int]], output: list[int]
) -> None:
    processor = present(BadWordTokens.from_request(SamplingRequest({"bad_word_tokens": on_the_wire(sequences)})))
    scores = torch.zeros(6)  # token 5 is in no sequence, so one token is always allowed
    processor(scores, [0, 1, 2, 3, 4], output)
    assert ruled_out(scores) == {ids[-1] for ids in sequences if output[len(output) - len(ids) + 1 :] == ids[:-1]}


def test_no_forbidden_sequence_comes_in_thousands_of_tokens() -> None:
    forbidden = [[3], [7, 1], [1, 2, 4], [5, 5, 5, 5], [0, 3]]
    output = generate(made_up_scores(10, 0), [7], 4000, BadWordTokens(forbidden))
    free = generate(made_up_scores(10, 0), [7], 4000)

    def found(text: list[int]) -> list[list[int]]:
        return [ids for ids in forbidden if any(text[i : i + len(ids)] == ids for i in range(len(text)))]

    assert found(output) == []
    assert found(free) == forbidden


def test_the_prompt_begins_no_forbidden_sequence() -> None:
    scores = torch.zeros(4)
    BadWordTokens([[1, 2]])(scores, [1], [])
    assert ruled_out(scores) == set()


def test_where_nothing_else_is_left_a_forbidden_token_stays() -> None:
    scores = torch.tensor([-torch.inf, 0.5, -torch.inf])
    BadWordTokens([[0], [1]])(scores, [], [])
    assert scores.tolist() == [-torch.inf, 0.5, -torch.inf]


def test_forbidden_ids_outside_the_vocabulary_harm_nothing() -> None:
    scores = torch.zeros(4)
    BadWordTokens([[9], [1, 9], [1, 3], [4]])(scores, [], [1])
    assert ruled_out(scores) == {3}


@pytest.mark.parametrize("value", [[], None])
@KINDS
def test_no_ids_are_off(key: str, kind: type[BadWordTokens], value: object) -> None:
    assert kind.from_request(SamplingRequest({key: value})) is None


@pytest.mark.parametrize("value", [[-1], [-1, 5], [5, -1], [5, -1, -1, 6]])
def test_empty_sequences_are_rejected(value: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^bad_word_tokens holds an empty sequence"):
        BadWordTokens.from_request(SamplingRequest({"bad_word_tokens": value}))


@pytest.mark.parametrize("value", ["1 2", 5, [1.0], [True], [[1, 2]], ["1"], {"tokens": [1]}, [None]])
@KINDS
def test_other_values_than_lists_of_integers_are_rejected(key: str, kind: type[BadWordTokens], value: object) -> None:
    with pytest.raises(ValueError, match=f"^{key} must be a list of integers"):
        kind.from_request(SamplingRequest({key: value}))


@pytest.mark.parametrize("value", [[100], [1, -2], [2**40]])
@KINDS
def test_ids_outside_the_vocabulary_are_rejected(key: str, kind: type[BadWordTokens], value: list[int]) -> None:
    with pytest.raises(ValueError, match=f"^{key} holds {value[-1]}, which is no token id: they are 0 to 99"):
        kind.from_request(SamplingRequest({key: value}, vocabulary_size=100))


@KINDS
def test_too_many_ids_are_rejected(key: str, kind: type[BadWordTokens]) -> None:
    assert kind.from_request(SamplingRequest({key: [1] * MAX_TOKEN_IDS})) is not None
    with pytest.raises(ValueError, match=f"^{key} may hold {MAX_TOKEN_IDS} token ids"):
        kind.from_request(SamplingRequest({key: [1] * (MAX_TOKEN_IDS + 1)}))


def test_the_output_is_the_forced_tokens_and_then_free() -> None:
    forced = [4, 4, 0, 9, 2]
    output = generate(made_up_scores(10, 1), [3], 300, ForcedOutputTokens(forced))
    assert output[:5] == forced
    assert set(output[5:]) == set(range(10))


def test_forced_tokens_win_over_forbidden_ones() -> None:
    processors = BadWordTokens([[4], [4, 4]]), ForcedOutputTokens([4, 4, 4])
    assert generate(made_up_scores(10, 1), [3], 3, *processors) == [4, 4, 4]


def test_a_forced_id_outside_the_vocabulary_harms_nothing() -> None:
    scores = torch.zeros(4)
    ForcedOutputTokens([4])(scores, [], [])
    assert ruled_out(scores) == set()


def test_a_grammar_and_forced_tokens_exclude_each_other() -> None:
    with pytest.raises(ValueError, match=r"^forced_output_tokens cannot be combined"):
        ForcedOutputTokens.from_request(SamplingRequest({"forced_output_tokens": [1]}, is_structured=True))
