"""What is one slip away from a name, and what is not."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.misspellings import Names, nearest, question

NAMES = st.text("abcdef-_7", min_size=4, max_size=12)


def slips(name: str) -> Iterator[str]:
    yield name.upper()
    yield name.replace("-", "_")
    for place in range(len(name)):
        yield name[:place] + name[place + 1 :]
        yield name[:place] + "x" + name[place:]
        yield name[:place] + "x" + name[place + 1 :]
        yield name[:place] + name[place + 1 : place + 2] + name[place] + name[place + 2 :]


@pytest.mark.parametrize("name", ["chat", "smollm2-blue", "gpt-4o-mini"])
def test_every_slip_leads_to_the_name(name: str) -> None:
    for slip in slips(name):
        assert question(slip, ["something-else", name]) == f" (did you mean '{name}'?)"


def test_other_words_short_names_and_endless_ones_lead_to_none() -> None:
    for name in ("gone", "chatter", "", "caht-2", "x" * 10_000):
        assert question(name, ["chat"]) == ""
    assert question("tg", ["tgi"]) == ""


@given(NAMES, st.lists(NAMES, max_size=5))
def test_the_table_and_the_single_pass_agree(name: str, known: list[str]) -> None:
    meant = Names(known).meant(name)
    first = next((other for other in known if other in meant), None)
    assert nearest(name, known) == first
