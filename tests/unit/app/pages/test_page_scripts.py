"""The console's scripts that need no browser, apart from the playground's, in Node."""

import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.experiments import DEFAULT_GUARDRAILS
from app.exposures.wire import Flag
from tests.support.clients.page_modules import call, call_all

SPACE = "\N{NO-BREAK SPACE}"
PLAN = {
    "generation": 1,
    "weights": {"blue": 90, "green": 10},
    "overrides": 0,
    "expires": None,
    "withdrawn": {},
    "content": "aaaaaaaa",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"weights": {"blue": 80, "green": 20}}, [f"blue 90 → 80{SPACE}%", f"green 10 → 20{SPACE}%"]),
        ({"weights": {"blue": 90, "red": 10}}, [f"green 10 → 0{SPACE}%", f"red 0 → 10{SPACE}%"]),
        ({"overrides": 2, "content": "bbbbbbbb"}, ["overrides 0 → 2"]),
        ({"expires": 1800000000.0, "content": "bbbbbbbb"}, ["temporary"]),
        ({"withdrawn": {"green": "blue"}}, ["running conversations leave green for blue"]),
        ({"content": "bbbbbbbb"}, ["the sticky key, the mirror, or which units have an override"]),
    ],
)
def test_every_change_of_a_plan_is_named(changed: dict[str, Any], words: list[str]) -> None:
    assert call("planChanges", PLAN, {**PLAN, **changed}) == words


def test_the_end_of_a_temporary_plan_is_named() -> None:
    temporary = {**PLAN, "expires": 1800000000.0}
    later = {**PLAN, "expires": 1800003600.0}
    old = {**PLAN, "content": ""}
    calls = [(temporary, PLAN), (temporary, later), (old, PLAN)]
    assert call_all([("planChanges", arguments) for arguments in calls]) == [
        ["no longer temporary"],
        ["another end"],
        [],
    ]


def test_a_change_of_an_effect_names_the_plan_that_was_made_around_then() -> None:
    at = 1_700_000_000.0
    plans = [
        {"generation": 7, "since": at + 20 * 60, "by": "ann", "reason": None},
        {"generation": 6, "since": at + 60, "by": None, "reason": None},
        {"generation": 5, "since": at - 300, "by": "boss", "reason": "more"},
        {"generation": 4, "since": at - 86400, "by": "ann", "reason": None},
    ]
    file, boss, *none = call_all(
        [("planWords", arguments) for arguments in ((plans, at), (plans, at - 400), (plans, at - 9000), (plans, None))]
    )
    assert re.fullmatch(r"Around then, at .*\d\d:\d\d, a deployed file changed the traffic \(generation 6\)\. ", file)
    assert re.fullmatch(r"Around then, at .*\d\d:\d\d, boss changed the traffic \(generation 5: more\)\. ", boss)
    assert none == ["", ""]


def test_axes_end_at_round_numbers_with_round_halves() -> None:
    given = [0.002, 0.05, 0.147, 0.2, 0.21, 0.33, 0.5, 0.61, 7]
    assert call_all([("rounded", (value,)) for value in given]) == [0.002, 0.06, 0.2, 0.2, 0.4, 0.4, 0.6, 1, 10]


@pytest.mark.parametrize("name", ["signed", "signedPercent"])
def test_no_effect_is_rounded_to_nothing_and_none_changes_its_sign(name: str) -> None:
    """An interval from -0.6 % to -0.04 % excludes 0, and says so."""
    values = [sign * digit * 10.0**power for sign in (1, -1) for digit in (1, 4, 9.96) for power in range(-6, 3)]
    for value, shown in zip(values, call_all([(name, (value,)) for value in values]), strict=True):
        number = float(shown[1:].replace(",", "").replace(f"{SPACE}%", ""))
        assert shown[0] == ("+" if value > 0 else "\N{MINUS SIGN}")
        assert number == pytest.approx(abs(value) * (100 if name == "signedPercent" else 1), rel=0.06)


BOUND = st.floats(-0.99, 20.0)
EFFECTS = st.lists(st.tuples(BOUND, BOUND, BOUND).map(sorted), min_size=1, max_size=6)


def as_effect(low: float, estimate: float, high: float) -> dict[str, float]:
    return {"lower": low, "estimate": estimate, "upper": high}


@settings(max_examples=5, deadline=None)
@given(st.lists(EFFECTS, min_size=20, max_size=20), st.floats(0.001, 0.5))
def test_every_estimate_and_the_present_interval_lie_on_the_axes(
    cases: list[list[list[float]]], minimal: float
) -> None:
    """And no axis of relative effects goes below -100 %."""
    looks = [[as_effect(*numbers) for numbers in case] for case in cases]
    rows = [[{"effect": effect, "minimal_effect": minimal} for effect in case] for case in looks]
    charts = call_all([("ends", (case, minimal, "relative")) for case in looks])
    plots = call_all([("reach", (case,)) for case in rows])
    for case, chart, plot in zip(looks, charts, plots, strict=True):
        for axis in (chart, plot):
            assert -1 <= axis["low"] < 0 < axis["high"]
            assert all(axis["low"] <= effect["estimate"] <= axis["high"] for effect in case)
        assert chart["low"] <= case[-1]["lower"] <= case[-1]["upper"] <= chart["high"]


def test_an_axis_fits_what_it_shows() -> None:
    wide = as_effect(-0.9, 3.1, 5.9)
    assert call("ends", [wide], 0.05, "relative") == {"low": -1, "high": 10}
    assert call("ends", [as_effect(-0.3, 0.1, 0.2)], 0.05, "relative") == {"low": -0.4, "high": 0.4}
    assert call("ends", [as_effect(-30.0, 1.0, 20.0)], 0.05, "absolute") == {"low": -40, "high": 40}


def test_what_is_known_to_the_minute_is_shown_without_seconds() -> None:
    now, day_before = time.time(), time.time() - 86400
    shown = call_all([("moment", (now,)), ("minute", (now,)), ("minute", (None,))])
    assert re.fullmatch(r"\d\d:\d\d:\d\d", shown[0])
    assert shown[1:] == [shown[0][:5], None]
    assert (
        call("moment", day_before) == f"{call('minute', day_before)}:{time.strftime('%S', time.localtime(day_before))}"
    )


def test_numbers_stay_with_their_units() -> None:
    given = ["between 1.7 % and 13.4 % earlier", "5 s or 300 ms", "2 h 15 min", "4 stops"]
    assert call_all([("unbroken", (value,)) for value in given]) == [
        f"between 1.7{SPACE}% and 13.4{SPACE}% earlier",
        f"5{SPACE}s or 300{SPACE}ms",
        f"2{SPACE}h 15{SPACE}min",
        "4 stops",
    ]


@pytest.mark.parametrize(("until", "requests"), [(1200.0, 180), (660.0, 72), (610.0, 62)])
def test_a_rate_comes_to_what_was_counted_though_the_last_point_is_short(until: float, requests: int) -> None:
    assert call("amount", [0.1, 0.2], {"at": [0.0, 600.0], "until": until}) == requests


@pytest.mark.parametrize(
    ("stream", "first_byte_s", "duration_s", "words"),
    [
        (True, 0.2, 60.0, None),
        (True, 10.5, 11.0, f"no first byte within 10{SPACE}s"),
        (True, None, 10.5, f"no first byte within 10{SPACE}s"),
        (True, None, 9.5, None),
        (False, None, 19.5, None),
        (False, 0.2, 20.5, f"no whole answer within 20{SPACE}s"),
    ],
)
def test_a_request_is_slow_as_the_default_guardrail_says(
    stream: bool, first_byte_s: float | None, duration_s: float, words: str | None
) -> None:
    defaults = next(rail for rail in DEFAULT_GUARDRAILS if rail.event == "slow")
    assert (defaults.ttft_above_s, defaults.answer_above_s) == (10, 20)
    request = {"stream": stream, "first_byte_s": first_byte_s, "duration_s": duration_s}
    assert call("slowness", request) == words


def test_a_time_is_told_from_its_limit() -> None:
    given = [(20.04, 20), (19.98, 20), (20, 20), (20.001, 20), (25.0, 20)]
    assert call_all([("besides", pair) for pair in given]) == [
        f"{number}{SPACE}s" for number in ("20.04", "19.98", "20", "20.0010", "25")
    ]


@pytest.mark.parametrize("decision", [None, "ship", "do_not_ship", "keep_going", "invalid"])
def test_only_a_run_that_has_not_ended_has_a_decision(decision: str | None) -> None:
    for state in ("running", "paused", "stopped", "draft"):
        for summary in ({"state": state}, {"state": "running", "acting": {"state": state}}):
            words = call("decisionWords", {"decision": decision, **summary})
            assert (words is None) == (state in ("stopped", "draft"))
            assert state != "paused" or words[1] != "Keep going"


@pytest.mark.parametrize(
    ("values", "upper", "said"),
    [
        ((100.0, 90.0), -0.05, ""),
        ((78.0, 69.0), -0.01, ""),
        ((78.0, 69.0), 0.02, ""),
        ((78.0, 90.0), 0.02, "+15.4 % over all requests as they came"),
        ((0.0, 90.0), 0.02, ""),
        ((78.0, None), 0.02, ""),
        ((78.0, 69.0), None, ""),
    ],
)
def test_what_the_arms_columns_say_is_explained_where_the_effect_denies_it(
    values: tuple[float, float | None], upper: float | None, said: str
) -> None:
    arms = [{"arm": arm, "value": value} for arm, value in zip(("blue", "green"), values, strict=True)]
    effect = {"estimate": -0.1, "lower": -0.2, "upper": upper}
    comparison = {"scale": "relative", "treatment": "green", "effect": effect, "values": arms}
    words = call("asTheyCame", comparison, "blue")
    assert words.replace("\N{NO-BREAK SPACE}", " ").startswith(said)
    assert bool(words) == bool(said)


@given(st.integers(1_600_000_000, 1_900_000_000), st.sampled_from([900, 3600, 6 * 3600, 86400, 7 * 86400]))
@settings(max_examples=30)
def test_the_labels_of_a_time_axis_are_round_and_have_room(begin: int, length: int) -> None:
    found = call("roundTicks", begin, begin + length)
    times = [begin + one["at"] * length for one in found]
    assert 2 <= len(found) <= 4
    assert all(0.05 < one["at"] < 0.95 for one in found)
    steps = {round(after - before) for before, after in pairwise(times)}
    assert len(steps) == 1
    assert all(round(time) % min(*steps, 86400) == 0 for time in times)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (200, "", "200"),
        (502, "broken", "502 deployment failed"),
        (200, "broken", "200, then cut short: deployment failed"),
        (200, "timeout", "200, then cut short: timeout"),
        (429, "limit_exceeded", "429 limit exceeded"),
        (0, "client_gone", "0 client left"),
        (499, "no_engine", "499 no engine was there"),
        (504, "client_timeout", "504 the request's own time limit"),
        (0, "router_lost", "lost with its router"),
        (200, "router_lost", "200, then lost with its router"),
    ],
)
def test_a_request_broke_off_only_if_its_answer_had_begun(status: int, error: str, words: str) -> None:
    assert call("resultWords", {"status": status, "error": error}) == words


REQUEST: dict[str, Any] = {
    "admitted_s": 0.001,
    "sent_s": 0.002,
    "first_byte_s": 0.5,
    "duration_s": 101.0,
    "attempts": 1,
    "failed_attempts": [],
    "deployment": "blue",
    "engine": "",
    "running": False,
    "prompt_tokens": 9,
    "completion_tokens": 20,
    "max_tokens": None,
    "pause_s": 0.0,
    "pauses": [],
    "paused_s": None,
}
BEFORE = [
    ["Checked, and waited for limits and the queue", 0, 0.001],
    ["Prepared", 0.001, 0.002],
    ["blue: until the first byte", 0.002, 0.5],
]
LOST = "Its engine was lost: waited for another"
START = "No replica ran: waited for one of blue to start"


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"lacked": [0.003, 0.4]}, [START, "blue: until the first byte", "Answer"]),
        ({"lacked": [0.003, 0.4], "first_byte_s": None, "running": True}, [START, "blue: no answer so far"]),
        ({"lacked": [0.003, 101.0], "first_byte_s": None, "running": True}, [START]),
        ({"lacked": [0.0, 0.001]}, ["blue: until the first byte", "Answer"]),  # of an attempt before
        ({"lacked": None}, ["blue: until the first byte", "Answer"]),
    ],
)
def test_the_wait_for_a_replica_to_start_is_a_part_of_its_own(given: dict[str, Any], parts: list[str]) -> None:
    shown = call("phases", {**REQUEST, **given})
    assert [name for name, *_ in shown] == [name for name, *_ in BEFORE[:2]] + parts
    if parts[0] == START and len(parts) > 1:
        assert shown[2] == [START, 0.002, 0.4]


@pytest.mark.parametrize(
    ("pauses", "parts"),
    [
        ([], [["Answer", 0.5, 101]]),
        ([[3, 96]], [["Answer", 0.5, 3], [LOST, 3, 99], ["Answer, continued", 99, 101]]),
        (
            [[3, 2], [10, 5]],
            [
                ["Answer", 0.5, 3],
                [LOST, 3, 5],
                ["Answer, continued", 5, 10],
                [LOST, 10, 15],
                ["Answer, continued", 15, 101],
            ],
        ),
        ([[99, 2]], [["Answer", 0.5, 99], [LOST, 99, 101]]),
    ],
)
def test_the_wait_for_another_engine_is_a_part_of_the_timeline(pauses: list[list[float]], parts: list[Any]) -> None:
    assert call("phases", {**REQUEST, "pauses": pauses}) == [*BEFORE, *parts]


NOT_LOST = {"continued": False, "interrupted": False}
GONE = "its connection ended"


def failed(at_s: float, until_s: float, why: str, **more: Any) -> dict[str, Any]:
    return {"deployment": "blue", "engine": "", "at_s": at_s, "until_s": until_s, "why": why, **NOT_LOST} | more


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (
            {"attempts": 2, "deployment": "green", "failed_attempts": [failed(0.002, 0.01, "it could not be reached")]},
            [
                ["Prepared", 0.001, 0.002],
                ["Attempt 1, blue: it could not be reached", 0.002, 0.01],
                ["Waited before another attempt", 0.01, 0.1],
                ["Attempt 2, green: until the first byte", 0.1, 0.5],
                ["Answer", 0.5, 101],
            ],
        ),
        (
            {"attempts": 1, "failed_attempts": [failed(0.002, 0.4, "it could not be reached", engine="r1")]},
            [
                ["Prepared", 0.001, 0.002],
                ["blue (replica r1): it could not be reached", 0.002, 0.4],
                ["Answered with the error", 0.4, 101],
            ],
        ),
        ({"first_byte_s": None}, [["Prepared", 0.001, 0.1], ["blue: no answer", 0.1, 101]]),
        ({"first_byte_s": None, "running": True}, [["Prepared", 0.001, 0.1], ["blue: no answer so far", 0.1, 101]]),
        (
            # Another engine has continued the stream: that is a pause, and no attempt that failed.
            {"failed_attempts": [failed(0.1, 3, "it failed", continued=True, interrupted=True)]},
            [["Prepared", 0.001, 0.1], ["blue: until the first byte", 0.1, 0.5], ["Answer", 0.5, 101]],
        ),
        (
            # The first byte was the first engine's, not that of the one which has gone on.
            {
                "engine": "r2",
                "failed_attempts": [failed(0.1, 3, GONE, engine="r1", continued=True, interrupted=True)],
                "pauses": [[3, 96]],
            },
            [
                ["Prepared", 0.001, 0.1],
                ["blue (replica r1): until the first byte", 0.1, 0.5],
                ["Answer", 0.5, 3],
                [LOST, 3, 99],
                ["Answer, continued", 99, 101],
            ],
        ),
        (
            {
                "engine": "r1",
                "failed_attempts": [failed(0.1, 3.5, GONE, engine="r1", interrupted=True)],
                "pauses": [[3, 97.9]],
            },
            [
                ["Prepared", 0.001, 0.1],
                ["blue (replica r1): until the first byte", 0.1, 0.5],
                ["Answer", 0.5, 3],
                [LOST, 3, 100.9],
                ["Ended: no engine went on", 100.9, 101],
            ],
        ),
        (
            # A whole answer that is collected from a stream has its first byte at its end.
            {
                "first_byte_s": 100.95,
                "failed_attempts": [failed(0.1, 3.5, GONE, engine="r1", interrupted=True)],
                "pauses": [[3, 97.9]],
            },
            [
                ["Prepared", 0.001, 0.1],
                [f"blue (replica r1): {GONE}", 0.1, 3],
                [LOST, 3, 100.9],
                ["Answered with the error", 100.9, 101],
            ],
        ),
        (
            {
                "running": True,
                "first_byte_s": None,
                "failed_attempts": [failed(0.1, 3.5, GONE, engine="r1", interrupted=True)],
                "pauses": [[3, 98]],
                "paused_s": 98,
            },
            [["Prepared", 0.001, 0.1], ["blue: no answer so far", 0.1, 3], [LOST, 3, 101]],
        ),
    ],
)
def test_the_timeline_names_each_attempt_and_why_it_failed(request_: dict[str, Any], parts: list[Any]) -> None:
    shown = call("phases", {**REQUEST, "sent_s": 0.1, **request_})
    assert shown == [["Checked, and waited for limits and the queue", 0, 0.001], *parts]


FIRST = failed(0.1, 20, GONE, engine="r1", continued=True, interrupted=True)


@pytest.mark.parametrize(
    ("request_", "lines"),
    [
        (
            {"running": True, "paused_s": 40, "failed_attempts": [{**FIRST, "continued": False}]},
            [f"blue (replica r1): {GONE} after 19.9 s; the stream has waited 40 s for another"],
        ),
        (
            {"failed_attempts": [{**FIRST, "continued": False}]},
            [f"blue (replica r1): {GONE} after 19.9 s; none went on"],
        ),
        (
            {"engine": "r2", "failed_attempts": [FIRST]},
            [f"blue (replica r1): {GONE} after 19.9 s, another went on", "blue (replica r2): it answered"],
        ),
        (
            {"engine": "r2", "running": True, "failed_attempts": [FIRST]},
            [f"blue (replica r1): {GONE} after 19.9 s, another went on", "blue (replica r2): it answers"],
        ),
        (
            {"engine": "r2", "failed_attempts": [FIRST, failed(30, 50, "it failed", engine="r2", interrupted=True)]},
            [
                f"blue (replica r1): {GONE} after 19.9 s, another went on",
                "blue (replica r2): it failed after 20 s; none went on",
            ],
        ),
    ],
)
def test_a_stream_went_on_only_where_another_engine_has_gone_on(request_: dict[str, Any], lines: list[str]) -> None:
    assert [one.replace(SPACE, " ") for one in call("attemptWords", {**REQUEST, **request_})] == lines


def test_tokens_have_the_rate_at_which_engines_wrote() -> None:
    moved = {**REQUEST, "pauses": [[3, 96]], "pause_s": 96.0}
    slow = {**REQUEST, "completion_tokens": 5}
    said = call_all([("tokens", (request,)) for request in (moved, slow)])
    assert [words.rpartition(", ")[2] for words in said] == ["4.22/s without the wait for another engine", "0.04/s"]


def test_flags_are_said_in_words_and_those_that_say_nothing_of_the_request_are_not() -> None:
    flags = ["carried", "own_length", "own_form", "own_time", "shared"]
    first, own = call("remarks", flags)
    assert first == "its conversation may have started under an earlier plan"
    assert own == "its own parameters, not the deployment, may decide its length, its form and how long it takes"
    names = [flag.name.lower() for flag in Flag if flag is not Flag.SHARED and flag.name]
    assert not [words for words in call("remarks", names) if "_" in words]
    assert len(call("remarks", names)) == len([name for name in names if not name.startswith("own_")]) + 2


HELD = {"matching": 500, "kept": 500, "older_matching": 0, "older_kept": 0, "running": 0, "since": 1.8e9}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, "500 requests since T"),
        ({"matching": 1, "kept": 1}, "1 request since T"),
        ({"older_matching": 5, "older_kept": 5}, "500 requests since T, and 5 older ones that were not answered"),
        (
            {"older_matching": 1, "older_kept": 1, "running": 3},
            "500 requests since T, 3 of them running, and 1 older one that was not answered",
        ),
        ({"matching": 7, "older_kept": 5}, "7 of 500 requests since T, and 0 of 5 older ones that were not answered"),
        (
            {"matching": 7, "older_matching": 5, "older_kept": 5},
            "7 of 500 requests since T, and 5 older ones that were not answered",
        ),
    ],
)
def test_the_list_counts_what_it_has_since_a_moment_and_older_failures_apart(found: dict[str, Any], words: str) -> None:
    pattern = re.escape(words).replace("T", r"[^,]+20\d\d, \d\d:\d\d:\d\d")
    assert re.fullmatch(pattern, call("listWords", {**HELD, **found}))


@pytest.mark.parametrize(
    ("matching", "older", "words"),
    [
        (0, 0, None),
        (2, 0, "2 requests in the last 15 minutes reached no endpoint, the last at T."),
        (1, 40, "At least 41 requests in the last 15 minutes reached no endpoint, the last at T."),
    ],
)
def test_requests_at_no_endpoint_are_told_of_for_a_quarter_of_an_hour(
    matching: int, older: int, words: str | None
) -> None:
    now = time.time()
    found = {"matching": matching, "older_matching": older}
    said, late = call_all(
        [("astrayWords", ({**found, "requests": [{"at": now - ago}] * bool(words)},)) for ago in (60, 960)]
    )
    assert (said is None) == (words is None)
    assert words is None or re.fullmatch(re.escape(words).replace("T", ".+"), said)
    assert late is None


OWN_LIMIT = " until the request's own limit of 1.5\u00a0s passed"


@pytest.mark.parametrize(
    ("limited", "last"),
    [
        ({"status": 504, "first_byte_s": 1.6}, f"blue: no answer{OWN_LIMIT}"),
        ({"status": 200}, f"Answer{OWN_LIMIT}"),
        ({"status": 200, "own_limit_s": None}, "Answer"),
    ],
)
def test_a_timeline_names_the_requests_own_limit(limited: dict[str, Any], last: str) -> None:
    parts = call("phases", {**REQUEST, "own_limit_s": 1.5, **limited})
    assert last in [name for name, _, _ in parts]


@pytest.mark.parametrize(
    ("outcome", "sent", "words"),
    [
        ("left", {"sent_tokens": 12}, "12 in the answer until the client left"),
        ("errors", {"sent_tokens": 1}, "1 in the answer until it was cut short"),
        ("errors", {"sent_tokens": 1, "own_limit_s": 1.5}, f"1 in the answer{OWN_LIMIT}"),
        ("left", {"sent_events": 13}, "about 13 in the answer until the client left, by its events"),
        ("left", {}, "not counted"),
        ("answered", {"sent_events": 13}, "about 13 in the answer, by its events"),
        (None, {"sent_tokens": 4}, "4 in the answer so far"),
        (None, {"running": True}, "not known yet"),
    ],
)
def test_an_answer_that_its_engine_has_not_counted_says_how_much_of_it_was_sent(
    outcome: str | None, sent: dict[str, int], words: str
) -> None:
    unknown = {"prompt_tokens": None, "completion_tokens": None, "sent_tokens": None, "sent_events": None}
    assert call("tokens", {**REQUEST, **unknown, "outcome": outcome, **sent}) == words


NAMES = {"endpoints": ["chat"], "deployments": ["blue"], "callers": ["ann"], "errors": ["broken"]}


def test_a_name_in_a_filter_that_nothing_has_is_said() -> None:
    given = [
        ({"endpoint": "nope"}, "nope"),
        ({"endpoint": "quiet"}, None),
        ({"deployment": "x", "caller": "y", "error": "z"}, None),
        ({"endpoint": "chat", "deployment": "blue", "caller": "ann", "error": "broken"}, None),
        ({"endpoint": "-", "status": "not_answered"}, None),
    ]
    calls = [("unknownNames", (values, {**NAMES, "no_such_endpoint": absent})) for values, absent in given]
    assert call_all(calls) == [
        ["There is no endpoint “nope”, or you may not use it."],
        ["No request of the list is at an endpoint “quiet”."],
        [
            "No request of the list was sent to a deployment “x”.",
            "No request of the list has the caller “y”.",
            "No request of the list failed with “z”.",
        ],
        [],
        [],
    ]


def test_deployments_without_a_replica_are_named_with_their_time() -> None:
    outages: dict[str, list[tuple[int, int | None]]] = {
        "a": [(10, 30)],
        "b": [],
        "c": [(-5, None)],
        "d": [(-9, 2), (55, 70)],
        "e": [(60, 70)],
    }
    lacks = [
        {"deployment": name, "outages": [{"from": since, "to": to} for since, to in spans]}
        for name, spans in outages.items()
    ]
    assert call_all([("lackWords", (lacks, 0, 60)), ("lackWords", (lacks[1:2], 0, 60))]) == [
        f"no replica of a (20{SPACE}s), c and d (7{SPACE}s) ran",
        "",
    ]
    routers = {"deployment": None, "outages": [{"from": 10, "to": 17}, {"from": 60, "to": 120}]}
    assert call_all([("lackWords", ([routers, *lacks[:1]], begin, begin + 60)) for begin in (0, 60)]) == [
        f"no router answered (7{SPACE}s); no replica of a (20{SPACE}s) ran",
        "no router answered",
    ]


def test_outages_are_told_with_both_ends_and_their_length() -> None:
    spans = [(100, 190), (86_400, 87_020), (90_000, None)]
    lack = {"deployment": "green", "outages": [{"from": since, "to": to} for since, to in spans]}
    day, next_day = "1 Jan 1970, 00:01:40\u201300:03:10", "2 Jan 1970, 00:00:00\u201300:10:20"
    assert call_all([("outageWords", (lack, 90_070, named)) for named in (5, 1)]) == [
        f"no replica of green ran {day} (90{SPACE}s), {next_day} (10{SPACE}min) and"
        f" since 2 Jan 1970, 01:00:00 (70{SPACE}s so far), or some seconds more",
        f"no replica of green ran 3 times, 13{SPACE}min in all, the last time"
        f" since 2 Jan 1970, 01:00:00 (70{SPACE}s so far), or some seconds more",
    ]
    over = {"deployment": "green", "outages": [{"from": 90_000, "to": None, "isOver": True}]}
    assert call_all([("outageWords", (over, 90_070, 5))]) == [
        "no replica of green ran from 2 Jan 1970, 01:00:00 until a moment ago, or some seconds more"
    ]
    routers = {"deployment": None, "outages": lack["outages"][:1]}
    assert call_all([("outageWords", (routers, 90_070, 5))]) == [
        f"no router answered {day} (90{SPACE}s), or some seconds less; requests of that time are counted nowhere"
    ]


@pytest.mark.parametrize(
    ("state", "is_over"),
    [
        ({"replicas": {"RUNNING": 1}}, True),
        ({"replicas": {"RUNNING": 1}, "dead": 1}, False),
        ({"replicas": {"RUNNING": 1}, "breaker": "open"}, False),
        ({"replicas": {"STARTING": 1}}, False),
        ({"replicas": None}, False),
    ],
)
def test_an_outage_is_over_once_the_same_page_says_that_a_replica_runs(state: dict[str, Any], is_over: bool) -> None:
    spans = [{"from": 1, "to": 2}, {"from": 3, "to": None}]
    history = {"no_router": spans, "series": [{"endpoint": "chat", "deployment": "blue", "outages": spans}]}
    blue = {"deployment": "blue", "role": "traffic", "breaker": "closed", **state}
    routers, own = call("lacksOf", history, {"endpoint": "chat", "deployments": [blue]})
    ended = {"from": 3, "to": None, "isOver": True}
    assert routers["outages"][1] == ended, "this router answers"
    assert own["outages"] == [spans[0], ended if is_over else spans[1]]


def test_two_moments_have_their_day_once() -> None:
    now = time.time()
    today = time.localtime(now)
    at = now - (today.tm_hour * 3600 + today.tm_min * 60 + today.tm_sec) + 3600
    assert call_all([("between", (at, at + 90)), ("between", (0, 90)), ("between", (0, 86_400))]) == [
        "01:00:00\u201301:01:30",
        "1 Jan 1970, 00:00:00\u201300:01:30",
        "1 Jan 1970, 00:00:00\u20132 Jan 1970, 00:00:00",
    ]


def test_keys_move_between_the_points_of_a_chart() -> None:
    keys = ["ArrowLeft", "ArrowRight", "ArrowDown", "ArrowUp", "Home", "End", "Tab", "toString"]
    calls = [("pointAt", (key, point, 3)) for key in keys[:4] for point in (0, 2)]
    assert call_all(calls) == [0, 1, 1, 2, 0, 1, 1, 2]
    assert call_all([("pointAt", (key, 1, 3)) for key in keys[4:]]) == [0, 2, None, None]


def test_no_replica_is_called_good_while_its_deployment_s_breaker_is_open() -> None:
    """Serve lists a dead replica as running until its own check has failed."""
    given: list[tuple[Any, str, bool]] = [
        ({"RUNNING": 1}, "closed", False),
        ({"RUNNING": 1}, "open", False),
        ({"RUNNING": 2, "STARTING": 1}, "open", False),
        ({}, "open", False),
        ({}, "closed", True),
        (None, "open", False),
    ]
    calls = [{"replicas": replicas, "breaker": breaker, "asleep": asleep} for replicas, breaker, asleep in given]
    calls += [{"replicas": {"RUNNING": some}, "breaker": "closed", "asleep": False, "dead": 1} for some in (1, 3)]
    calls += [{"replicas": {"STARTING": 1}, "breaker": "closed", "asleep": True}]
    assert call_all([("replicaWords", (deployment,)) for deployment in calls]) == [
        [["good", "1 replica runs"]],
        [["bad", "1 replica does not serve"]],
        [["bad", "2 replicas do not serve"], ["wait", "1 starting"]],
        [["bad", "0 replicas run"]],
        [["wait", "scaled to zero"]],
        [],
        [["bad", "1 replica does not serve"]],
        [["good", "2 replicas run"], ["bad", "1 replica does not serve"]],
        [["wait", "1 starting"]],
    ]


def test_requests_that_were_lost_with_a_router_are_a_problem_of_their_endpoint_for_a_while() -> None:
    """The next router, whose figures the page has, knows nothing of them."""
    lost = [
        {"at": at, "endpoint": name, "requests": many}
        for at, name, many in [(0.0, "chat", 9), (3600.0, "chat", 4), (3600.0, "embed", 1), (3700.0, "chat", 1)]
    ]
    chat, other, none = call_all(
        [
            ("lostRequests", ({"until": 4000.0, "lost_requests": lost}, {"endpoint": "chat"})),
            ("lostRequests", ({"until": 4000.0}, {"endpoint": "chat"})),
            ("lostRequests", (None, {"endpoint": "chat"})),
        ]
    )
    assert [(one["severity"], one["status"], one["text"].partition(" heard")[0]) for one in chat] == [
        ("bad", "failed", "4 requests were lost with the router that was"),
        ("bad", "failed", "1 request was lost with the router that was"),
    ]
    assert other == none == []


def test_a_list_offers_no_time_that_it_cannot_have_without_saying_so() -> None:
    hour = 3600.0
    held = {"since": 9 * hour, "older_kept": 0}
    some, older = call_all([("timesOf", (held, 16 * hour)), ("timesOf", ({**held, "older_kept": 3}, 9.1 * hour))])
    assert [words for _, words in some] == [
        "last 15 minutes",
        "last hour",
        "last 6 hours",
        "last 24 hours: all since 1 Jan 1970, 09:00:00",
    ]
    assert older[0] == [900, "last 15 minutes: failures before 1 Jan 1970, 09:00:00"]
    assert older[-1] == [30 * 24 * 3600, "last 30 days: failures before 1 Jan 1970, 09:00:00"]
    assert call("timesOf", {"since": None, "older_kept": 0}, 0) == [[900, "last 15 minutes"]]


def test_copies_that_failed_and_requests_that_were_left_out_are_counted_by_reason() -> None:
    primaries = [
        {"primary": "blue", "failed": {"timeout": 2}},
        {"primary": "red", "failed": {"timeout": 1, "other": 4}},
    ]
    report = {"copies": 1234, "since": 0, "primaries": primaries, "skipped": {"budget": 1, "queue_full": 3}}
    assert call("copyWords", report) == (
        "1,234 copies since 1 Jan 1970, 00:00:00; 7 failed: 4 other and 3 timeout; "
        "4 left out: 3 queue full and 1 the tokens of the minute are spent"
    )
    alone = {"copies": 1, "since": 0, "primaries": [{"primary": "blue", "failed": {}}], "skipped": {}}
    assert call("copyWords", alone) == "1 copy since 1 Jan 1970, 00:00:00"
