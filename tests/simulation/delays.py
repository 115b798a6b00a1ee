"""How many requests a bad treatment gets before it is stopped: the real controller under the default ramp, and where
whole answers hang.

Simulated routers send it encoded batches and apply the stops in its acknowledgements; it moves the traffic of a control
plane in memory. Only the requests are random.
"""

import asyncio
import math
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.config.experiments import Experiment
from app.config.schema import Config, parse
from app.experiments.analysis.analysis import Analysis, Pace
from app.experiments.automation.actions import carry_out
from app.experiments.controller import Controller
from app.experiments.storage.columns import Tables
from app.exposures.exposure import Arrival, Exposure
from app.exposures.plans import RecordingScope, plan_of, plans_of, scopes
from app.exposures.wire import (
    Failure,
    FinishCode,
    Flag,
    OverdueRequest,
    Plan,
    Row,
    Start,
    decode_acknowledgement,
    encode,
)
from tests.simulation.pool import generator, spread
from tests.simulation.ramps import RATES, TOLERANCES
from tests.support.experiments.exposures import batch, late, row, start
from tests.support.experiments.failing_store import Disk
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.project import ROOT

ROUTERS = 3
PER_S = 100 / 3
"""Requests of the endpoint: 20,000 in the 600 seconds of a step, as the design has it."""

BEGIN = 1_800_000_000.0
LONGEST_S = 4 * 600.0


@dataclass(frozen=True)
class Ill:
    """A treatment whose rate of one event differs from control's. `design`: the median that the design measured."""

    name: str
    event: str
    rate: float
    design: float | None
    every_s: float = 1.0
    """The interval at which each router sends; longer where hundreds of requests are needed anyway."""


ILL = (
    Ill("fails always", "error", 1.0, 3),
    Ill("fails 10 % of the time", "error", 0.1, 46),
    Ill("fails 2.5 % of the time", "error", 0.025, None, 10.0),
    Ill("fails 2 % of the time", "error", 0.02, 1_027, 10.0),
    Ill("says nothing half of the time", "empty", 0.5, 6),
    Ill("truncates 1.6 times as many answers", "truncated", 1.6 * RATES["truncated"], 1_722, 10.0),
    Ill("is slow twice as often", "slow", 2 * RATES["slow"], 2_303, 10.0),
)


@dataclass(frozen=True)
class Hanging:
    """Whole answers of which some never come, under an even split and the default guardrails, without a ramp."""

    name: str
    treated: float
    """The share of the treatment's requests that hang, and of control's."""
    control: float = 0.0
    weight: int = 50
    """The treatment's, in percent."""
    longest_s: float = 100.0
    every_s: float = 1.0


HANGING = (
    Hanging("all, at 50 %", 1.0),
    Hanging("all, at 5 %", 1.0, weight=5),
    Hanging("one in ten, at 50 %", 0.1),
    Hanging("one in fifty of either arm, for 200 s", 0.02, 0.02, longest_s=200.0, every_s=5.0),
)


@dataclass(frozen=True)
class Delay:
    """`treated`: the treatment's requests until the last router has stopped it; infinite if no router did. `share`: its
    share of the traffic then. `seconds`: the time until then."""

    treated: float
    share: int
    seconds: float


def documented() -> dict[str, float]:
    """The medians in the table of docs/split/rollouts.md."""
    lines = (ROOT / "docs" / "split" / "rollouts.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    names = {ill.name for ill in ILL}
    return {row[0]: float(row[2].split()[0].replace(",", "")) for row in cells if row[0] in names}


def declared() -> dict[str, Any]:
    """The default ramp, four guardrails at 0.25 % each."""
    guardrails = [
        {"event": event, "tolerance": limit, "action": "rollback"} | ({"ttft_above_s": 10.0} if event == "slow" else {})
        for event, limit in TOLERANCES.items()
    ]
    chat = {"tasks": ["chat"], "traffic": {"blue": 99, "green": 1}}
    return {
        "endpoints": {"chat": chat},
        "deployments": {name: {"app": name, "model": name} for name in ("blue", "green")},
        "experiments": {
            "ramp": {
                "endpoint": "chat",
                "control": "blue",
                "treatments": ["green"],
                "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
                "guardrails": guardrails,
                "alpha_guardrails": 0.01,
                "ramp": {},
            }
        },
    }


class _Still(Pace):
    """Makes no looks at metrics: only guardrails decide here."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def allows(self) -> bool:
        return False


def _analysis(name: str, experiment: Experiment, config: Config, tables: Tables, started_at: float) -> Analysis:
    return Analysis(name, experiment, config, tables, started_at, pace=_Still())


class _Run:
    """Traffic until the treatment is stopped."""

    longest_s = LONGEST_S

    def __init__(self, config: dict[str, Any], every_s: float, rng: np.random.Generator) -> None:
        self.every_s, self.rng, self.now = every_s, rng, BEGIN
        self.control = MemoryControl(config, lambda config: None)
        self.control.delivers_at_once = True
        self.treated = self.sequence = 0
        self.numbers, self.stopped = [0] * ROUTERS, [False] * ROUTERS

    async def until_stopped(self, directory: Path) -> Delay:
        router, config, known = 0, parse(self.control.config), None
        controller = Controller(
            config.ledger,
            base=directory,
            analysis_factory=_analysis,
            clock=lambda: self.now,
            has_control_plane=True,
            open_store=lambda url, base: disk,
        )
        disk = Disk()
        while not all(self.stopped) and self.now < BEGIN + self.longest_s:
            if self.control.config is not known:
                known = self.control.config
                config = parse(known)
                controller.configure(config)
            self._send(controller, router, config)
            controller.tick()
            for change in controller.changes():
                if not any(self.stopped):  # the effect of the stops is measured, not of the plan after them
                    controller.changed(change, await carry_out(self.control, change, self.now))
            self.now += self.every_s / ROUTERS
            router = (router + 1) % ROUTERS
        share = config.endpoints["chat"].traffic["green"]
        return Delay(self.treated, share, self.now - BEGIN) if all(self.stopped) else Delay(math.inf, share, math.inf)

    def _send(self, controller: Controller, router: int, config: Config) -> None:
        """The requests of one router since its last batch."""
        endpoint = config.endpoints["chat"]
        plan = Plan("chat", plan_of("chat", endpoint).id, dict(endpoint.traffic))
        count = int(self.rng.poisson(PER_S * self.every_s / ROUTERS))
        share = 0.0 if self.stopped[router] else endpoint.traffic["green"] / 100
        green = self.rng.random(count) < share
        self.treated += int(green.sum())
        self.numbers[router] += 1
        sent = batch(
            self.numbers[router],
            f"router-{router}",
            plans=[plan],
            sent_at=self.now,
            oldest=1,
            **self._records(router, green, config),
        )
        heard = decode_acknowledgement(controller.ingest(encode(sent)))
        self.stopped[router] |= bool(heard.stops)

    def _records(self, router: int, green: NDArray[np.bool_], config: Config) -> dict[str, list[Any]]:
        """A batch's records, of new requests on these arms."""
        raise NotImplementedError


class _Ramp(_Run):
    """Of a treatment that is ill."""

    def __init__(self, ill: Ill, rng: np.random.Generator) -> None:
        super().__init__(declared(), ill.every_s, rng)
        self.ill = ill

    def _records(self, router: int, green: NDArray[np.bool_], config: Config) -> dict[str, list[Any]]:
        events = {
            event: self.rng.random(len(green)) < np.where(green & (event == self.ill.event), self.ill.rate, rate)
            for event, rate in RATES.items()
        }
        requests = [
            self._request(int(green[place]), frozenset(event for event, of in events.items() if of[place]))
            for place in range(len(green))
        ]
        return {"starts": [start for start, _ in requests], "rows": [row for _, row in requests]}

    def _request(self, arm: int, happened: frozenset[str]) -> tuple[Start, Row]:
        """One request, whose user has no other request."""
        self.sequence += 1
        number = self.sequence
        common = {"at": self.now, "unit": number, "assigned": arm}
        fields: dict[str, Any] = {"served": arm, "flags": Flag.EMPTY if "empty" in happened else 0}
        fields["finish"] = FinishCode.LENGTH if "truncated" in happened else FinishCode.STOP
        fields["ttft_s"] = 12.0 if "slow" in happened else 0.25
        if "error" in happened:
            fields = {"served": -1, "status": 502, "error": Failure.UNREACHABLE, "finish": 0, "ttft_s": None}
        return start(number, **common), row(number, **common, **fields)


class _Hanging(_Run):
    """Whole answers, some of which never come. Routers tell by the clock, as `ExposureLog.record_overdue` does."""

    def __init__(self, world: Hanging, rng: np.random.Generator) -> None:
        super().__init__(undivided(world.weight), world.every_s, rng)
        self.world, self.longest_s = world, world.longest_s
        self._running: list[list[tuple[float, Exposure]]] = [[] for _ in range(ROUTERS)]
        """Each router's requests that hang, and the times of their arrival."""

    def _records(self, router: int, green: NDArray[np.bool_], config: Config) -> dict[str, list[Any]]:
        scope = scopes(config, plans_of(config), {})["chat"]
        hangs = self.rng.random(len(green)) < np.where(green, self.world.treated, self.world.control)
        starts: list[Start] = []
        rows: list[Row] = []
        for arm, is_hanging in zip(green.astype(int).tolist(), hangs.tolist(), strict=True):
            self.sequence += 1
            common = {"at": self.now, "unit": self.sequence, "assigned": arm}
            starts.append(start(self.sequence, **common))
            if is_hanging:
                self._running[router].append((self.now, _whole(scope, arm, self.sequence)))
            else:
                rows.append(row(self.sequence, **common, served=arm, stream=False, ttft_s=None, itl_mean_s=None))
        return {"starts": starts, "rows": rows, "late": list(self._late(router))}

    def _late(self, router: int) -> Iterator[OverdueRequest]:
        for at, exposure in self._running[router]:
            for kind, above_s in exposure.late(self.now - at):
                arm, seq = int(exposure.arrival.assigned == "green"), exposure.seq
                yield late(seq, kind=kind, above_s=above_s, at=at, unit=seq, assigned=arm)


def undivided(weight: int) -> dict[str, Any]:
    """An experiment on whole answers with everything by default, and no ramp."""
    config = declared()
    config["endpoints"]["chat"]["traffic"] = {"blue": 100 - weight, "green": weight}
    experiment = config["experiments"]["ramp"]
    experiment["primary"] = [{"metric": "duration", "minimal_effect": 0.05}]
    for name in ("guardrails", "alpha_guardrails", "ramp"):
        del experiment[name]
    return config


def _whole(scope: RecordingScope, arm: int, seq: int) -> Exposure:
    """A request for a whole answer."""
    arrival = Arrival(
        request_id=str(seq),
        key=None,
        caller="",
        assigned=("blue", "green")[arm],
        reason="traffic",
        dialect="openai",
        task="chat",
        stream=False,
        prompt_bytes=100,
        body={},
        started=0.0,
    )
    return Exposure(scope, arrival, seq, 0, scope.first_due[False])


def delay(world: Ill | Hanging, seed: int) -> Delay:
    """Of one run."""
    rng = generator(f"delays {world.name}", seed)
    run = _Hanging(world, rng) if isinstance(world, Hanging) else _Ramp(world, rng)
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run.until_stopped(Path(directory)))


def _part(world: Ill | Hanging, seeds: range) -> list[Delay]:
    return [delay(world, seed) for seed in seeds]


@dataclass(frozen=True)
class Delays:
    """A summary of several runs: the share that was stopped, the median and 90th percentile of the treatment's
    requests, and the medians of its share of the traffic then, and of the time in seconds."""

    stopped: float
    median: float
    ninth_tenth: float
    share: float
    seconds: float


def delays(executor: Executor, world: Ill | Hanging, count: int) -> Delays:
    """Of `count` runs."""
    results = [result for part in spread(executor, partial(_part, world), count) for result in part]
    treated = [result.treated for result in results]
    return Delays(
        stopped=float(np.isfinite(treated).mean()),
        median=float(np.median(treated)),
        ninth_tenth=float(np.quantile(treated, 0.9, method="higher")),
        share=float(np.median([result.share for result in results])),
        seconds=float(np.median([result.seconds for result in results])),
    )
