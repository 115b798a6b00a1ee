"""Journal entries as events for clients."""

import msgspec

from app.experiments.contract.journal import Entry
from app.experiments.feed import event_of, id_of

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


def answer(entry: Entry) -> tuple[str, str | None, dict[str, object]]:
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
    assert answer(Entry(9.5, "alarm", "exp", detail)) == (
        "alarm",
        "chat",
        {"at": 9.5, "experiment": "exp", "endpoint": "chat", "text": "Too many errors.", "kind": "guardrail"},
    )


def test_a_plans_event_names_its_author() -> None:
    kind, endpoint, data = answer(Entry(1762956301.0, "plan", None, PLAN))
    assert (kind, endpoint) == ("plan", "chat")
    assert data["text"] == "Plan 4, by ann, until 12 November 2025 15:05 UTC: blue 75 %, green 25 % (load test)"
    assert data["weights"] == {"blue": 75, "green": 25}
    assert "content" not in data
    by_file = {**PLAN, "by": None, "reason": None, "expires": None}
    assert answer(Entry(1.0, "plan", None, by_file))[2]["text"] == "Plan 4, with a file: blue 75 %, green 25 %"


def test_the_event_of_a_run_omits_its_judging_settings() -> None:
    section = {"endpoint": "chat", "control": "blue", "treatments": ["green", "red"], "alpha": 0.05}
    kind, _, data = answer(Entry(1.0, "run_begun", "exp", {"section": section, "unit": "", "started_at": 1.0}))
    assert (kind, data["text"]) == ("run", "A new run begins: green, red against blue")
    assert data.keys() == {"at", "experiment", "endpoint", "text", "started_at"}


def test_the_id_survives_the_directory() -> None:
    entry = Entry(1762956300.123456789, "plan", None, PLAN, "w")
    read = msgspec.json.decode(msgspec.json.encode(entry), type=Entry)
    assert id_of(entry) == id_of(read)
    assert id_of(entry).startswith("1762956300.123457-")
    assert id_of(entry) != id_of(msgspec.structs.replace(entry, writer="v"))


def test_acting_entries_become_events_without_the_controllers_internal_fields() -> None:
    stop = {"endpoint": "chat", "deployment": "green", "id": "s1"}
    state = {"phase": "paused", "revision": 7, "cause": "alarm", "by": None, "stops": [stop], "seen": ["error green"]}
    entry = Entry(1.0, "stop", "exp", {"text": "green gets no traffic.", "state": state})
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
