"""What units did before a run adjusts its results only where no plan had drawn an arm for them before."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from app.config.schema import Config
from app.experiments.api import ControllerReader
from app.experiments.contract.report import Comparison
from app.experiments.offline import RecordedLedger
from app.exposures.wire import encode
from tests.support.experiments.recorded_ledger import Clock, batches, controller_of, unpaced
from tests.support.experiments.world import BLUE, DAY_S, GREEN, START, World, config

NAME = "green-float32"
AA: dict[str, Any] = {"mode": "aa", "treatments": ["label"]}


def compared_after(earlier: Config, directory: Path, run: Config) -> tuple[Comparison, Comparison]:
    """What the report of a run says, and one from its ledger alone. `earlier` was in force eleven days before, for a
    day; then blue had all of the traffic."""
    traffic = run.endpoints["chat"].traffic
    world, clock = World(seed=3, weights=(traffic[BLUE], traffic[GREEN])), Clock(START - 11 * DAY_S)
    controller = controller_of(directory, earlier, clock)
    clock.now = START - 10 * DAY_S
    controller.configure(config((100, 0), state="draft"))
    before = list(batches(world.tables, world.before(2000)))
    for batch in before:
        controller.ingest(encode(batch))
    clock.now = START
    controller.configure(run)
    for batch in batches(world.tables, world.requests(3000)):
        controller.ingest(encode(replace(batch, number=batch.number + len(before))))
    clock.now = START + 2 * DAY_S
    controller.tick()
    shown = primary(controller)
    controller.close()
    return shown, primary(RecordedLedger("ledger", directory, unpaced, clock=clock))


def primary(reader: ControllerReader) -> Comparison:
    evidence = reader.analysis(NAME)
    assert evidence is not None
    (compared,) = evidence.report(reader.now()).primary
    return compared


def test_after_an_earlier_split_the_time_under_one_deployment_is_no_history(tmp_path: Path) -> None:
    """Its arms, which the units get again, may have left something behind."""
    run = config(primary=[{"metric": "ttft", "minimal_effect": 0.04}])
    for compared in compared_after(config(), tmp_path, run):
        assert compared.variance_ratio is None


@pytest.mark.parametrize(
    ("earlier", "run"),
    [
        (config((100, 0), state="draft"), config()),
        (config((100, 0), **AA), config()),
        (config(), config((100, 0), **AA)),
    ],
    ids=["no earlier split", "an earlier A/A run", "labels of an A/A run"],
)
def test_time_under_one_deployment_is_a_history_where_no_arm_was_met(
    tmp_path: Path, earlier: Config, run: Config
) -> None:
    for compared in compared_after(earlier, tmp_path, run):
        assert compared.variance_ratio is not None
        assert compared.variance_ratio < 0.9
