"""The internal keys: one for each purpose, several at a time while they change."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.internal_keys import Purpose, accepted, derived, listed, opens, sent

KEY = st.text(st.characters(exclude_characters=",\n"), min_size=1).map(str.strip).filter(bool)
STEPS = ("old", "old,new", "new,old", "new")


def lets_in(environment: dict[str, str], purpose: Purpose, key: str) -> bool:
    return opens(key, [key.encode() for key in accepted(environment, purpose)])


@given(KEY)
def test_each_purpose_has_its_own_key_and_the_master_opens_nothing(master: str) -> None:
    keys = [derived(master, purpose) for purpose in Purpose]
    assert len({*keys, master}) == 1 + len(Purpose)
    for purpose in Purpose:
        let_in = [key for key in (*keys, master, "") if lets_in({"SWITCHYARD_INTERNAL_KEY": master}, purpose, key)]
        assert let_in == [sent(master, purpose)]


def test_an_engine_knows_its_key_and_not_the_controllers() -> None:
    engine = {"SWITCHYARD_ENGINE_KEY": derived("master", Purpose.ENGINE)}
    assert lets_in(engine, Purpose.ENGINE, sent("master", Purpose.ENGINE))
    assert accepted(engine, Purpose.CONTROLLER) == ()
    controller = {"SWITCHYARD_INTERNAL_KEY": "master"}
    assert not lets_in(controller, Purpose.CONTROLLER, engine["SWITCHYARD_ENGINE_KEY"])


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize(("before", "after"), list(pairwise(STEPS)))
def test_a_key_changes_in_steps_of_which_neighbours_work_together(purpose: Purpose, before: str, after: str) -> None:
    """A rolling change: at any moment some processes are one step behind."""
    for router in (before, after):
        for application in (before, after):
            assert lets_in({"SWITCHYARD_INTERNAL_KEY": application}, purpose, sent(router, purpose))
            engines = ",".join(derived(key, purpose) for key in listed(application))
            if purpose is Purpose.ENGINE:
                assert lets_in({"SWITCHYARD_ENGINE_KEY": engines}, purpose, sent(router, purpose))


@pytest.mark.parametrize("value", [None, "", " ", ",", "\n", ", \n,"])
def test_an_empty_list_lets_nobody_in(value: str | None) -> None:
    environment = {} if value is None else {"SWITCHYARD_INTERNAL_KEY": value, "SWITCHYARD_ENGINE_KEY": value}
    for purpose in Purpose:
        assert accepted(environment, purpose) == ()
        assert sent(value or "", purpose) == ""
        assert not opens("", [])


def test_the_derivation_does_not_change_between_versions() -> None:
    """Secrets of clusters hold the engines' key."""
    assert derived("master", Purpose.ENGINE) == "66eb52f3f8418ada16568a0263b75860d9e61ba11fc1be286ea4c5d18aa1151c"
