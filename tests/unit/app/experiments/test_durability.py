"""Pairs have the guarantees of exposures: counted once, stored in the directory, available after a restart."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from app.config.experiments import LedgerSettings
from app.config.schema import Config, parse
from app.experiments.controller import Controller
from app.experiments.shadows import ShadowReport
from app.exposures.wire import Acknowledgement, Skip, decode_acknowledgement, encode
from tests.support.experiments.exposures import batch, pair

START = 1000.0


def config(shadow: str | None = "green", **sections: Any) -> Config:
    endpoint: dict[str, Any] = {"tasks": ["chat"], "traffic": {"blue": 100, "green": 0}}
    if shadow is not None:
        endpoint["mirror"] = {"deployment": shadow, "percent": 5}
    deployments = {name: {"url": f"http://{name}", "model": "m"} for name in ("blue", "green", "red")}
    return parse({"endpoints": {"chat": endpoint}, "deployments": deployments, **sections})


class Desk:
    """A directory, a clock, and one controller after another."""

    def __init__(self, base: Path, url: str = "ledger") -> None:
        self.now, self._base, self._url = START, base, url
        self.start(config())

    def start(self, config: Config) -> None:
        self.controller = Controller(LedgerSettings(url=self._url), base=self._base, clock=lambda: self.now)
        self.controller.configure(config)
        self.controller.tick()

    def send(self, number: int, *pairs: Any) -> Acknowledgement:
        sent = batch(number, pairs=list(pairs), oldest=1)
        return decode_acknowledgement(self.controller.ingest(encode(sent)))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.controller.tick()

    @property
    def report(self) -> ShadowReport:
        report = self.controller.shadow("chat")
        assert report is not None
        return report


def test_pairs_count_once_are_durable_after_a_minute_and_survive_a_restart(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for _ in range(3):
        assert desk.send(1, pair(1), pair(2, skipped=Skip.BUDGET)).received == 1
    desk.pass_time(60)
    assert desk.send(2, pair(3)).durable == 1
    assert (desk.report.copies, desk.report.skipped, desk.report.since) == (2, {"budget": 1}, START)
    desk.start(config())
    assert (desk.report.copies, desk.report.skipped, desk.report.since) == (1, {"budget": 1}, START)
    desk.send(2, pair(3))
    assert desk.report.copies == 2
    desk.pass_time(60)
    kept = pq.read_table(tmp_path / "ledger" / "pairs")
    assert sorted(kept.column("seq").to_pylist()) == [1, 2, 3]
    assert set(kept.column("shadow").to_pylist()) == {"green"}
    assert set(kept.column("endpoint").to_pylist()) == {"chat"}


def test_segments_of_an_hour_are_merged_and_pairs_still_count_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for number in range(1, 4):
        desk.send(number, pair(number))
        desk.pass_time(60)
    desk.pass_time(7200)
    for _ in range(3):
        desk.pass_time(61)
    assert len(list((tmp_path / "ledger" / "pairs").rglob("*.parquet"))) == 1
    desk.start(config())
    assert desk.report.copies == 3


def test_a_new_experiment_does_not_count_pairs_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.send(1, pair(1))
    experiment = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    }
    desk.controller.configure(config(experiments={"trial": experiment}))
    assert desk.report.copies == 1


def test_another_shadow_starts_over_without_the_previous_evidence(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.send(1, pair(1))
    desk.now = START + 100
    desk.controller.configure(config("red"))
    assert (desk.report.shadow, desk.report.copies, desk.report.since) == ("red", 0, START + 100)
    desk.pass_time(60)
    desk.now = START + 200
    desk.controller.configure(config("green"))
    assert (desk.report.copies, desk.report.since) == (0, START + 200)
    desk.pass_time(1)
    desk.start(config("green"))
    assert (desk.report.copies, desk.report.since) == (0, START + 200)
    desk.controller.configure(config(None))
    assert desk.controller.shadow("chat") is None


def test_a_directory_that_fails_costs_no_pair(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    desk = Desk(tmp_path, "file/ledger")
    desk.send(1, pair(1))
    desk.pass_time(60)
    assert desk.report.copies == 1
    assert any("has failed" in warning for warning in desk.report.warnings)
    blocked.unlink()
    for _ in range(3):
        desk.pass_time(61)
    assert (desk.report.copies, desk.report.warnings, desk.report.since) == (1, [], START)
    desk.start(config())
    assert desk.report.copies == 1
