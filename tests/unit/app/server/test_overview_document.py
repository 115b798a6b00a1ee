"""Each figure of the overview has one definition, parts sum to their whole, and failures come first."""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pytest
from hypothesis import given

from app.config.schema import parse
from app.control_plane import Replicas
from app.server.colours import deployment_colours
from app.server.overview_document import Present, endpoints_document
from app.telemetry.periods import DrawnRequests
from app.telemetry.recent import Counts, RecentCounts
from tests.support.overviews import WINDOW_S, World, worlds

PARTS = ("answered", "errors", "refused", "left")
BAD, WARN, GOOD = "bad", "warn", "good"


def shown(world: World) -> dict[str, dict[str, Any]]:
    return {
        one["endpoint"]: one
        for one in endpoints_document(world.config, world.window, world.present, [], deployment_colours(world.config))
    }


@given(worlds())
def test_parts_sum_to_their_whole(world: World) -> None:
    for name, endpoint in shown(world).items():
        counted = {arm: counts for (of, arm), counts in world.window.counts.items() if of == name}
        rows = [*endpoint["deployments"], endpoint["unassigned"]]
        for part in ("requests", *PARTS):
            assert endpoint[part] == sum(row[part] for row in rows), part
        for row in [*rows, endpoint]:
            assert row["requests"] == sum(row[part] for part in PARTS)
        assert endpoint["requests"] == sum(counts.requests for counts in counted.values())
        assert endpoint["requests_per_s"] == pytest.approx(endpoint["requests"] / WINDOW_S, abs=1e-3)
        assert endpoint["drawn"] == sum(row["drawn"] for row in endpoint["deployments"])
        shares = [row["share"] for row in endpoint["deployments"]]
        if endpoint["drawn"]:
            assert sum(shares) == pytest.approx(1, abs=1e-3)
        else:
            assert set(shares) <= {None}
        for row in endpoint["deployments"]:
            counts = counted.get(row["deployment"], Counts())
            assert row["requests"] == counts.requests
            assert row["drawn"] == counts.requests - counts.reasons["header"] - counts.reasons["model"]
            assert row["share"] is None or row["share"] == pytest.approx(row["drawn"] / endpoint["drawn"], abs=1e-4)


@given(worlds())
def test_failures_come_first_and_nothing_is_called_good_beside_them(world: World) -> None:
    for name, endpoint in shown(world).items():
        order = [finding["severity"] for finding in endpoint["findings"]]
        assert order, "there is always something to say"
        assert BAD not in order[order.count(BAD) :], "before everything else"
        all_answered = endpoint["requests"] == endpoint["answered"] > 0
        waits = [world.present.waiting.get((name, row["deployment"]), ()) for row in endpoint["deployments"]]
        is_late = any(seconds >= 30 for seconds in chain(*waits))
        assert (GOOD in order) == (all_answered and not is_late)
        assert ("waited" in texts(endpoint)) == is_late
        under_way = sum(row["in_flight"] for row in endpoint["deployments"])
        assert GOOD not in order or not under_way or f"{under_way:,} " in texts(endpoint)
        assert ("No request has ended" in texts(endpoint)) == (endpoint["requests"] == 0)
        assert (f"{endpoint['errors']:,} of " in texts(endpoint)) or not endpoint["errors"]
        assert (f"{endpoint['refused']:,} of " in texts(endpoint)) or not endpoint["refused"]
        for row in endpoint["deployments"]:
            running = (row["replicas"] or {}).get("RUNNING", 0)
            is_out = row["stopped"] or row["breaker"] == "open"
            is_out |= row["replicas"] is not None and not running and not row["asleep"]
            if is_out and row["role"] == "traffic" and row["weight"] > 0:
                assert order[0] == BAD
                says = (" is down: ", f"{row['deployment']} is out of service", "circuit breaker")
                assert any(words in texts(endpoint) for words in says)


def test_streams_that_wait_for_another_engine_are_told_of_and_nothing_is_called_good() -> None:
    counts = {"blue": answered(9)}
    one, *others = world(counts, paused={("chat", "blue"): [40.2]})["findings"]
    said = "1 stream is paused, and has waited 40 s for another engine: 1 of blue."
    assert one == {"severity": WARN, "text": said}
    assert GOOD not in [finding["severity"] for finding in others]
    two = world(counts, paused={("chat", "blue"): [3, 40.2]})["findings"][0]
    said = "2 streams are paused, and wait for another engine, the longest 40 s: 2 of blue."
    assert two["text"] == said


@given(worlds())
def test_a_share_that_is_far_from_its_percentage_has_a_reason_or_a_warning(world: World) -> None:
    for endpoint in shown(world).values():
        rows = [row for row in endpoint["deployments"] if row["role"] == "traffic" and row["share"] is not None]
        said = [one for one in endpoint["findings"] if "is configured" in one["text"]]
        worst = max((abs(row["share"] - row["weight"] / 100) for row in rows), default=0) if len(rows) > 1 else 0
        assert bool(said) == (worst > 0.005 and endpoint["drawn"] > 2) or abs(worst - 0.005) < 0.0001
        for deviation in said:
            has_reason = "configured: " in deviation["text"]
            if worst > 0.006 and said:
                assert has_reason or deviation["severity"] == WARN
            assert not (has_reason and deviation["severity"] == WARN)


def texts(endpoint: dict[str, Any]) -> str:
    return " ".join(finding["text"] for finding in endpoint["findings"])


def world(
    counts: dict[str, Counts] | None = None,
    *,
    sticky: dict[str, Any] | None = None,
    drawn: Mapping[tuple[str, str], DrawnRequests] | None = None,
    **present: Any,
) -> dict[str, Any]:
    """The endpoint `chat` with blue at 90 and green at 10 %, both applications of Serve."""
    config = parse(
        {
            "endpoints": {
                "chat": {
                    "tasks": ["chat"],
                    "traffic": {"blue": 90, "green": 10},
                    **({"sticky": sticky} if sticky else {}),
                }
            },
            "deployments": {name: {"app": name, "model": "m"} for name in ("blue", "green")},
        }
    )
    state = {"in_flight": {}, "queued": {}, "open_breakers": (), "stops": {}, "replicas": None, **present}
    window = RecentCounts(WINDOW_S, {("chat", arm): one for arm, one in (counts or {}).items()}, drawn or {})
    return shown(World(config, window, Present(**state)))["chat"]


def answered(requests: int, reason: str = "traffic") -> Counts:
    return Counts(requests, Counter({reason: requests}))


@pytest.mark.parametrize(
    ("applications", "text"),
    [
        ({}, "chat is down: no replica runs."),
        ({"blue": {"STARTING": 1}}, "chat is down: no replica runs (1 starting)."),
        ({"blue": {"RUNNING": 1}, "green": {"STOPPING": 1}}, "green is out of service: no replica runs (1 stopping)."),
    ],
)
def test_an_endpoint_without_replicas_is_down(applications: dict[str, dict[str, int]], text: str) -> None:
    assert world(replicas=Replicas(applications, {}))["findings"][0] == {"severity": BAD, "text": text}


def test_starts_that_fail_are_told_of() -> None:
    (first, *_) = world(replicas=Replicas({"blue": {}, "green": {}}, {}, failed={"blue": 3}))["findings"]
    assert first["text"] == "chat is down: no replica runs (3 failed to start)."


def test_a_replica_whose_engine_has_died_does_not_run_whoever_says_it() -> None:
    """The headline and the row of the deployment tell it at the same moment."""
    replicas = Replicas({"blue": {"RUNNING": 1}, "green": {"RUNNING": 2}}, {}, ids={"blue": ["b"], "green": ["1", "2"]})
    for dead, text in (
        ({"b", "1"}, "blue is out of service: no replica runs (1 dead)."),
        ({"b", "1", "2"}, "chat is down: no replica runs (3 dead)."),
    ):
        endpoint = world(replicas=replicas, dead=dead)
        assert endpoint["findings"][0] == {"severity": BAD, "text": text}
        assert [one["dead"] for one in endpoint["deployments"]] == [1, len(dead) - 1]


def test_replicas_of_which_nothing_is_heard_are_shown_with_their_age_and_are_not_in_service() -> None:
    down = world(replicas=Replicas({"blue": {"STARTING": 1}}, {}), silent_s=12.3)
    assert [finding["text"] for finding in down["findings"]][:2] == [
        "chat is down: no replica runs (1 starting).",
        "Ray Serve's controller has not answered for 12 s: replicas are shown as then.",
    ]
    unknown = world(silent_s=math.inf, called=["blue"])
    assert unknown["findings"][0]["text"] == (
        "Ray Serve's controller does not answer: which replicas run is not known."
    )
    assert [deployment["is_unknown"] for deployment in unknown["deployments"]] == [True, True]
    assert [deployment["is_unknown"] for deployment in world()["deployments"]] == [False, False]


def test_what_is_scaled_to_zero_is_not_down() -> None:
    findings = world(replicas=Replicas({}, {}, frozenset({"blue", "green"})))["findings"]
    assert findings[0]["text"] == "chat is scaled to zero: its next request starts a replica."


@pytest.mark.parametrize(
    ("states", "asleep", "waits", "text"),
    [
        ({}, True, [9.6], "is scaled to zero: 1 request has waited 10 s for a replica to start."),
        ({"STARTING": 1}, False, [], "starts from zero (1 starting)."),
        (
            {"STARTING": 1},
            False,
            [9.6, 2.0, 1.0],
            "starts from zero (1 starting): 3 requests wait for a replica to start, the longest 10 s so far.",
        ),
    ],
)
def test_a_start_from_zero_is_told_with_those_who_wait_for_it_and_is_no_fault(
    states: dict[str, int], asleep: bool, waits: list[float], text: str
) -> None:
    both = {"blue", "green"}
    given = Replicas({"blue": states, "green": {}}, {}, {"green", *({"blue"} if asleep else ())}, waking=both)
    endpoint = world(replicas=given, lacking={"blue": waits} if waits else {})
    assert endpoint["findings"][0] == {"severity": "wait", "text": f"chat {text}"}


def test_what_does_not_start_any_more_is_down_also_after_a_sleep() -> None:
    (first, *_) = world(replicas=Replicas({"blue": {}, "green": {}}, {}, waking={"blue", "green"}))["findings"]
    assert first == {"severity": BAD, "text": "chat is down: no replica runs."}


def test_each_cause_of_an_outage_is_named() -> None:
    document = world(stops={"chat": ["blue"]}, open_breakers=["green"])
    until = "is open until a request, or the router's check (/v1/completions), is served"
    breaker = f"its circuit breaker {until}"
    assert document["findings"][0]["text"] == f"chat is down: blue: it is stopped; green: {breaker}."
    # The last breaker ejects nothing: requests are tried.
    (first, *_) = world(open_breakers=["blue", "green"])["findings"]
    assert first["text"] == f"blue and green fail: the circuit breaker of every deployment of chat {until}."
    (first, *_) = world(open_breakers=["green"])["findings"]
    assert first["text"] == f"green gets no new requests: {breaker}."


def test_requests_that_wait_are_told_of_beside_those_that_have_ended() -> None:
    late = world({"blue": answered(9)}, waiting={("chat", "blue"): [2.0, 31.0, 102.6]}, in_flight={("chat", "blue"): 3})
    assert [finding["text"] for finding in late["findings"] if finding["severity"] in (WARN, GOOD)] == [
        "2 requests have waited for their answers to begin, the longest 103 s: 2 for blue."
    ]
    busy = world({"blue": answered(9), "green": answered(1)}, in_flight={("chat", "blue"): 3})
    assert [finding["text"] for finding in busy["findings"]] == [
        "All 10 requests that have ended were answered; 3 are under way."
    ]


def test_failures_and_refusals_are_told_apart_by_kind_and_place() -> None:
    document = world(
        {
            "blue": Counts(6, Counter(traffic=6), 1, Counter(unavailable=2), Counter(bad_request=1, content_filter=1)),
            "": Counts(3, Counter(), 0, Counter(at_capacity=1), Counter(limit_exceeded=2)),
        }
    )
    assert [finding["text"] for finding in document["findings"][:3]] == [
        "3 of 9 requests failed: blue: 2 no deployment available; none was asked: 1 at capacity.",
        "4 of 9 requests were refused: 2 over a limit, 1 not valid, 1 blocked by the content filter.",
        "1 client left before the end of the answer.",
    ]
    assert [finding.get("status") for finding in document["findings"][:3]] == ["failed", "refused", None]


@pytest.mark.parametrize(
    ("counts", "more", "end", "severity"),
    [
        ({"blue": answered(9), "green": answered(4)}, {}, "so few requests vary that much by chance.", "info"),
        ({"blue": answered(900), "green": answered(900)}, {}, "Chance does not explain that.", WARN),
        (
            {"blue": answered(200), "green": answered(200)},
            {"drawn": {("chat", "1-a"): DrawnRequests({"blue": 50, "green": 50}, 400)}},
            "all were drawn by the former split (blue 50 %, green 50 %): each is counted at its end.",
            "info",
        ),
        (
            # The few conversations are no reason: the former plan drew just these shares.
            {"blue": answered(30, "sticky"), "green": answered(31, "sticky")},
            {
                "sticky": {"by": "conversation"},
                "keys": {"chat": 7},
                "drawn": {
                    ("chat", "1-a"): DrawnRequests({"blue": 40, "green": 60}, 50),
                    ("chat", "2-b"): DrawnRequests({"blue": 90, "green": 10}, 11),
                },
            },
            "50 were drawn by the former split (blue 40 %, green 60 %): each is counted at its end.",
            "info",
        ),
        (
            {"blue": answered(200), "green": answered(800)},
            {"drawn": {("chat", "1-a"): DrawnRequests({"blue": 50, "green": 50}, 500)}},
            "and 30 % is expected: 500 were drawn by the former split (blue 50 %, green 50 %): each is counted at "
            "its end. Chance does not explain that.",
            WARN,
        ),
        (
            {"blue": answered(20, "sticky"), "green": answered(50, "sticky")},
            {
                "sticky": {"by": "user"},
                "keys": {"chat": 3},
                "drawn": {("chat", "1-a"): DrawnRequests({"blue": 10, "green": 90}, 35)},
            },
            "each is counted at its end; only 3 users were active, and each stays on one deployment.",
            "info",
        ),
        (
            {"blue": answered(20, "sticky"), "green": answered(51, "sticky")},
            {"sticky": {"by": "user"}, "keys": {"chat": 3}},
            "only 3 users were active, and each stays on one deployment.",
            "info",
        ),
        (
            {"green": answered(5, "failover")},
            {},
            "5 were diverted from a deployment that failed.",
            "info",
        ),
        (
            # As many were diverted from one as to it: that moves no share.
            {"blue": answered(300, "failover"), "green": answered(300, "failover")},
            {},
            "Chance does not explain that.",
            WARN,
        ),
        (
            {"blue": answered(22)},
            {"in_flight": {("chat", "green"): 4}},
            "4 more are under way, and count when they end.",
            "info",
        ),
        (
            {"green": answered(5)},
            {"stops": {"chat": ["blue"]}},
            "blue is stopped.",
            "info",
        ),
    ],
)
def test_the_reason_of_a_deviation(counts: dict[str, Counts], more: dict[str, Any], end: str, severity: str) -> None:
    (said,) = [one for one in world(counts, **more)["findings"] if "is configured" in one["text"]]
    assert said["text"].endswith(end)
    assert said["severity"] == severity


def test_one_or_two_requests_are_no_share() -> None:
    assert "is configured" not in texts(world({"green": answered(2)}))
    assert "is configured" in texts(world({"green": answered(3)}))


def test_requests_that_name_their_deployment_are_no_part_of_the_share() -> None:
    document = world({"blue": answered(90), "green": Counts(40, Counter(traffic=10, header=30))})
    rows = {row["deployment"]: row for row in document["deployments"]}
    assert (document["requests"], document["drawn"]) == (130, 100)
    assert (rows["green"]["requests"], rows["green"]["drawn"], rows["green"]["share"]) == (40, 10, 0.1)
