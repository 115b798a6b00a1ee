"""The controller takes every batch once, stores it, and restores everything when it restarts.

Pins go from one router to the others while they are valid, up to a bound.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict, replace

from app.config.access import AccessSettings
from app.config.endpoints import PlanSettings
from app.config.experiments import LedgerSettings
from app.config.schema import Config, Sticky, parse
from app.experiments.automation.state import author_of
from app.experiments.contract.journal import FACTS, LOAD
from app.experiments.contract.report import Occurrence
from app.experiments.controller import Controller, InvalidBatch, PinExchange
from app.experiments.storage import directory, segments
from app.experiments.storage.columns import RowColumns, Tables, router_hash
from app.experiments.storage.pending import GONE_S, LIVE_S
from app.experiments.storage.store import LocalStore, StoreError
from app.exposures.wire import (
    READABLE,
    Acknowledgement,
    Batch,
    FeedbackItem,
    Lost,
    Pins,
    Plan,
    Row,
    decode_acknowledgement,
    encode,
    encode_acknowledgement,
)
from tests.support.experiments.exposures import batch, late, row, start
from tests.support.experiments.fake_analysis import FakeAnalysis, same_run

START = 1000.0
A = router_hash("router-a")


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def configuration(**experiment: Any) -> Config:
    section = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    }
    return parse(
        {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
            "deployments": {
                name: {"url": "http://x", "model": name, "tasks": ["chat"], "price": None} for name in ("blue", "green")
            },
            "experiments": {"trial": section | experiment},
        }
    )


class Desk:
    """A directory, a clock, and one controller after another."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.clock = directory, Clock()
        self.analyses: list[FakeAnalysis] = []
        self.config = configuration()
        self.controller = self.start()

    def start(self, url: str = "ledger") -> Controller:
        """A new controller, as after the death of the previous one."""
        self.controller = Controller(
            LedgerSettings(url=url),
            base=self.directory,
            analysis_factory=self._analysis,
            same_run=same_run,
            clock=self.clock,
        )
        self.controller.configure(self.config)
        return self.controller

    def _analysis(self, *arguments: Any) -> FakeAnalysis:
        self.analyses.append(FakeAnalysis(*arguments))
        return self.analyses[-1]

    @property
    def analysis(self) -> FakeAnalysis:
        return self.analyses[-1]

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.directory / "ledger")

    def send(self, sent: Batch) -> Acknowledgement:
        """The acknowledgement, without the controller's id and the number of routers."""
        acknowledgement = decode_acknowledgement(self.controller.ingest(encode(sent)))
        assert acknowledgement.controller
        return replace(acknowledgement, controller="", routers=1)

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, and runs the controller's periodic work."""
        self.clock.now += seconds
        self.controller.tick()

    def analysis_report_warnings(self) -> list[str]:
        evidence = self.controller.analysis("trial")
        assert evidence is not None
        return evidence.report(self.clock()).service

    def rows_on_disk(self) -> RowColumns:
        committed = segments.committed(self.store)
        return RowColumns.concat([segments.read(self.store, segment, Tables())[1].rows for segment in committed])


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def full(number: int, **fields: Any) -> Batch:
    """A batch of one request."""
    return batch(number, starts=[start(number)], rows=[row(number)], oldest=1, **fields)


def test_rows_of_a_router_of_the_version_before_are_read(desk: Desk) -> None:
    rows = [tuple(row(1))[: Row._fields.index("moves")]]
    sent = {**asdict(batch(1, version=2, starts=[start(1)], oldest=1)), "rows": rows}
    assert decode_acknowledgement(desk.controller.ingest(msgspec.msgpack.encode(sent))).received == 1
    desk.pass_time(3600.0)
    desk.pass_time(1.0)
    stored = desk.rows_on_disk()
    assert (stored.seq.tolist(), stored.moves.tolist(), stored.pause_s.tolist()) == ([1], [0], [0.0])


@pytest.mark.parametrize("kind", ["verdict", "alarm"])
def test_a_latched_verdict_survives_a_controller_killed_before_its_next_segment(desk: Desk, kind: str) -> None:
    desk.send(full(1))
    desk.analysis.largest = 7.5
    desk.analysis.occurrences = [Occurrence(at=START + 1, kind=kind, text="ttft: green is better")]
    desk.pass_time(1.0)
    desk.pass_time(1.0)
    assert len(desk.rows_on_disk()) == 0, "there was no segment yet"
    desk.start()
    assert desk.analysis.restored == {"largest": 7.5}


def test_a_state_that_could_not_be_written_when_a_verdict_latched_is_written_later(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.send(full(1))
    desk.analysis.largest = 7.5
    desk.analysis.occurrences = [Occurrence(at=START + 1, kind="verdict", text="ttft: green is better")]
    with monkeypatch.context() as patch:
        patch.setattr(directory, "write_snapshot", refuse)
        desk.pass_time(1.0)
    desk.pass_time(30.0)
    desk.start()
    assert desk.analysis.restored == {"largest": 7.5}


def refuse(*_: object) -> None:
    raise StoreError("full")


def test_analyses_know_the_running_routers_and_replicas(desk: Desk) -> None:
    served = {"blue": {"app": "blue-app", "model": "blue"}, "green": {"app": "green-app", "model": "green"}}
    desk.config = parse({**configuration().model_dump(exclude_unset=True), "deployments": served})

    def load() -> Any:
        return desk.analysis.load

    desk.controller.configure(desk.config)
    desk.send(full(1))
    desk.send(full(1, router="router-b"))
    desk.pass_time(1.0)
    assert load() == (2, None)
    desk.controller.observe_replicas({"blue-app": 3, "router": 2})
    desk.pass_time(1.0)
    assert load() == (2, {"blue": 3, "green": 0})
    desk.pass_time(LIVE_S)
    assert load() == (0, {"blue": 3, "green": 0})


def test_a_router_is_gone_once_it_has_been_silent_for_long_and_back_when_it_speaks(desk: Desk) -> None:
    desk.send(full(1))
    desk.pass_time(GONE_S)
    assert desk.analysis.gone == []
    desk.pass_time(1.0)
    assert desk.analysis.gone == ["router-a"]
    assert [entry.detail["gone"] for entry in desk.controller.entries() if entry.kind == LOAD][-1] == ["router-a"]
    desk.send(full(2))
    desk.pass_time(1.0)
    assert desk.analysis.gone == []


def test_a_controller_that_starts_again_takes_no_router_for_gone_before_it_could_be_heard(desk: Desk) -> None:
    desk.send(full(1))
    desk.pass_time(60.0)
    desk.controller.close()
    desk.clock.now += 300.0
    desk.start()
    desk.pass_time(GONE_S)
    assert desk.analysis.gone == []
    desk.pass_time(1.0)
    assert desk.analysis.gone == ["router-a"]
    desk.pass_time(1000.0)
    assert desk.analysis.gone == [], "nothing waits for it any more"


def test_a_batch_is_received_at_once_and_durable_after_a_minute(desk: Desk) -> None:
    assert desk.send(full(1)) == Acknowledgement(received=1, durable=0)
    desk.pass_time(59)
    assert desk.send(full(2)) == Acknowledgement(received=2, durable=0)
    desk.pass_time(1)
    assert desk.send(full(3)) == Acknowledgement(received=3, durable=2)
    assert desk.analysis.rows == {(A, seq): 1 for seq in (1, 2, 3)}
    assert desk.rows_on_disk().seq.tolist() == [1, 2]


def test_a_repeated_batch_changes_nothing(desk: Desk) -> None:
    for _ in range(3):
        assert desk.send(full(1)).received == 1
    desk.pass_time(60)
    assert desk.send(full(1)) == Acknowledgement(received=1, durable=1)
    desk.pass_time(60)
    assert desk.analysis.rows == {(A, 1): 1}
    assert desk.rows_on_disk().seq.tolist() == [1]


def test_a_restarted_controller_recounts_everything_and_requests_missing_batches(desk: Desk) -> None:
    item = FeedbackItem(START, 10_001, 7, "thumbs", 1.0)
    desk.send(batch(1, starts=[start(1)], rows=[row(1)], late=[late(1)], feedback=[item]))
    desk.pass_time(60)
    desk.send(full(2))
    desk.start()
    assert (desk.analysis.rows, desk.analysis.starts, desk.analysis.late) == ({(A, 1): 1},) * 3
    assert desk.analysis.feedback == [item]
    assert desk.analysis.started_at == START
    assert desk.send(full(3)) == Acknowledgement(received=1, durable=1)
    assert desk.send(full(2)).received == 3
    assert desk.analysis.rows == {(A, seq): 1 for seq in (1, 2, 3)}


def test_an_empty_batch_gets_an_acknowledgement_and_is_not_kept(desk: Desk) -> None:
    desk.send(full(1))
    idle = batch(0, starts=[start(2)], rows=[row(2)], oldest=1)
    assert desk.send(idle) == Acknowledgement(received=1, durable=0)
    desk.pass_time(61)
    assert desk.send(idle) == Acknowledgement(received=1, durable=1)
    desk.pass_time(61)
    assert desk.rows_on_disk().seq.tolist() == [1]
    assert desk.send(batch(0, oldest=2)) == Acknowledgement(received=1, durable=1)
    assert desk.send(batch(0, router="router-b", oldest=4)) == Acknowledgement(received=3, durable=3)


def test_pins_go_from_one_router_to_the_others(desk: Desk) -> None:
    pinned = [Pins("chat", "blue", START + 60, [1, 2])]
    assert desk.send(batch(0, pins=pinned, oldest=1)).pins == []
    answer = desk.send(batch(0, router="router-b", oldest=1))
    assert (answer.pins, answer.pins_end) == (pinned, 2)
    assert desk.send(batch(0, router="router-b", oldest=1, pins_seen=2)).pins == []
    desk.pass_time(61)
    assert desk.send(batch(0, router="router-c", oldest=1)).pins == []


def test_routers_get_replaced_weights_while_conversations_follow_them(desk: Desk) -> None:
    def pinning(blue: int) -> Config:
        chat = desk.config.endpoints["chat"]
        moved = chat.model_copy(
            update={"traffic": {"blue": blue, "green": 100 - blue}, "sticky": Sticky(by="user"), "pin_s": 60.0}
        )
        return desk.config.model_copy(update={"endpoints": {"chat": moved}})

    def sent_weights() -> list[tuple[dict[str, int], float]]:
        replaced = desk.send(batch(0, router="router-c", oldest=1)).replaced
        return [(plan.weights, plan.until) for plan in replaced]

    desk.controller.configure(pinning(90))
    assert sent_weights() == [({"blue": 50, "green": 50}, START + 60)]
    desk.pass_time(40)
    desk.config = pinning(10)
    desk.controller.configure(desk.config)
    both = [({"blue": 50, "green": 50}, START + 100), ({"blue": 90, "green": 10}, START + 100)]
    assert sent_weights() == both
    desk.controller.close()
    desk.start()
    assert sent_weights() == both, "the journal knows it"
    desk.pass_time(60)
    assert sent_weights() == []


def test_the_controller_does_not_wait_for_a_dropped_batch(desk: Desk) -> None:
    desk.send(full(1))
    dropped = Lost("chat", "green", 5)
    assert desk.send(batch(4, rows=[row(4)], oldest=3, lost=[dropped])).received == 2
    assert desk.send(batch(3, rows=[row(3)], oldest=3, lost=[dropped])).received == 4
    desk.pass_time(1)
    assert desk.analysis.lost == {"green": 5}


def test_losses_before_a_run_are_not_its_own_and_survive_a_restart(desk: Desk) -> None:
    desk.send(batch(1, lost=[Lost("chat", "blue", 10), Lost("other", "blue", 1)]))
    desk.config = configuration(alpha=0.01)
    desk.pass_time(1)
    desk.controller.configure(desk.config)
    desk.send(batch(2, lost=[Lost("chat", "blue", 12)]))
    desk.pass_time(60)
    assert desk.analysis.lost == {"blue": 2}
    desk.start()
    assert desk.analysis.lost == {"blue": 2}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        encode_acknowledgement(Acknowledgement(received=1, durable=1)),
        encode(batch(1, version=min(READABLE) - 1)),
        encode(batch(1, oldest=2)),
        encode(batch(1, rows=[row(1, plan=3)])),
    ],
)
def test_an_invalid_batch_is_rejected_and_leaves_nothing(desk: Desk, data: bytes) -> None:
    with pytest.raises(InvalidBatch):
        desk.controller.ingest(data)
    assert desk.send(full(1)).received == 1
    assert desk.analysis.rows == {(A, 1): 1}


def test_a_plan_that_is_new_asks_for_the_configuration(desk: Desk) -> None:
    desk.send(full(1))
    desk.controller.configure(desk.config)
    assert not desk.controller.wants_configuration
    desk.send(batch(2, plans=[Plan("chat", "0-bbbbbbbb", {"blue": 100})], rows=[row(2)]))
    assert desk.controller.wants_configuration


def test_an_hour_of_segments_becomes_one_and_holds_the_same(desk: Desk) -> None:
    desk.clock.now = 3600.0 * 10
    for number in range(1, 6):
        desk.send(full(number))
        desk.pass_time(60)
    before = np.sort(desk.rows_on_disk().seq)
    assert len(segments.committed(desk.store)) == 5
    desk.pass_time(3600)
    assert len(segments.committed(desk.store)) == 1
    assert np.array_equal(np.sort(desk.rows_on_disk().seq), before)
    assert len(desk.store.list("starts")) == 1
    desk.start()
    assert desk.send(full(5)) == Acknowledgement(received=5, durable=5)


def test_data_older_than_the_retention_is_deleted(desk: Desk) -> None:
    desk.send(full(1))
    desk.pass_time(60)
    desk.pass_time(29 * 86400)
    assert len(segments.committed(desk.store)) == 1
    for _ in range(2):
        desk.pass_time(86400)
    assert segments.committed(desk.store) == []
    assert desk.store.list("starts") == []
    assert desk.store.list("journal") != []


def below_a_file(desk: Desk) -> Callable[[], None]:
    """The directory's parent is a regular file, so it cannot be created; the returned function repairs this."""
    file = desk.directory / "file"
    file.write_text("")
    desk.start("file/ledger")
    return file.unlink


def test_a_directory_that_cannot_be_created_loses_nothing(desk: Desk) -> None:
    repair = below_a_file(desk)
    for number in range(1, 4):
        assert desk.send(full(number, sent_at=desk.clock())) == Acknowledgement(received=number, durable=0)
        desk.pass_time(60)
    assert desk.analysis.rows == {(A, seq): 1 for seq in (1, 2, 3)}
    failing, incomplete = desk.analysis_report_warnings()
    assert "has failed for 180 s" in failing
    assert "could not be read yet" in incomplete
    repair()
    desk.pass_time(60)
    desk.pass_time(60)
    assert desk.send(full(4, sent_at=desk.clock())) == Acknowledgement(received=4, durable=3)
    assert desk.analysis_report_warnings() == []
    assert desk.analysis.rows == {(A, seq): 1 for seq in (1, 2, 3, 4)}
    assert desk.analysis.started_at == START


@pytest.mark.parametrize(("fails", "what"), [("tick", "judged"), ("standing", "acted on")])
def test_an_experiment_that_cannot_be_judged_stops_no_other_and_is_a_warning(
    desk: Desk, fails: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    section = {**desk.config.experiments["trial"].model_dump(exclude_unset=True), "endpoint": "talk"}
    both = desk.config.model_dump(exclude_unset=True) | {"experiments": {"trial": section | {"endpoint": "chat"}}}
    both["endpoints"]["talk"], both["experiments"]["other"] = both["endpoints"]["chat"], section
    desk.controller.configure(parse(both))
    bad, good = desk.analyses[-2:] if desk.analyses[-1].name == "other" else desk.analyses[-1:-3:-1]

    def fail(now: float) -> Any:
        raise OverflowError("math range error")

    setattr(bad, fails, fail)
    good.occurrences = [Occurrence(at=START, kind="alarm", text="slow", detail={})]
    acted: list[Any] = []
    good.intervene = acted.append  # type: ignore[method-assign, assignment]
    desk.pass_time(10)
    desk.pass_time(10)
    assert acted
    assert "slow" in [entry.detail.get("text") for entry in desk.controller.entries() if entry.experiment == "other"]
    evidence = desk.controller.analysis("other")
    assert evidence is not None
    assert evidence.report(desk.clock()).service == [f"trial cannot be {what}, and stays as it is: OverflowError"]
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "experiments_failed"]
    assert getattr(record, "experiment", "trial") == "trial"
    delattr(bad, fails)
    desk.pass_time(10)
    assert evidence.report(desk.clock()).service == []


def test_a_routers_clock_that_is_off_is_a_warning(desk: Desk) -> None:
    desk.send(full(1, sent_at=START + 5))
    (warning,) = desk.analysis_report_warnings()
    assert warning.startswith("The clock of router router-a is 5.0 s ahead")


def test_batches_that_arrive_late_are_no_sign_of_a_wrong_clock(desk: Desk) -> None:
    for number, took_s in enumerate((0.1, 9.0, 4.0), 1):
        desk.pass_time(10)
        desk.send(full(number, sent_at=desk.clock() - took_s))
        assert desk.analysis_report_warnings() == []


def test_a_clock_that_falls_behind_is_a_warning_after_a_minute_of_batches_and_one_that_is_set_right_is_none(
    desk: Desk,
) -> None:
    desk.send(full(1, sent_at=START))
    for number in range(2, 62):
        assert desk.analysis_report_warnings() == []
        desk.send(full(number, sent_at=desk.clock() - 5))
    (warning,) = desk.analysis_report_warnings()
    assert warning.startswith("The clock of router router-a is 5.0 s behind")
    desk.send(full(62, sent_at=desk.clock()))
    assert desk.analysis_report_warnings() == []


def test_an_exposure_is_found_by_its_request_or_answer_wherever_it_is(desk: Desk) -> None:
    desk.send(full(1))
    (waiting,) = desk.controller.exposures(10_001)
    desk.pass_time(60)
    (stored,) = desk.controller.exposures(20_001)
    assert waiting == stored
    assert (stored["assigned"], stored["finish"], stored["error"]) == ("blue", "stop", "none")
    assert stored["plan"] == {"endpoint": "chat", "id": "0-aaaaaaaa", "weights": {"blue": 50, "green": 50}}
    assert stored["max_tokens"] is None
    assert desk.controller.exposures(1) == []


def test_an_exposure_has_the_last_score_of_each_metric_by_its_caller_or_a_manager(desk: Desk) -> None:
    scores = [
        (10_001, 7, "thumbs", 0.0),
        (20_001, 0, "stars", 4.0),
        (10_001, 8, "stars", 1.0),
        (10_002, 7, "thumbs", 1.0),
    ]
    desk.send(full(1, feedback=[FeedbackItem(START + n, *score) for n, score in enumerate(scores)]))
    (waiting,) = desk.controller.exposures(10_001)
    assert waiting["feedback"] == {"thumbs": 0.0, "stars": 4.0}
    desk.pass_time(60)
    desk.send(full(2, feedback=[FeedbackItem(START + 9, 10_001, 7, "thumbs", 1.0)]))
    (stored,) = desk.controller.exposures(10_001)
    assert stored["feedback"] == {"thumbs": 1.0, "stars": 4.0}
    (other,) = desk.controller.exposures(10_002)
    assert other["feedback"] == {"thumbs": 1.0}


def test_an_exposure_is_found_without_scores_while_the_directory_fails(desk: Desk) -> None:
    desk.send(full(1, feedback=[FeedbackItem(START, 10_001, 7, "thumbs", 1.0)]))
    shutil.rmtree(desk.directory / "ledger", ignore_errors=True)
    (desk.directory / "ledger").write_text("")
    (waiting,) = desk.controller.exposures(10_001)
    assert waiting["feedback"] is None


def test_the_journal_records_events_and_a_restart_keeps_the_run(desk: Desk) -> None:
    desk.analysis.largest = 3.5
    desk.send(full(1))
    desk.pass_time(60)
    desk.config = configuration(state="stopped")
    desk.controller.configure(desk.config)
    desk.pass_time(10)
    desk.config = configuration(secondary=[{"metric": "duration", "minimal_effect": 0.1}])
    desk.controller.configure(desk.config)
    desk.pass_time(60)
    started = [opened.analysis.started_at for opened in [desk]]
    desk.start()
    assert desk.analysis.started_at == started[0] == START
    assert desk.analysis.restored == {"largest": 3.5}
    kinds = [entry.kind for entry in desk.controller.entries()]
    assert kinds.count("run_begun") == 1
    assert [kind for kind in kinds if kind not in ("configuration", "settings", "plan", "expired", *FACTS)] == [
        "controller_started",
        "run_begun",
        "run_state",
        "run_state",
        "run_changed",
        "controller_started",
        "journal_read",
    ]


def test_a_controller_that_dies_before_its_first_tick_keeps_the_beginning_of_its_run(desk: Desk) -> None:
    desk.clock.now += 0.5
    desk.start()
    assert desk.analysis.started_at == START


def test_another_primary_metric_is_another_run(desk: Desk) -> None:
    desk.send(full(1))
    desk.pass_time(30)
    desk.config = configuration(primary=[{"metric": "duration", "minimal_effect": 0.05}])
    desk.controller.configure(desk.config)
    assert desk.analysis.started_at == START + 30
    assert desk.analysis.rows == {}
    assert desk.analysis.restored is None


def test_requests_while_an_experiment_is_stopped_do_not_count(desk: Desk) -> None:
    desk.config = configuration(state="stopped")
    desk.pass_time(10)
    desk.controller.configure(desk.config)
    desk.send(batch(1, rows=[row(1, at=START + 9), row(2, at=START + 11)]))
    assert desk.analysis.rows == {(A, 1): 1}
    desk.config = configuration()
    desk.pass_time(10)
    desk.controller.configure(desk.config)
    desk.send(batch(2, rows=[row(3, at=START + 21)]))
    assert desk.analysis.rows == {(A, 1): 1, (A, 3): 1}


def test_closing_writes_pending_batches(desk: Desk) -> None:
    desk.send(full(1))
    desk.controller.close()
    desk.start()
    assert desk.analysis.rows == {(A, 1): 1}
    assert desk.send(full(2)) == Acknowledgement(received=2, durable=1)


def test_a_file_that_cannot_be_read_is_named_to_the_analysis(desk: Desk) -> None:
    desk.send(full(1))
    desk.pass_time(61)
    desk.send(full(2))
    desk.pass_time(61)
    first, _ = segments.committed(desk.store)
    desk.store.write(first.path("exposures"), b"PAR1")
    desk.start()
    assert sum(desk.analysis.rows.values()) == 1
    assert [damage.partition(": ")[0] for damage in desk.analysis.damaged] == [first.path("exposures")]


NOW, UNTIL = 1000.0, 2000.0


def pins(*conversations: int, deployment: str = "blue", endpoint: str = "chat", until: float = UNTIL) -> Pins:
    return Pins(endpoint, deployment, until, list(conversations))


def test_every_router_gets_the_others_pins_once_in_order() -> None:
    exchange = PinExchange()
    exchange.take("a", [pins(1, 2), pins(3, deployment="green")], NOW)
    exchange.take("b", [pins(4)], NOW)
    assert exchange.after(0, "b") == ([pins(1, 2), pins(3, deployment="green")], 4)
    assert exchange.after(0, "a") == ([pins(4)], 4)
    assert exchange.after(4, "a") == exchange.after(4, "b") == ([], 4)
    exchange.take("b", [pins(5)], NOW)
    assert exchange.after(4, "a") == ([pins(5)], 5)


def test_a_repeated_pin_is_passed_on_once_and_a_newer_one_counts() -> None:
    exchange = PinExchange()
    exchange.take("a", [pins(1)], NOW)
    exchange.take("a", [pins(1)], NOW)
    exchange.take("b", [pins(1)], NOW)
    assert exchange.after(0, "c") == ([pins(1)], 1)
    exchange.take("b", [pins(1, deployment="green")], NOW)
    assert exchange.after(1, "a") == exchange.after(0, "a") == ([pins(1, deployment="green")], 2)


def test_a_router_that_is_far_behind_reads_in_parts() -> None:
    exchange = PinExchange(most_at_once=2)
    exchange.take("a", [pins(1, 2, 3, 4, 5)], NOW)
    assert exchange.after(0, "b") == ([pins(1, 2)], 2)
    assert exchange.after(2, "b") == ([pins(3, 4)], 4)
    assert exchange.after(4, "b") == ([pins(5)], 5)
    assert exchange.after(0, "a") == ([], 2), "its own are skipped"


def test_beyond_the_bound_the_oldest_pins_are_dropped() -> None:
    exchange = PinExchange(most_kept=3)
    exchange.take("a", [pins(1, 2), pins(3, endpoint="other")], NOW)
    exchange.take("a", [pins(4)], NOW)
    assert exchange.after(0, "b") == ([pins(2, 4), pins(3, endpoint="other")], 4)


def test_an_endpoints_pins_end_together_at_the_latest_reported_time() -> None:
    exchange = PinExchange()
    exchange.take("a", [pins(1), pins(2, endpoint="other")], NOW)
    exchange.take("b", [pins(until=3000.0, deployment="")], NOW)
    exchange.take("b", [], UNTIL)
    assert len(exchange) == 1
    assert exchange.after(0, "c") == ([pins(1, until=3000.0)], 2)
    exchange.take("c", [pins(7, until=2500.0)], 2500.0)
    assert len(exchange) == 1, "pins that have already expired are not kept"
    exchange.take("c", [], 3000.0)
    assert (len(exchange), exchange.after(0, "c")) == (0, ([], 2))


def test_every_controller_has_another_id() -> None:
    assert PinExchange().id != PinExchange().id


def audited(desk: Desk) -> list[dict[str, Any]]:
    """The records of the audit log, the latest last."""
    records: list[dict[str, Any]] = msgspec.json.decode(desk.controller.audit.answer({}).body)["records"]
    return records[::-1]


def with_chat(config: Config, **fields: Any) -> Config:
    endpoint = config.endpoints["chat"].model_copy(update=fields)
    return config.model_copy(update={"endpoints": {**config.endpoints, "chat": endpoint}})


def test_a_deployed_file_is_in_the_audit_log_with_its_traffic_and_the_names_of_its_other_settings(desk: Desk) -> None:
    whole, first = sorted(audited(desk), key=lambda record: record["endpoint"])
    assert (whole["action"], whole["endpoint"], whole["after"]) == (
        "deploy",
        "",
        {"changed": ["deployments", "endpoints", "experiments"]},
    )
    assert (first["action"], first["endpoint"], first["caller"], first["before"]) == ("deploy", "chat", "", None)
    assert (first["after"]["weights"], first["at"]) == ({"blue": 50, "green": 50}, desk.clock.now)
    desk.clock.now += 1
    desk.config = with_chat(desk.config, traffic={"blue": 90, "green": 10}, max_body_bytes=2000)
    desk.controller.configure(desk.config)
    settings, traffic = sorted(audited(desk)[2:], key=lambda record: record["endpoint"])
    assert (settings["action"], settings["after"]) == ("deploy", {"changed": ["endpoints.chat.max_body_bytes"]})
    assert (traffic["action"], traffic["endpoint"], traffic["caller"], traffic["outcome"]) == (
        "deploy",
        "chat",
        "",
        "accepted",
    )
    assert [traffic[which]["weights"] for which in ("before", "after")] == [
        {"blue": 50, "green": 50},
        {"blue": 90, "green": 10},
    ]
    desk.start()
    assert len(audited(desk)) == 4, "a start changes nothing"


def test_what_comes_with_a_restart_is_in_the_audit_log_as_what_is_deployed_live(desk: Desk) -> None:
    """Rights, above all: nobody gives them by a restart without a record."""
    before = len(audited(desk))
    desk.clock.now += 1
    access = AccessSettings(keys_file=Path("keys.yaml"), managers=("ann",))
    desk.config = with_chat(desk.config, max_body_bytes=2000).model_copy(update={"access": access})
    desk.start()
    (record,) = audited(desk)[before:]
    assert (record["action"], record["after"]) == ("deploy", {"changed": ["access", "endpoints.chat.max_body_bytes"]})
    desk.clock.now += 1
    desk.config = desk.config.model_copy(update={"access": access.model_copy(update={"managers": ("ann", "mallory")})})
    desk.start()
    (record,) = audited(desk)[before + 1 :]
    assert record["after"] == {"changed": ["access.managers"]}
    assert "mallory" not in str([entry.detail for entry in desk.controller.entries()]), "values may be secrets"


def test_a_plan_that_was_there_before_the_controller_has_its_author(desk: Desk) -> None:
    desk.clock.now += 1
    plan = PlanSettings(generation=3, by="boss", reason="it is quiet", since=desk.clock.now - 900)
    endpoints = {"other": desk.config.endpoints["chat"].model_copy(update={"plan": plan})}
    desk.controller.configure(desk.config.model_copy(update={"endpoints": {**desk.config.endpoints, **endpoints}}))
    (first,) = [record for record in audited(desk) if record["endpoint"] == "other"]
    assert (first["action"], first["caller"], first["reason"], first["before"]) == (
        "deploy",
        "boss",
        "it is quiet",
        None,
    )


def test_the_traffic_that_an_experiment_moves_is_in_the_audit_log_and_a_callers_is_there_once(desk: Desk) -> None:
    for generation, by in ((1, "boss"), (2, author_of("trial"))):
        desk.clock.now += 1
        plan = PlanSettings(generation=generation, by=by, reason="it is quiet", since=desk.clock.now)
        desk.controller.configure(
            with_chat(desk.config, traffic={"blue": 100 - generation, "green": generation}, plan=plan)
        )
    *_, moved = audited(desk)  # the router has recorded the call of the other
    assert (moved["action"], moved["experiment"], moved["endpoint"]) == ("move_traffic", "trial", "chat")
    assert (moved["reason"], moved["after"]["weights"]) == ("it is quiet", {"blue": 98, "green": 2})


def test_a_change_waits_for_a_directory_that_fails(desk: Desk) -> None:
    shutil.rmtree(desk.directory / "ledger" / "audit")
    (desk.directory / "ledger" / "audit").write_text("no directory")
    desk.clock.now += 1
    desk.controller.configure(with_chat(desk.config, traffic={"blue": 90, "green": 10}))
    (desk.directory / "ledger" / "audit").unlink()
    desk.pass_time(1)
    assert [record["before"] is None for record in audited(desk)] == [True, True, False]
