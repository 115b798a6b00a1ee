"""What all routers report, put together: each request and each count once, within bounds."""

import math
from collections.abc import Sequence
from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.activity.board import (
    MOST_ARMS,
    RANGES,
    SERIES,
    SETTLED_S,
    USE_DAYS,
    Board,
)
from app.activity.outages import MOST_SPANS
from app.activity.report import (
    PERIOD_S,
    ActivityReport,
    ArmCounts,
    CallerCounts,
    ListedRequest,
    PeriodCounts,
    decode,
    encode,
)
from app.activity.request_list import (
    MOST_FAILED_ALIKE,
    MOST_KINDS,
    MOST_REQUESTS,
    MOST_RUNNING,
    Wanted,
)
from app.activity.routers import SILENT_S
from app.errors import CLIENT_GONE, NO_ENGINE, SwitchyardError
from app.telemetry.logs import SUMMED, Record
from app.telemetry.metrics import Telemetry
from app.telemetry.recent import read

NOW = 1_800_000_000.0
BOUNDS = [0.1, 1.0, math.inf]


def request(number: int = 0, **fields: object) -> ListedRequest:
    values: dict[str, object] = {
        "id": f"r{number}",
        "at": NOW + number,
        "dialect": "openai",
        "operation": "chat",
        "status": 200,
        "duration_s": 1.0,
        "endpoint": "chat",
        "deployment": "blue",
        "caller": "ann",
        "caller_id": "key-1",
    }
    return msgspec.convert(values | fields, ListedRequest)


def report(
    requests: Sequence[ListedRequest] = (), *periods: PeriodCounts, router: str = "a", first: int = 0
) -> ActivityReport:
    return decode(encode(ActivityReport(router, first, list(requests), list(periods))))


def period(at: float, *arms: ArmCounts, callers: Sequence[CallerCounts] = (), **used: float) -> PeriodCounts:
    return PeriodCounts(at, BOUNDS, list(arms), list(callers), used)


def ids(board: Board, **wanted: object) -> list[str]:
    return [one["id"] for one in board.requests(msgspec.convert(wanted, Wanted), NOW)["requests"]]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 6)), max_size=30))
def test_a_request_is_listed_once_however_reports_overlap(sent: list[tuple[str, int, int]]) -> None:
    """A router sends what it has from any number on, again and again."""
    board, ends = Board(), {"a": 0, "b": 0}
    expected: set[str] = set()
    for router, first, more in sent:
        first = min(first, ends[router])
        end = max(ends[router], first + more)
        ends[router] = end
        requests = [request(number, id=f"{router}{number}") for number in range(first, end)]
        expected |= {one.id for one in requests}
        board.take(report(requests, router=router, first=first), NOW)
    listed = ids(board)
    assert sorted(listed) == sorted(expected)
    times = [one["at"] for one in board.requests(Wanted(), NOW)["requests"]]
    assert times == sorted(times, reverse=True)


@given(
    id=st.uuids().map(str) | st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True),
    prefix=st.sampled_from(["", "chatcmpl-", "cmpl-", "embd-", "resp_", "msg_"]),
    number=st.sampled_from(["", "-0a1b2c3d"]),
)
def test_a_request_is_found_by_its_id_and_by_the_one_in_its_answer(id: str, prefix: str, number: str) -> None:
    board = Board()
    board.take(report([request(1, id=id), request(2, id="another")]), NOW)
    assert id in ids(board, id=f"{prefix}{id}{number if prefix else ''}")
    assert ids(board, id=f"{prefix}{id}0") == []


BURSTS = st.tuples(st.sampled_from("ab"), st.integers(0, 400), st.integers(2, 50), st.booleans(), st.integers(0, 90))


@settings(max_examples=20)
@given(st.lists(BURSTS, max_size=12))
def test_the_list_has_every_request_since_its_moment_and_older_failures(
    bursts: list[tuple[str, int, int, bool, int]],
) -> None:
    """However long they take, in whatever order routers report them, and where one has had more than it keeps."""
    board, ended, clock = Board(), {"a": list[ListedRequest](), "b": list[ListedRequest]()}, NOW
    told = {"a": 0, "b": 0}
    for router, some, every, reports, duration in bursts:
        own = ended[router]
        for number in range(len(own), len(own) + some):
            clock += 0.01
            error = "broken" if number % every == 0 else ""
            one = request(id=f"{router}{number}", at=clock - duration, duration_s=float(duration), error=error)
            own.append(one)
        if reports:
            first = max(told[router], len(own) - 300)
            board.take(report(own[first:], router=router, first=first), NOW)
            told[router] = len(own)
    known = {one.id: one for router in "ab" for one in ended[router][: told[router]]}
    page = board.requests(Wanted(), NOW)
    if page["since"] is None:
        assert not known
        return
    last = {id for id, one in known.items() if one.ended_at >= page["since"]}
    listed = ids(board, limit=5000)
    older = [known[id] for id in set(listed) - last]
    assert page["kept"] == len(last & set(listed))
    assert page["older_kept"] == len(older)
    assert len(last) <= MOST_REQUESTS
    assert last <= set(listed), "none is missing"
    assert all(one.failed for one in older)


def test_older_failures_do_not_make_the_list_longer_than_it_says() -> None:
    """905 requests, of which the first ones failed: the list begins with the 406th."""
    board = Board()
    sent = [request(number, error="broken" if number < 5 else "") for number in range(905)]
    board.take(report(sent), NOW)
    page = board.requests(Wanted(limit=1), NOW)
    assert (page["kept"], page["older_kept"]) == (500, 5)
    assert NOW + 405 < page["since"] <= NOW + 406, "when the first of them ended, a second after it arrived"
    failed = board.requests(Wanted(status="not_answered"), NOW)
    assert (failed["matching"], failed["older_matching"], failed["kept"], failed["older_kept"]) == (0, 5, 500, 5)


@pytest.mark.parametrize(
    ("failures", "others", "listed", "is_whole"), [(30, 600, 30, True), (60, 0, 60, True), (60, 600, 40, False)]
)
def test_a_group_says_whether_it_has_all_of_its_kind(failures: int, others: int, listed: int, is_whole: bool) -> None:
    board = Board()
    sent = [request(number, error="broken" if number < failures else "") for number in range(failures + others)]
    board.take(report(sent), NOW)
    (group,) = board.requests(Wanted(), NOW)["groups"]
    assert (group["count"], group["is_whole"]) == (listed, is_whole)


def test_a_group_is_no_longer_whole_once_a_router_has_had_more_than_it_keeps() -> None:
    board = Board()
    board.take(report([request(0, error="broken")]), NOW)
    board.take(report([request(9)], first=9), NOW)
    assert [group["is_whole"] for group in board.requests(Wanted(), NOW)["groups"]] == [False]


def test_a_group_tells_when_its_last_request_failed_and_not_when_it_arrived() -> None:
    """The one that arrived first may have failed last."""
    board = Board()
    board.take(report([request(1, error="broken", duration_s=2.0), request(0, error="broken", duration_s=9.0)]), NOW)
    (group,) = board.requests(Wanted(), NOW)["groups"]
    assert (group["last_at"], group["id"]) == (NOW + 9, "r0")


def counted(board: Board, name: str, now: float) -> dict[str, int]:
    """The sums of a range."""
    history = board.history(name, now, None)
    ends = [*history["at"][1:], history["until"]]
    lengths = [end - at for at, end in zip(history["at"], ends, strict=True)]
    assert all(0 < length <= history["step_s"] for length in lengths)
    assert all(length == history["step_s"] for length in lengths[:-1])

    def sums(rates: str) -> int:
        per_second = [one[rates] for one in history["series"]]
        pairs = [pair for one in per_second for pair in zip(one, lengths, strict=True)]
        total: int = round(sum(rate * seconds for rate, seconds in pairs))
        return total

    parts = {part: sum(sum(one[part]) for one in history["series"]) for part in ("errors", "refused", "left", "lost")}
    return {"requests": sums("requests_per_s"), "output_tokens": sums("output_tokens_per_s"), **parts}


TRAFFIC = st.lists(
    st.tuples(
        st.sampled_from([0.0, 3.0, 10.0, 70.0, 590.0, 4000.0, 30_000.0, 90_000.0]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3),
        st.integers(1, 5),
        st.booleans(),
    ),
    max_size=12,
)


@given(st.integers(0, 3600), TRAFFIC)
def test_a_longer_range_has_all_that_a_shorter_one_has_up_to_the_same_moment(
    begin: int, traffic: list[tuple[float, str, int, int, bool]]
) -> None:
    """At any time, whoever reports how late, also in a process that has started again: the newest are in every one."""
    board, now, sent = Board(), NOW + begin, list[tuple[float, int]]()
    told = {"a": 0.0, "b": 0.0}
    for passed, router, late, some, is_restarted in traffic:
        now += passed
        if is_restarted:
            again = Board()
            again.load(board.dump(), now)
            board = again
        at = now - now % PERIOD_S - PERIOD_S * (1 + late)
        counts = ArmCounts("chat", router, 4 * some, some, some, some, left=some, lost=some)
        board.take(report((), period(at, counts), router=router), now)
        if at > told[router]:
            told[router] = at
            sent.append((at, some))
    (until,) = {board.history(name, now, None)["until"] for name in RANGES}
    assert now - PERIOD_S - SETTLED_S < until <= now - SETTLED_S
    ranges = [counted(board, name, now) for name in RANGES]
    for shorter, longer in pairwise(ranges):
        assert all(shorter[part] <= longer[part] for part in shorter)
    newest = sum(some for at, some in sent if until - 900.0 <= at < until)
    assert (ranges[0]["errors"], ranges[0]["requests"]) == (newest, 4 * newest)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=30))
def test_a_period_is_counted_once_and_in_every_resolution(sent: list[tuple[int, int]]) -> None:
    board, newest, expected = Board(), -1, 0
    for slot, requests in sent:
        board.take(report((), period(NOW - 600 + slot * PERIOD_S, ArmCounts("chat", "blue", requests))), NOW)
        if slot > newest:
            newest, expected = slot, expected + requests
    for name in RANGES:
        assert counted(board, name, NOW + PERIOD_S)["requests"] == expected, name


def test_routers_counts_add_up_and_have_common_quantiles() -> None:
    board = Board()
    at = NOW - NOW % 600 - 600
    for router, fast, slow in (("a", 8, 0), ("b", 0, 2)):
        counts = ArmCounts(
            "chat", "blue", 10, errors=1, left=3, lost=2, output_tokens=30, first_token={0: fast, 1: slow}
        )
        board.take(report((), period(at, counts), router=router), NOW)
    without_streams = PeriodCounts(at, [], [], [CallerCounts("key-1", 1)])
    board.take(report((), without_streams, router="c"), NOW)
    (series,) = board.history("24h", NOW + 700, None)["series"]
    assert (series["endpoint"], series["deployment"]) == ("chat", "blue")
    index = series["errors"].index(2)
    assert series["requests_per_s"][index] == pytest.approx(20 / 600, abs=1e-4)
    assert (series["left"][index], series["lost"][index]) == (6, 4)
    assert series["output_tokens_per_s"][index] == pytest.approx(0.1)
    assert series["first_token_p50_s"][index] == pytest.approx(0.1 * 5 / 8, abs=1e-4)
    assert series["first_token_p95_s"][index] == pytest.approx(0.1 + 0.9 * 0.75, abs=1e-4)
    assert board.history("24h", NOW, ["other"])["series"] == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "87543210"),
        ({"endpoint": "chat"}, "87543210"),
        ({"endpoint": "none"}, ""),
        ({"deployment": "green"}, "1"),
        ({"caller": "eve"}, "2"),
        ({"status": "not_answered"}, "8743"),
        ({"status": "errors"}, "43"),
        ({"status": "refused"}, "7"),
        ({"status": "left"}, "8"),
        ({"status": "answered"}, "5210"),
        ({"status": "5xx"}, "4"),
        ({"status": "503"}, "4"),
        ({"status": "429"}, "7"),
        ({"status": "418"}, ""),
        ({"error": "unavailable"}, "4"),
        ({"slower_than_s": 2.0}, "0"),
        ({"ended_since": NOW + 5.5}, "875"),
        ({"id": "r5"}, "5"),
        ({"limit": 2}, "87"),
        ({"caller_id": "key-2"}, "2"),
        ({"endpoints": ["chat"]}, "87543210"),
        ({"endpoints": ["other"]}, ""),
        ({"endpoints": ["other"], "caller_id": "key-1"}, ""),
        ({"caller_id": "key-1", "status": "not_answered", "endpoints": ["chat"]}, "8743"),
    ],
)
def test_requests_are_found_by_every_filter(wanted: dict[str, object], found: str) -> None:
    board = Board()
    board.take(
        report(
            [
                request(0, duration_s=3.0),
                request(1, deployment="green"),
                request(2, caller="eve", caller_id="key-2"),
                request(3, error="broken"),
                request(4, status=503, error="unavailable"),
                request(5),
                request(7, status=429, error="limit_exceeded"),
                request(8, error="client_gone"),
            ]
        ),
        NOW,
    )
    assert "".join(id.removeprefix("r") for id in ids(board, **wanted)) == found


def kinds(error: type[SwitchyardError]) -> set[str]:
    return {error.kind}.union(*map(kinds, error.__subclasses__()))


def test_the_filters_divide_requests_as_the_page_traffic_counts_them() -> None:
    """Each request of any error and status is in one part, also a stream that failed after a 200."""
    board, telemetry = Board(), Telemetry()
    every = ["", CLIENT_GONE, NO_ENGINE, *sorted(kinds(SwitchyardError) - SUMMED)]
    for number, (error, status) in enumerate(product(every, (200, 422, 502))):
        if not error and status != 200:
            continue
        record = Record("openai", "chat", f"r{number}", endpoint="chat", deployment="blue", status=status, error=error)
        telemetry.finish(record)
        board.take(report([request(number, error=error, status=status)], router=f"{number}"), NOW)
    counts = read(telemetry)["chat", "blue"]
    expected = {"answered": counts.answered, "errors": counts.errors, "refused": counts.refused, "left": counts.left}
    found = {part: board.requests(Wanted(status=part), NOW)["matching"] for part in expected}
    assert found == expected
    assert sum(found.values()) == board.requests(Wanted(), NOW)["kept"]


def test_a_reader_learns_of_no_name_that_it_may_not_see() -> None:
    board = Board()
    board.take(report([request(0), request(1, endpoint="secret", deployment="hidden", caller="eve", error="x")]), NOW)
    page = board.requests(Wanted(endpoints=["chat"]), NOW)
    assert not {"secret", "hidden", "eve", "x"} & set(str(page).replace("'", " ").split())
    assert "key-1" not in str(page), "the id by which limits are counted"


def test_a_request_that_reached_no_endpoint_is_seen_by_its_caller_and_by_those_who_see_all() -> None:
    board = Board()
    board.take(report([request(endpoint="")]), NOW)
    for wanted, count in (({}, 1), ({"endpoints": ["chat"]}, 0), ({"endpoints": ["chat"], "caller_id": "key-1"}, 1)):
        assert len(ids(board, **wanted)) == count


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 9), unique=True, max_size=4), st.integers(0, 9)),
        max_size=12,
    )
)
def test_what_runs_is_what_each_router_reported_last_for_as_long_as_it_is_heard(
    sent: list[tuple[str, list[int], int]],
) -> None:
    board, now = Board(), NOW
    last: dict[str, tuple[float, set[str]]] = {}
    for router, numbers, passed in sent:
        now += passed
        running = [request(number, id=f"{router}{number}", status=0, running=True) for number in numbers]
        board.take(decode(encode(ActivityReport(router, 0, [], [], running))), now)
        last[router] = (now, {one.id for one in running})
    page = board.requests(Wanted(), now)
    expected = {id for at, ids in last.values() if now - at < SILENT_S for id in ids}
    assert {one["id"] for one in page["requests"]} == expected
    assert page["running"] == page["matching"] == page["kept"] == len(expected)
    assert page["groups"] == [], "what runs has not failed"
    for status, count in (("running", len(expected)), ("answered", 0), ("not_answered", 0), ("2xx", 0)):
        assert board.requests(Wanted(status=status), now)["matching"] == count
    assert board.requests(Wanted(), now + SILENT_S)["requests"] == []


def test_running_requests_are_bounded() -> None:
    board = Board()
    for router in range(MOST_RUNNING // 50):
        running = [request(number, id=f"{router}-{number}", running=True) for number in range(100)]
        board.take(ActivityReport(f"r{router}", 0, [], [], running), NOW)
    assert board.requests(Wanted(), NOW)["running"] <= MOST_RUNNING


def test_a_flood_hides_neither_other_failures_nor_grows() -> None:
    board = Board()
    board.take(report([request(0, status=503, error="unavailable")]), NOW)
    flood = [request(number, status=400, error="bad_request") for number in range(1, 3000)]
    board.take(report(flood, first=1), NOW)
    page = board.requests(Wanted(), NOW)
    assert (page["kept"], page["older_kept"]) == (MOST_REQUESTS, 1)
    assert [(group["status"], group["error"]) for group in page["groups"]] == [
        (503, "unavailable"),
        (400, "bad_request"),
    ]
    many = [request(number, error=f"kind{number}", status=502) for number in range(3000, 5000)]
    board.take(report(many, first=3000), NOW)
    page = board.requests(Wanted(), NOW)
    assert page["kept"] + page["older_kept"] <= MOST_REQUESTS + MOST_KINDS * MOST_FAILED_ALIKE
    assert [group["is_whole"] for group in page["groups"][-2:]] == [False, False], "older ones may be forgotten"


def test_our_failures_come_before_refusals_and_those_before_clients_that_left_the_newest_kind_first() -> None:
    board = Board()
    ends = [(200, "client_gone")] * 4 + [(429, "limit_exceeded")] * 3 + [(200, "broken")] * 2 + [(500, "internal")]
    board.take(report([request(number, status=of, error=by) for number, (of, by) in enumerate(ends)]), NOW)
    groups = board.requests(Wanted(), NOW)["groups"]
    assert [(one["error"], one["count"]) for one in groups] == [
        ("internal", 1),
        ("broken", 2),
        ("limit_exceeded", 3),
        ("client_gone", 4),
    ]


def test_a_group_quotes_its_most_frequent_message_and_says_how_many_there_are() -> None:
    board = Board()
    said = [(429, "over 5"), (429, "over 5"), (400, "b"), (400, "b"), (400, "a"), (400, ""), (422, "c"), (422, "d")]
    board.take(report([request(number, status=of, message=text) for number, (of, text) in enumerate(said)]), NOW)
    groups = {one["status"]: one for one in board.requests(Wanted(), NOW)["groups"]}
    found = {status: (one["message"], one["messages"], one["is_most_frequent"]) for status, one in groups.items()}
    expected = {429: ("over 5", 1, True), 400: ("b", 2, True), 422: ("d", 2, False)}
    assert found == expected, "of the newest 400 no message is known"
    told = {status: [(one["message"], one["count"]) for one in group["said"]] for status, group in groups.items()}
    assert told == {429: [("over 5", 2)], 400: [("b", 2), ("a", 1)], 422: [("d", 1), ("c", 1)]}


def test_history_and_use_are_bounded_in_time_and_size() -> None:
    board = Board()
    for day in range(USE_DAYS + 9):
        at = NOW + day * 86400
        arms = [ArmCounts(f"e{day}-{number}", "d", 1) for number in range(30)]
        board.take(report((), period(at, *arms, callers=[CallerCounts("key-1", 1)])), at)
    last = NOW + (USE_DAYS + 8) * 86400
    assert len(board.uses(365, last)["key-1"]) == 365
    assert sum(day["requests"] for day in board.uses(365, last)["key-1"]) == USE_DAYS
    state = msgspec.msgpack.decode(board.dump())
    assert all(at >= last - SERIES[step] for step, points in state["series"].items() for at, _ in points)
    assert (
        len({(endpoint) for points in state["series"].values() for _, cells in points for endpoint, *_ in cells})
        <= MOST_ARMS + 1
    )


def test_a_router_whose_clock_is_ahead_leaves_no_counts_that_nothing_forgets() -> None:
    board = Board()
    board.take(report((), period(NOW + 86400, ArmCounts("chat", "blue", 5))), NOW)
    assert board.history("7d", NOW + 86400 + 3600, None)["series"] == []


def test_counts_come_back_from_what_was_dumped() -> None:
    board, at = Board(), NOW - 1200
    counts = ArmCounts("chat", "blue", 7, 1, 2, 50, {1: 7})
    board.take(
        report([request()], period(at, counts, callers=[CallerCounts("key-1", 7, 1, 10, 50)], **{"key-1": at})), NOW
    )
    again = Board()
    again.load(board.dump(), NOW)
    assert again.history("6h", NOW, None) == board.history("6h", NOW, None)
    assert again.uses(3, NOW) == board.uses(3, NOW)
    assert again.used == {"key-1": at}
    assert ids(again) == ["r0"]


@pytest.mark.parametrize("requests", [30, MOST_REQUESTS, MOST_REQUESTS + 300])
def test_the_list_comes_back_from_what_was_dumped(requests: int) -> None:
    board, again = Board(), Board()
    statuses = [200, 200, 429, 503]
    board.take(report([request(number, status=statuses[number // 60 % 4]) for number in range(requests)]), NOW)
    again.load(board.dump(), NOW)
    assert again.requests(Wanted(), NOW) == board.requests(Wanted(), NOW)
    for one in (board, again):
        one.take(report([request(requests, status=503)], first=requests - 20), NOW)
        one.take(report([request(requests + 1), request(requests + 2, status=502)], first=requests), NOW)
    assert again.requests(Wanted(), NOW) == board.requests(Wanted(), NOW)


def test_what_was_reported_before_the_list_came_back_follows_it() -> None:
    board, again = Board(), Board()
    board.take(report([request(1), request(2, status=503)]), NOW)
    again.take(report([request(3)], router="new"), NOW)
    again.load(board.dump(), NOW)
    assert sorted(ids(again)) == ["r1", "r2", "r3"]


def test_an_engines_words_are_in_no_file() -> None:
    board, again = Board(), Board()
    ours = request(1, status=502, message="The deployment failed", engine_message="a secret prompt")
    engines = request(2, status=400, message="a secret prompt is too long", is_engines=True)
    board.take(report([ours, engines]), NOW)
    assert b"secret" not in board.dump()
    again.load(board.dump(), NOW)
    messages = {one["id"]: one["message"] for one in again.requests(Wanted(), NOW)["requests"]}
    assert messages == {"r1": "The deployment failed", "r2": ""}


def test_counts_in_other_buckets_are_not_added_up() -> None:
    board, at = Board(), NOW - NOW % 600 - 600
    board.take(report((), period(at, ArmCounts("chat", "blue", 1, first_token={1: 1}))), NOW)
    other = PeriodCounts(at + PERIOD_S, [5.0, math.inf], [ArmCounts("chat", "blue", 1, first_token={0: 1})], [])
    board.take(report((), other), NOW)
    (series,) = board.history("24h", NOW + 700, None)["series"]
    assert [value for value in series["first_token_p50_s"] if value is not None] == [2.5]
    assert max(series["requests_per_s"]) == pytest.approx(2 / 600, abs=1e-4)


def test_a_percentile_is_never_above_the_longest_time_of_its_point() -> None:
    board, at = Board(), NOW - NOW % 60 - 120
    for second, longest in ((0, 42.0), (10, 41.0)):
        arm = ArmCounts("chat", "blue", requests=1, first_token={1: 1}, longest_first_token_s=longest)
        board.take(report((), PeriodCounts(at + second, [1.0, 80.0, math.inf], [arm], [])), NOW)
    again = Board()
    again.load(board.dump(), NOW)
    for one in (board, again):
        (series,) = one.history("1h", NOW, None)["series"]
        assert max(filter(None, series["first_token_p95_s"])) == 42.0
        assert max(filter(None, series["first_token_p50_s"])) <= 42.0


def test_the_longest_time_is_unknown_if_a_router_of_an_earlier_version_reports_too() -> None:
    board, at = Board(), NOW - NOW % 60 - 120
    for router, longest in (("a", 2.0), ("b", 0.0), ("c", 3.0)):
        arm = ArmCounts("chat", "blue", requests=1, first_token={1: 1}, longest_first_token_s=longest)
        board.take(report((), PeriodCounts(at, [1.0, 80.0, math.inf], [arm], []), router=router), NOW)
    (series,) = board.history("1h", NOW, None)["series"]
    assert max(filter(None, series["first_token_p95_s"])) > 3.0


WHOLE, NONE = (0.0, PERIOD_S), (0.0, 0.0)


def outage(at: float, down: tuple[float, float] | None, *, requests: int = 0) -> PeriodCounts:
    return period(at, ArmCounts("chat", "blue", requests, down=down))


def down(board: Board, name: str = "15m", now: float = NOW) -> list[float]:
    """The seconds without a replica, of the points that have some."""
    (series,) = board.history(name, now, None)["series"]
    return [seconds for seconds in series["down_s"] if seconds]


def test_an_outage_is_a_part_of_every_history_also_where_no_request_came() -> None:
    """It is told to the second, and its first and last points have their parts of it."""
    board, at = Board(), NOW - NOW % 3600 - 3600
    board.take(report((), outage(at, (3.0, PERIOD_S))), NOW)
    for number in range(1, 30):
        board.take(report((), outage(at + number * PERIOD_S, WHOLE)), NOW)
    going_on = board.history("15m", at + 300 + SETTLED_S, None)["series"][0]
    assert going_on["outages"] == [{"from": at + 3, "to": None}]
    board.take(report((), outage(at + 300, (0.0, 4.0))), NOW)
    board.take(report((), outage(at + 310, NONE, requests=1)), NOW)
    again = Board()
    again.load(board.dump(), NOW)
    for one in (board, again):
        assert down(one, "15m", at + 900) == [7.0, *[PERIOD_S] * 29, 4.0]
        assert down(one, "1h", at + 3000) == [57.0, *[60.0] * 4, 4.0]
        assert down(one, "24h") == down(one, "7d") == [301.0]
        for name in ("24h", "7d"):
            (series,) = one.history(name, NOW, None)["series"]
            assert series["outages"] == [{"from": at + 3, "to": at + 304}]


@given(st.permutations(["a", "b", "c"]))
def test_of_several_routers_the_first_to_notice_is_right(order: list[str]) -> None:
    """Of the beginning and of the end: the others have not heard of it yet. One that knows nothing changes nothing."""
    says: dict[str, list[tuple[float, float] | None]] = {
        "a": [(2.0, PERIOD_S), WHOLE, (0.0, 3.0), NONE],
        "b": [None, (1.0, 8.0), NONE, None],
        "c": [None, None, None, None],
    }
    board, at = Board(), NOW - NOW % 60 - 60
    for router in order:
        for number, part in enumerate(says[router]):
            board.take(report((), outage(at + number * PERIOD_S, part, requests=1), router=router), NOW)
    (series,) = board.history("15m", NOW, None)["series"]
    assert series["outages"] == [{"from": at + 2, "to": at + 18}]


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (None, [(5.0, None)]),  # an earlier version: it lasts to the end of what is known
        ([("a", 5.0, math.inf)], [(5.0, None)]),
        ([("a", 5.0, 23.5)], [(5.0, 23.5)]),
        ([("a", 5.0, 23.5), ("b", 6.0, 22.0)], [(5.0, 22.0)]),
        ([("a", 5.0, 23.5), ("a", 26.0, math.inf)], [(5.0, 23.5)]),  # that begins after the last point
        ([], [(5.0, 20.0)]),
    ],
)
def test_an_outage_ends_as_soon_as_a_router_says_so(
    said: list[tuple[str, float, float]] | None, known: list[tuple[float, float | None]]
) -> None:
    board = Board()
    board.take(report([], outage(NOW, (5.0, PERIOD_S), requests=1), outage(NOW + PERIOD_S, (0.0, PERIOD_S))), NOW + 20)
    for router in "ab":
        spans = None if said is None else [("chat", "blue", NOW + a, NOW + b) for by, a, b in said if by == router]
        one = decode(encode(ActivityReport(router, 0, [], [], outages=spans)))
        board.take(one, NOW + 26)
    (series,) = board.history("15m", NOW + 26, None)["series"]
    assert series["outages"] == [{"from": NOW + a, "to": b and NOW + b} for a, b in known]
    assert sum(series["down_s"]) == 15


def test_a_file_of_an_earlier_version_says_nothing_of_replicas() -> None:
    board, at = Board(), NOW - 1200
    board.take(report((), outage(at, None, requests=1)), NOW)
    state = msgspec.msgpack.decode(board.dump())
    del state["outages"]
    again = Board()
    again.load(msgspec.msgpack.encode(state), NOW)
    assert again.history("1h", NOW, None) == board.history("1h", NOW, None)
    assert down(again, "1h") == []


def test_outages_are_kept_for_a_week_and_the_last_ones_of_many() -> None:
    board, begin = Board(), NOW - NOW % PERIOD_S - 6 * 86400
    for number in range(MOST_SPANS + 9):
        at = begin + number * 2 * PERIOD_S
        board.take(report((), outage(at, WHOLE)), at + PERIOD_S)
    last = {"from": at, "to": at + PERIOD_S}
    (series,) = board.history("7d", NOW, None)["series"]
    assert (len(series["outages"]), series["outages"][-1]) == (MOST_SPANS, last)
    board.take(report((), outage(begin + 86400, NONE)), NOW + 2 * 86400)
    assert msgspec.msgpack.decode(board.dump())["outages"] == []


def test_no_outage_of_a_deployment_is_that_of_others_beyond_the_bound() -> None:
    board = Board()
    arms = [ArmCounts(f"e{number}", "d", down=WHOLE) for number in range(MOST_ARMS + 9)]
    board.take(report((), period(NOW - 60, *arms)), NOW)
    others, *known = board.history("1h", NOW, None)["series"]
    assert others["endpoint"] == ""
    assert sum(others["down_s"]) == 0
    assert [sum(one["down_s"]) for one in known] == [PERIOD_S] * MOST_ARMS
