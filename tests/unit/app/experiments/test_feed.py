"""Journal entries as events for clients.

Pages of the journal: no entry twice, none missing, also when the controller is replaced.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import BadRequest
from app.experiments.contract.journal import JournalEntry, Page
from app.experiments.feed import PAGE, event_of, id_of, page

PLAN = {
    "endpoint": "chat",
    "generation": 4,
    "plan": "4-5e6f7a8b",
    "weights": {"blue": 75, "green": 25},
    "since": 1762956300.0,
    "by": "ann",
    "reason": "load test",
    "overrides": 0,
    "expires": 1762959900.0,
    "content": "0123456789abcdef",
}


def answer(entry: JournalEntry) -> tuple[str, str | None, dict[str, object]]:
    event = event_of(entry, {"exp": "chat"}.get)
    assert event is not None
    return event.kind, event.endpoint, event.data


def test_an_alarm_becomes_an_event() -> None:
    detail = {
        "text": "Too many errors.",
        "kind": "guardrail",
        "at": 9.5,
        "metric": None,
        "key": "guardrail error/green",
    }
    assert answer(JournalEntry(9.5, "alarm", "exp", detail)) == (
        "alarm",
        "chat",
        {"at": 9.5, "experiment": "exp", "endpoint": "chat", "text": "Too many errors.", "kind": "guardrail"},
    )


def test_a_plans_event_names_its_author() -> None:
    kind, endpoint, data = answer(JournalEntry(1762956301.0, "plan", None, PLAN))
    assert (kind, endpoint) == ("plan", "chat")
    assert data["text"] == "Plan 4, by ann, until 12 November 2025 15:05 UTC: blue 75 %, green 25 % (load test)"
    assert data["weights"] == {"blue": 75, "green": 25}
    assert "content" not in data
    by_file = {**PLAN, "by": None, "reason": None, "expires": None}
    assert answer(JournalEntry(1.0, "plan", None, by_file))[2]["text"] == "Plan 4, with a file: blue 75 %, green 25 %"


def test_the_event_of_a_run_omits_its_judging_settings() -> None:
    section = {"endpoint": "chat", "control": "blue", "treatments": ["green", "red"], "alpha": 0.05}
    kind, _, data = answer(JournalEntry(1.0, "run_begun", "exp", {"section": section, "unit": "", "started_at": 1.0}))
    assert (kind, data["text"]) == ("run", "A new run begins: green, red against blue")
    assert data.keys() == {"at", "experiment", "endpoint", "text", "started_at"}


def test_the_id_survives_the_directory() -> None:
    entry = JournalEntry(1762956300.123456789, "plan", None, PLAN, "w")
    read = msgspec.json.decode(msgspec.json.encode(entry), type=JournalEntry)
    assert id_of(entry) == id_of(read)
    assert id_of(entry).startswith("1762956300.123457-")
    assert id_of(entry) != id_of(msgspec.structs.replace(entry, writer="v"))


def test_acting_entries_become_events_without_the_controllers_internal_fields() -> None:
    stop = {"endpoint": "chat", "deployment": "green", "id": "s1"}
    state = {"phase": "paused", "revision": 7, "cause": "alarm", "by": None, "stops": [stop], "seen": ["error green"]}
    entry = JournalEntry(1.0, "stop", "exp", {"text": "green gets no traffic.", "state": state})
    kind, endpoint, data = answer(entry)
    assert (kind, endpoint) == ("stop", "chat")
    shown_state = {"state": "paused", "revision": 7, "cause": "alarm", "stopped": ["green"]}
    assert data == {
        "at": 1.0,
        "experiment": "exp",
        "endpoint": "chat",
        "text": "green gets no traffic.",
        **shown_state,
    }


CHAT = {"section": {"endpoint": "chat", "control": "blue", "treatments": ["green"]}}


def alarm(at: float, text: str = "", writer: str = "a") -> JournalEntry:
    return JournalEntry(at, "alarm", "exp", {"text": text or str(at)}, writer)


def begun(at: float = 0.0, writer: str = "a") -> JournalEntry:
    return JournalEntry(at, "run_begun", "exp", CHAT, writer)


def texts(page: Page) -> list[str]:
    return [event.data["text"] for event in page.events]


def calls(entries: Sequence[JournalEntry], size: int = PAGE, **query: str) -> Page:
    return page(entries, {}, query, size=size)


def test_without_a_position_a_page_has_the_journals_end() -> None:
    entries = [begun(), alarm(1.0)]
    page = calls(entries)
    assert (page.events, page.more, page.latest) == ([], False, id_of(entries[-1]))
    entries += [alarm(2.0), alarm(3.0)]
    assert texts(calls(entries, position=page.position)) == ["2.0", "3.0"]


def test_after_an_event_and_after_a_time() -> None:
    entries = [begun(), alarm(1.0, "a"), alarm(1.0, "b"), alarm(2.0, "c")]
    assert texts(calls(entries, after=id_of(entries[1]))) == ["b", "c"]
    assert texts(calls(entries, since="1.0")) == ["c"]
    assert texts(calls(entries, since="0.5")) == ["a", "b", "c"]
    assert texts(calls(entries, after="1.5-00000000")) == ["c"]


@pytest.mark.parametrize("since", ["yesterday", "", "nan", "-", "inf"])
def test_a_place_without_a_time_is_refused(since: str) -> None:
    with pytest.raises(BadRequest) as raised:
        calls([begun()], since=since)
    assert raised.value.param == "since"


def test_with_another_controllers_position_the_event_id_is_used() -> None:
    first = [begun(), alarm(1.0), alarm(2.0)]
    page = calls(first, since="1.5")
    second = [*first, JournalEntry(3.0, "controller_started", writer="b"), alarm(4.0, writer="b")]
    after = calls(second, position=page.position, after=page.latest)
    assert texts(after) == ["The controller of experiments started", "4.0"]


def test_a_position_is_invalid_once_earlier_entries_have_been_read() -> None:
    own = [JournalEntry(5.0, "controller_started", writer="b"), begun(5.0, "b"), alarm(6.0, writer="b")]
    page = calls(own, since="5.5")
    opened = [begun(), alarm(1.0), *own, alarm(7.0, writer="b")]
    assert texts(calls(opened, position=page.position, after=page.latest)) == ["7.0"]


@pytest.mark.parametrize("position", ["", "x", "a.0.000000.99", "a.0.000000.-1", "a.0.000000.²"])
def test_an_unknown_position_is_ignored(position: str) -> None:
    assert texts(calls([begun(), alarm(1.0)], position=position, since="0.5")) == ["1.0"]


def test_entries_for_the_controller_alone_are_no_events() -> None:
    entries = [
        JournalEntry(1.0, "configuration", None, {"prices": {}}),
        JournalEntry(2.0, "alarm", "unheard-of", {"text": "?"}),
    ]
    assert calls(entries, since="0").events == []
    assert calls(entries, since="0").latest == id_of(entries[-1])


@given(
    times=st.lists(st.floats(1, 1e9, allow_nan=False), max_size=30),
    size=st.integers(1, 5),
    how=st.sampled_from(["position", "after"]),
)
def test_consecutive_pages_have_every_entry_once(times: list[float], size: int, how: Any) -> None:
    entries = [begun(), *(alarm(at, str(number)) for number, at in enumerate(sorted(times)))]
    answer: list[str] = []
    query = {"since": "0.5"}
    while True:
        page = calls(entries, size, **query)
        answer += texts(page)
        if not page.more:
            break
        query = {how: page.position if how == "position" else page.latest}
    assert answer == [str(number) for number in range(len(times))]
