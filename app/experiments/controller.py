"""The controller of experiments: accepts batches from routers, stores them, and has them judged.

Single-threaded and synchronous; `host.py` gives it a thread. It is the same object in a separate Serve application and
inside `switchyard router`. A batch is *received* once it is counted and held, *durable* once it is in the ledger's
directory; routers keep it until then. On a disk of its own, `write_ahead` does, too: what was counted when a report was
shown counts from then on, whatever happens. So a controller that dies loses nothing, and one that starts again reads
the directory, counts everything again, and takes from the journal and the saved states only what cannot be counted:
when runs began, verdicts that stay, alarms.

The conversations that routers have pinned, passed on from one router to the others.
"""

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from app.config.experiments import Experiment, LedgerSettings
from app.config.schema import Config
from app.experiments.activity import ActivityKeeper
from app.experiments.analysis.analysis import SUBGROUPS, Analysis, same_run
from app.experiments.analysis.monitoring import RETURNS
from app.experiments.audit import AuditTrail
from app.experiments.automation.actions import Actions, Journal, TrafficChange
from app.experiments.contract.journal import (
    HASHED,
    LOAD,
    LOOKS,
    LOST,
    OBSTACLES,
    SETTINGS,
    STARTED,
    JournalEntry,
    new_plans,
    replaced,
)
from app.experiments.contract.query import ManualDecision
from app.experiments.contract.report import AutomationStatus, Foreseen, Report
from app.experiments.export import export
from app.experiments.issued_keys import IssuedKeyStore
from app.experiments.judging import AnalysisFactory, Evidence, Judges
from app.experiments.recordings import RecordingKeeper
from app.experiments.runs import ExperimentRun, SameRun, looks_of, next_run, rehashed, runs_of
from app.experiments.shadows import ShadowReport
from app.experiments.storage.columns import Tables, from_batch
from app.experiments.storage.directory import Outcome, exposures_of, scored
from app.experiments.storage.journal import AnalysisSnapshot
from app.experiments.storage.keeper import OpenStore, StorageHealth, StorageManager, Submit, at_once
from app.experiments.storage.pending import HeldBatch, clock_warnings, gone, live, total_lost
from app.experiments.storage.store import StoreError, open_store
from app.experiments.storage.write_ahead import WriteAhead
from app.experiments.unasked_changes import digests_of, of_plans, of_settings
from app.exposures.audit import AuditRecord
from app.exposures.controller_client import Export
from app.exposures.plans import plan_of
from app.exposures.wire import READABLE, Pins, Replaced, decode_batch, encode_acknowledgement
from app.telemetry.logs import event, where

_log = logging.getLogger("switchyard")

# In memory only: a controller that restarts has another `id`, and routers then send theirs again. Every pin has a
# position; a router reads on from the position that it has reached.

MOST_KEPT = 200_000
MOST_AT_ONCE = 32_768
"""Pins that one acknowledgement looks at: some 300 kB."""


class _RecordedPin(NamedTuple):
    position: int
    router: str
    deployment: str


class PinExchange:
    """All endpoints' pins, of which the oldest go when there are more than `most_kept`. Times are Unix seconds."""

    def __init__(self, *, most_kept: int = MOST_KEPT, most_at_once: int = MOST_AT_ONCE) -> None:
        self.id = os.urandom(8).hex()
        self.end = 0
        """The position of the newest pin."""
        self._most_kept, self._most_at_once = most_kept, most_at_once
        self._pins: OrderedDict[tuple[str, int], _RecordedPin] = OrderedDict()
        """The pins by endpoint and conversation, in the order of their positions."""
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def take(self, router: str, pins: Sequence[Pins], now: float) -> None:
        """Keeps what a router has pinned. A repeated pin changes nothing, a conversation's newest pin counts.

        All of an endpoint's pins last until the latest `until`, which routers may also send without conversations.
        """
        self._forget(now)  # first: a new time must not revive the pins of one that is over
        for pin in pins:
            if pin.until <= now:
                continue
            self._until[pin.endpoint] = max(self._until.get(pin.endpoint, 0.0), pin.until)
            for conversation in pin.conversations:
                key = (pin.endpoint, conversation)
                if (known := self._pins.get(key)) is not None and known.deployment == pin.deployment:
                    continue
                self.end += 1
                self._pins[key] = _RecordedPin(self.end, router, pin.deployment)
                self._pins.move_to_end(key)
        while len(self._pins) > self._most_kept:
            self._pins.popitem(last=False)

    def windows(self, now: float) -> dict[str, float]:
        """The end of each endpoint's pins."""
        return {endpoint: until for endpoint, until in self._until.items() if until > now}

    def after(self, position: int, router: str) -> tuple[list[Pins], int]:
        """The other routers' pins above `position`, and the position that the router has then reached."""
        new = list(takewhile(lambda pair: pair[1].position > position, reversed(self._pins.items())))[::-1]
        batch = new[: self._most_at_once]
        conversations_of: dict[tuple[str, str], list[int]] = {}
        for (endpoint, conversation), pin in batch:
            if pin.router != router:
                conversations_of.setdefault((endpoint, pin.deployment), []).append(conversation)
        pins = [
            Pins(endpoint, deployment, self._until[endpoint], conversations)
            for (endpoint, deployment), conversations in conversations_of.items()
        ]
        return pins, batch[-1][1].position if len(batch) < len(new) else self.end

    def _forget(self, now: float) -> None:
        """Drops the pins of endpoints whose time is over."""
        if over := {endpoint for endpoint, until in self._until.items() if until <= now}:
            self._pins = OrderedDict((key, pin) for key, pin in self._pins.items() if key[0] not in over)
            self._until = {endpoint: until for endpoint, until in self._until.items() if endpoint not in over}


ACT_S = 5.0
"""The interval at which every experiment decides on its next action, apart from alarms and new configurations."""

REPLAY_RETRY_S = 10.0
"""The delay before a directory that could not be read to the end is read again."""


class InvalidBatch(ValueError):
    """A router sent something other than a batch of this version."""


class Controller:
    """The controller of experiments, as described above. Times are Unix seconds."""

    def __init__(
        self,
        ledger: LedgerSettings,
        *,
        base: Path,
        analysis_factory: AnalysisFactory = Analysis,
        same_run: SameRun = same_run,
        clock: Callable[[], float] = time.time,
        has_control_plane: bool = False,
        submit: Submit = at_once,
        open_store: OpenStore = open_store,
        write_ahead: WriteAhead | None = None,
    ) -> None:
        """`base`: the directory that a relative `ledger.url` is relative to. `submit`: carries out writes.
        `has_control_plane`: the host makes the requested `changes` of traffic. `write_ahead`: holds each batch until it
        is stored.
        """
        self.tables = Tables()
        self.wants_configuration = True
        """A batch named a plan that was not known: the configuration may have changed."""
        self._same_run, self.now = same_run, clock
        self._started_at = clock()
        self.write_ahead = write_ahead
        self.storage = StorageManager(
            ledger, base, self.tables, clock(), submit=submit, open_store=open_store, write_ahead=write_ahead
        )
        self._open_store = partial(open_store, ledger.url, base)
        self.recordings = RecordingKeeper(self._open_store)
        """Keeps recorded requests; usable in any thread."""
        self.audit = AuditTrail(self._open_store, lambda: self.storage.settings.audit_days, clock)
        """Keeps the records of management calls; usable in any thread."""
        self.activity = ActivityKeeper(self._open_store, clock)
        """Keeps what routers report of their requests; usable in one thread, whichever."""
        self.issued_keys = IssuedKeyStore(self._open_store, clock)
        """Keeps the keys that managers issue; usable in the same thread."""
        self._journal = Journal(self.storage.journal, lambda: self.storage.durable, self._is_failing)
        self._actions = Actions(self._journal, has_control_plane=has_control_plane)
        self._act_at = 0.0
        self._config: Config | None = None
        self._runs: dict[str, ExperimentRun] = {}
        self._judges = Judges(self.tables, self.storage, analysis_factory)
        self._lost: dict[tuple[str, str], int] = {}
        self._replicas: Mapping[str, int] | None = None
        self._knows_runs = False
        """Whether runs have been read from the journal; until then, new ones take their place."""
        self._retry_at = 0.0
        self._facts: dict[str, dict[str, Any]] = {}
        """Facts that no record has, as the journal has them, by the kind of their entry."""
        self._secrets: set[str] = set()
        """What the journal has of secrets with which units are hashed."""
        self._looks: dict[tuple[str, float], Mapping[str, float | None]] = {}
        """What the journal has of each run's `LOOKS`."""
        self._pins = PinExchange()
        self._replaced: list[Replaced] = []
        self._failing: dict[tuple[str, str], str] = {}
        """Experiments that a bug keeps from being judged or acted on, each with what cannot be done, and the error."""
        self._unaudited: list[AuditRecord] = []
        """Changes that no call has made, which the audit log has not taken yet."""
        process = {"copies" if write_ahead.is_copy else "write_ahead": write_ahead.name} if write_ahead else {}
        self.storage.journal([JournalEntry(clock(), STARTED, None, process)])

    def configure(self, config: Config, *, rollout_complete: bool = True, transitions: int | None = None) -> None:
        """Takes the configuration in force, and whether every router has it. The same one again changes nothing.
        `transitions`: the value of `transitions` before the configuration was read; None: it was read just now.
        """
        self.wants_configuration, self._act_at = False, 0.0
        self._actions.rollout_complete = rollout_complete
        self._actions.seen_transitions = self._actions.transitions if transitions is None else transitions
        if config == self._config:
            self._note(OBSTACLES, self._actions.obstacles())
            return
        self._config = config
        self.storage.settings = config.ledger
        self._recover()
        self._note(OBSTACLES, self._actions.obstacles())
        self._write(self.now())  # a run whose beginning is not on disk begins later if the controller dies

    def ingest(self, data: bytes) -> bytes:
        """Takes an encoded batch, at most once; returns the encoded acknowledgement. Raises InvalidBatch.

        A batch with the number 0 records nothing: its router only asks for stops and pins.
        """
        try:
            batch = decode_batch(data)
        except msgspec.DecodeError as error:
            raise InvalidBatch(str(error)) from error
        if batch.version not in READABLE:
            versions = " and ".join(map(str, sorted(READABLE)))
            raise InvalidBatch(f"version {batch.version}, this controller reads {versions}")
        self._note_secret(batch.hashed)
        if 0 < batch.number < batch.oldest:
            raise InvalidBatch(f"the oldest batch that is kept, {batch.oldest}, is younger than this, {batch.number}")
        now = self.now()
        router = self.storage.waiting.router(batch.router)
        if batch.number and batch.number not in router.held:
            plans = len(self.tables.plans)
            try:
                exposures = from_batch(batch, self.tables, now)
            except ValueError as error:
                raise InvalidBatch(str(error)) from error
            self.wants_configuration |= len(self.tables.plans) > plans
            if batch.number not in router.counted:
                router.counted.add(batch.number)
                self._judges.count(exposures)
            self.storage.waiting.hold(HeldBatch(batch.router, batch.number, exposures, now))
            if self.write_ahead is not None:
                self.write_ahead.add(data, now)
            if self._judges.are_alarmed():
                self._judge(now)
        router.update(batch, now)
        if self._actions.waits_for_directory:
            self._write(now)
        self._pins.take(batch.router, batch.pins, now)
        pins, end = self._pins.after(batch.pins_seen, batch.router)
        had, stops = self.storage.waiting.acknowledge(batch.router), self._actions.stops(self._runs, now)
        former = [replaced for replaced in self._replaced if replaced.until > now]
        return encode_acknowledgement(
            replace(
                had,
                controller=self._pins.id,
                stops=stops,
                pins=pins,
                pins_end=end,
                windows=self._pins.windows(now),
                routers=live(self.storage.waiting.routers, now),
                replaced=former,
            )
        )

    def tick(self) -> None:
        """Writes, retries failed reads, and looks at the evidence. Call it about every second."""
        now = self.now()
        if not self._judges.has_counted_all and self.storage.open(now) and now >= self._retry_at:
            self._recover()
        self._write(now)
        self._tell_losses()
        self._judges.set_gaps()
        routers, replicas = live(self.storage.waiting.routers, now), self._replicas_of_deployments()
        silent = gone(self.storage.waiting.routers, now, heard_since=self._started_at)
        self._judges.observe_load(routers, replicas, silent)
        self._note(LOAD, {"routers": routers, "replicas": replicas, "gone": silent}, now)  # looks of this turn know it
        self._judge(now)
        self.wants_configuration |= self._actions.waits_for_delivery

    def observe_replicas(self, replicas: Mapping[str, int] | None) -> None:
        """Running replicas by application, now; None if the control plane does not answer."""
        self._replicas = replicas

    def _replicas_of_deployments(self) -> dict[str, int] | None:
        if self._replicas is None or self._config is None:
            return None
        deployments = self._config.deployments.items()
        return {
            name: self._replicas.get(deployment.app, 0)
            for name, deployment in deployments
            if deployment.app is not None
        }

    @property
    def transitions(self) -> int:
        """The number of times that acting has changed something. In any thread."""
        return self._actions.transitions

    def flush(self) -> "Future[Outcome] | None":
        """Begins to write what the journal has to get. Returns the writing that is under way; None if nothing waits for
        the directory, or that fails."""
        self._write(self.now())
        return self.storage.writing

    def changes(self) -> list[TrafficChange]:
        """The changes of traffic that are wanted now."""
        if self._config is None:
            return []
        return self._actions.changes(self._config, self._runs, self.storage.entries, self.now())

    def changed(self, change: TrafficChange, refusal: str | None) -> None:
        """Records that a change was made, or the reason why not; then it is tried again later."""
        self._actions.tried(change, refusal, self.now())
        self._note(OBSTACLES, self._actions.obstacles())

    def close(self) -> None:
        """Writes everything that waits."""
        self.storage.close(self.now(), self._snapshots)

    def experiments(self) -> Mapping[str, Experiment]:
        """Every declared experiment."""
        return self._config.experiments if self._config is not None else {}

    def analysis(self, name: str) -> Evidence | None:
        """The evidence of an experiment that has a run."""
        judged = self._judges.by_experiment.get(name)
        if judged is None:
            return None
        return Evidence(judged.analysis, lambda now: self._amended(judged.report(now)))

    def acting(self, report: Report) -> AutomationStatus | None:
        """The state of acting on the experiment of a report."""
        run, config = self._runs[report.experiment], self._config
        return self._actions.acting(run, config, report, self.now()) if config is not None else None

    def shown(self, report: Report) -> None:
        """Notes what a report that somebody reads has said first, and on what it rests if that is less than all records
        of its time.
        """
        name, run = report.experiment, self._runs[report.experiment]
        if not self._knows_runs:
            return
        if (last := self._looks.get((name, run.started_at))) is None:
            last = looks_of(self.storage.entries, run, report.at)
        judged = self._judges.by_experiment[name]
        self.storage.journal(judged.new_landmarks(self.now()))
        reported_at, latest = judged.reported
        if reported_at != report.at:  # by an analysis that has been built again since
            return
        compared = {comparison.key: comparison.outdated for comparison in (*report.primary, *report.secondary)}
        if (subgroups := report.subgroups) is not None:
            compared[SUBGROUPS] = subgroups.outdated
        looks = {key: latest[key] for key, outdated in compared.items() if outdated or key in last}
        if (compared_at := report.sample_ratio.returns_compared_at) is not None:
            looks[RETURNS] = compared_at
        self._looks[name, run.started_at] = looks
        if looks != last:
            detail = {"at": report.at, "started_at": run.started_at, "looks": looks}
            self.storage.journal([JournalEntry(self.now(), LOOKS, name, detail)])

    def decide(self, report: Report, request: ManualDecision) -> None:
        """Takes a person's decision on the experiment of a report.

        Raises Conflict if it is not applicable now, PreconditionFailed if it was made for another state.
        """
        assert self._config is not None
        now, run = self.now(), self._runs[report.experiment]
        self._actions.decide(run, self._config, report, request, now)
        self._act(now)
        self._write(now)

    def shadow(self, endpoint: str) -> ShadowReport | None:
        """The report on an endpoint's shadow; None if it has no mirror."""
        return self._judges.shadows.report(endpoint, self.now(), self.warnings())

    def mirrored(self) -> Sequence[str]:
        """The endpoints with a mirror."""
        return self._judges.shadows.endpoints()

    def foresee(self, report: Report, request: ManualDecision) -> Foreseen:
        """The consequences of a decision. Raises what `decide` raises."""
        assert self._config is not None
        return self._actions.foresee(self._runs[report.experiment], self._config, report, request, self.now())

    def exposures(self, request: int) -> Sequence[Mapping[str, Any]]:
        """The exposures of a request id's hash, or of an answer id's, as plain data; the latest last.

        In any thread: it changes nothing, and reads only batches that do not change any more. Raises StoreError.
        """
        rows = self.storage.find(request)
        return scored(exposures_of(*rows), self.storage.scores(rows[0])) if rows is not None else []

    def export(self, query: Mapping[str, str]) -> Export:
        """The export of the directory by `app.experiments.export`. In any thread. Raises BadRequest and StoreError."""
        return export(self._open_store(), query)

    def entries(self) -> Sequence[JournalEntry]:
        """The journal."""
        return self.storage.entries

    def missing(self) -> Sequence[str]:
        """Parts of the ledger that are missing, each with the reason."""
        return self.storage.gaps.since(0.0)

    def health(self) -> StorageHealth:
        """The state of the ledger's directory."""
        return self.storage.health()

    def warnings(self) -> list[str]:
        """What troubles this service, for every report."""
        now = self.now()
        warnings = clock_warnings(self.storage.waiting.routers, now)
        warnings += [said for said in (self.health().warning(now), self.storage.company(now)) if said]
        if self._config is not None and not self._judges.has_counted_all:
            warnings.append("What was recorded before the controller's start could not be read yet")
        warnings += [
            f"{name} cannot be {what}, and stays as it is: {why}" for (name, what), why in self._failing.items()
        ]
        return warnings

    def _amended(self, report: Report) -> Report:
        """The report with the next step, the arms' present traffic, since analyses know that of the latest requests,
        and what troubles this service.
        """
        assert self._config is not None
        run, now = self._runs[report.experiment], self.now()
        declared = self._config.experiments[run.name].state
        next_ = self._actions.next_sentence(run, self._config, report, now, declared)
        endpoint = self._config.endpoints.get(report.endpoint)
        plan = plan_of(report.endpoint, endpoint).id if endpoint is not None else None
        weights = self._actions.weights(run, endpoint.traffic if endpoint is not None else {})
        warnings = [*report.warnings, *(rehashed(self.storage.entries, run) if len(self._secrets) > 1 else [])]
        return replace(report, next=next_, plan=plan, weights=weights, warnings=warnings, service=self.warnings())

    def _is_failing(self) -> bool:
        return self.health().failing_since is not None

    def _write(self, now: float) -> None:
        for exposures in self.storage.step(now, self._snapshots):
            self._judges.count(exposures)
        if self.write_ahead is not None:
            self.write_ahead.say(now, self.storage.unwritten_since, self.storage.durable)
        self._audit_changes()
        if news := self.storage.news():
            self._actions.learn(news, self._runs)
            self._act_at = 0.0

    def _audit_changes(self) -> None:
        """Keeps the records that wait, if the directory can be written."""
        if self._unaudited and not self._is_failing():
            with suppress(StoreError):
                self.audit.keep(self._unaudited)
                self._unaudited = []

    def _judge(self, now: float) -> None:
        """Looks at the evidence, and acts on it."""
        is_new = now >= self._act_at
        self._failing = {key: why for key, why in self._failing.items() if key[0] in self._judges.by_experiment}
        for name, judged in self._judges.by_experiment.items():
            with self._apart(name, "judged"):
                occurrences = judged.analysis.tick(now)
                self.storage.journal(
                    [
                        JournalEntry(
                            occurrence.at, occurrence.kind, name, {"text": occurrence.text, **occurrence.detail}
                        )
                        for occurrence in occurrences
                    ]
                )
                self.storage.journal(judged.new_landmarks(now))
                is_new |= bool(occurrences)
        if is_new:
            self._act(now)
        self._note(OBSTACLES, self._actions.obstacles())

    @contextmanager
    def _apart(self, name: str, what: str) -> Iterator[None]:
        """Keeps a failure of one experiment from the others. `what` cannot be done with it, in words."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  a bug that one experiment meets must not stop the others' guardrails
            if (name, what) not in self._failing:
                failed = event("experiments_failed", experiment=name, traceback=where(error))
                _log.error("An experiment cannot be %s", what, extra=failed)
            self._failing[name, what] = type(error).__name__
        else:
            self._failing.pop((name, what), None)

    def _note(self, kind: str, facts: dict[str, Any], at: float | None = None) -> None:
        """Puts facts into the journal if they are new, so that a report of this time can be made again. `at`: since
        when they hold, in Unix seconds, by default now.
        """
        if self._knows_runs and self._facts.get(kind) != facts:
            self._facts[kind] = facts
            self.storage.journal([JournalEntry(self.now() if at is None else at, kind, None, facts)])

    def _note_secret(self, id: str) -> None:
        """Puts the secret with which units are hashed into the journal, which has to know every one."""
        if not id or not self._knows_runs or id in self._secrets:
            return
        self._secrets.add(id)
        self.storage.journal([JournalEntry(self.now(), HASHED, None, {"secret": id})])

    def _act(self, now: float) -> None:
        """Acts on every experiment's evidence, and passes the interventions to its analysis."""
        assert self._config is not None
        self._act_at, has_acted = now + ACT_S, False
        for name, judged in self._judges.by_experiment.items():
            if judged.run.stopped_at is None and (name, "judged") not in self._failing:
                with self._apart(name, "acted on"):
                    has_acted |= self._actions.act(judged.run, self._config, judged.analysis.standing(now), now)
                    judged.analysis.intervene(self._actions.interventions(judged.run))
        if has_acted:
            self._write(now)

    def _recover(self) -> None:
        """Brings runs and analyses up to the configuration and, as far as it can be read, to the directory."""
        now = self.now()
        standing_in: Mapping[str, ExperimentRun] = {}
        if not self._knows_runs and self.storage.open(now):
            standing_in, self._runs = self._runs, runs_of(self.storage.entries)
            self._knows_runs = True
            self._secrets = {entry.detail["secret"] for entry in self.storage.entries if entry.kind == HASHED}
            self._actions.restore(self.storage.entries)
        if self._config is not None:
            self._adopt(self._config, standing_in, now)
            self._judges.rebuild(self._config, self._runs, self._actions.interventions, self._lost, now)
            self._retry_at = self.now() + REPLAY_RETRY_S

    def _adopt(self, config: Config, standing_in: Mapping[str, ExperimentRun], now: float) -> None:
        """Starts, resumes and stops runs according to the configuration."""
        self._lost = total_lost(self.storage.waiting.routers)
        entries: list[JournalEntry] = []
        for name in {**config.experiments, **self._runs}:
            at = standing_in[name].started_at if name in standing_in else now
            lost = self._lost_of(name, config)
            run, new_entries = next_run(name, config, self._runs.get(name), now=at, lost=lost, same_run=self._same_run)
            entries += new_entries
            if run is not None:
                self._runs[name] = run
        mirrors = self._judges.shadows.adopt(config, self.storage.entries if self._knows_runs else None, now)
        if self._knows_runs:
            plans = new_plans(self.storage.entries, config, now)
            self._unaudited += of_plans(self.storage.entries, plans, now)
            settings = self._settings(config, now)
            self.storage.journal([*self._configuration(config, now), *settings, *plans, *entries, *mirrors])
            self._replaced = replaced(self.storage.entries, config)

    def _snapshots(self) -> list[AnalysisSnapshot]:
        return self._judges.snapshots(self.now())

    def _tell_losses(self) -> None:
        lost = total_lost(self.storage.waiting.routers)
        if lost != self._lost:
            self._lost = lost
            self._judges.set_lost(lost)
        if lost:
            self._note(LOST, {"rows": [[*key, rows] for key, rows in sorted(lost.items())]})

    def _lost_of(self, name: str, config: Config) -> dict[str, int]:
        """Rows that routers have lost of the experiment's endpoint, by deployment."""
        experiment = config.experiments.get(name)
        return {
            deployment: rows
            for (endpoint, deployment), rows in self._lost.items()
            if experiment is not None and endpoint == experiment.endpoint
        }

    def _configuration(self, config: Config, now: float) -> list[JournalEntry]:
        """Settings that judging needs besides the experiments' sections, for the journal; empty if it has them."""
        detail = {
            "traffic": {name: dict(endpoint.traffic) for name, endpoint in config.endpoints.items()},
            "experiments": {name: experiment.state for name, experiment in config.experiments.items()},
            "prices": {
                name: deployment.price.model_dump()
                for name, deployment in config.deployments.items()
                if deployment.price is not None
            },
            "total_s": config.timeouts.total_s,
        }
        return [] if self._last("configuration") == detail else [JournalEntry(now, "configuration", None, detail)]

    def _settings(self, config: Config, now: float) -> list[JournalEntry]:
        """Digests of the settings, for the journal; empty if it has them. Otherwise their change is to be audited."""
        before, after = self._last(SETTINGS), digests_of(config)
        if before == after:
            return []
        self._unaudited += of_settings(before or {}, after, now)
        return [JournalEntry(now, SETTINGS, None, after)]

    def _last(self, kind: str) -> dict[str, Any] | None:
        """The detail of the journal's last entry of this kind."""
        return next((entry.detail for entry in reversed(self.storage.entries) if entry.kind == kind), None)
