"""The controller's answers to questions about experiments and plans: pure dispatch from a path below ``/api`` to bytes.

The router has checked permissions before (`app.server.experiments_api`). Errors are JSON objects with `message`
and `param`; the router words them in OpenAI's form.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from app.config.experiments import Experiment
from app.errors import BadRequest, ClientError, Conflict, MethodNotAllowed, NotFound, PreconditionFailed, taken
from app.experiments.activity import ActivityKeeper
from app.experiments.analysis.feedback import Match
from app.experiments.audit import AuditTrail, decode_records
from app.experiments.contract.journal import JournalEntry, history
from app.experiments.contract.query import (
    MAX_RUNS,
    ManualDecision,
    choice,
    decision,
    is_dry_run,
    number,
    whole_number,
)
from app.experiments.contract.report import (
    AutomationStatus,
    Comparison,
    FalseVerdicts,
    Foreseen,
    HistoryPoint,
    Planned,
    Report,
    Summary,
    summary_of,
    summary_without_evidence,
)
from app.experiments.contract.series import Series, series_of
from app.experiments.false_verdict_runs import FalseVerdictRuns, Runs
from app.experiments.feed import page, recent_actions
from app.experiments.issued_keys import IssuedKeyStore
from app.experiments.recordings import RecordingKeeper
from app.experiments.rendering import document as markdown
from app.experiments.rendering import document as text
from app.experiments.rendering.document import Block, Paragraph
from app.experiments.rendering.reports import document, history_document, list_document, plan_document, runs_document
from app.experiments.shadows import ShadowReport, shadow_series
from app.experiments.shadows import document as shadow_document
from app.exposures.controller_client import Answer
from app.exposures.wire import FeedbackItem

Query = Mapping[str, str]
JSON, MARKDOWN, TEXT = "application/json", "text/markdown; charset=utf-8", "text/plain; charset=utf-8"
FORMATS = ("json", "markdown", "text")
ACTIVITY, ISSUED_KEYS = "/activity", "/keys"
"""Where routers report and ask about activity, and where issued keys are. Both have a thread of their own: an answer
waits for no analysis."""
MAX_ACTIONS = 10
"""The number of an experiment's latest actions that its report lists."""

REPORT_S = 1.0
"""The time for which a report is cached."""


class ReadableAnalysis(Protocol):
    """The read side of one experiment's analysis."""

    def report(self, now: float) -> Report: ...

    def history(self, metric: str, treatment: str) -> Sequence[HistoryPoint]: ...

    def matches(self, items: Sequence[FeedbackItem]) -> Sequence[Match]:
        """What each score belongs to."""

    def plan_sample_size(
        self, metric: str, effect: float, power: float, now: float, treatment: str | None = None
    ) -> Planned: ...

    def false_verdicts(self) -> Callable[[int], Sequence[FalseVerdicts]]:
        """The work of A/A runs, on a copy of the evidence: it may run in another thread, for a number of runs."""


class ControllerReader(Protocol):
    """The read side of `app.experiments.controller`."""

    def now(self) -> float: ...

    def experiments(self) -> Mapping[str, Experiment]:
        """Every declared experiment."""

    def analysis(self, name: str) -> ReadableAnalysis | None:
        """The evidence of a running experiment; None if there is none."""

    def acting(self, report: Report) -> AutomationStatus | None:
        """The state of acting on the experiment of a report; None if nothing acts on it."""

    def shown(self, report: Report) -> None:
        """Somebody reads the report."""

    def decide(self, report: Report, request: ManualDecision) -> None:
        """Takes a decision on the experiment of a report. Raises Conflict and PreconditionFailed."""

    def foresee(self, report: Report, request: ManualDecision) -> Foreseen:
        """The consequences of a decision. Raises what `decide` raises."""

    def exposures(self, request: int) -> Sequence[Mapping[str, Any]]:
        """The exposures of a request id's hash, or of an answer id's, as plain data; the latest last."""

    def entries(self) -> Sequence[JournalEntry]:
        """The journal."""

    def missing(self) -> Sequence[str]:
        """Parts of the ledger that are known to be missing before all records are read, each with the reason."""

    def warnings(self) -> Sequence[str]:
        """What troubles the controller's service now."""

    def mirrored(self) -> Sequence[str]:
        """The endpoints with a mirror."""

    @property
    def audit(self) -> AuditTrail:
        """The audit log."""

    @property
    def activity(self) -> ActivityKeeper:
        """What routers report of their requests."""

    @property
    def recordings(self) -> RecordingKeeper:
        """What routers have recorded of requests."""

    @property
    def issued_keys(self) -> IssuedKeyStore:
        """The keys that managers have issued."""

    def shadow(self, endpoint: str) -> ShadowReport | None:
        """The report on an endpoint's shadow; None if it has no mirror."""


class _Reading(NamedTuple):
    """A report, with the state of acting and the latest actions at the same moment."""

    report: Report
    acting: AutomationStatus | None
    actions: Sequence[tuple[float, str]]


class ControllerApi:
    """Answers questions; keeps the A/A runs that are under way."""

    def __init__(self, reader: ControllerReader) -> None:
        self._reader = reader
        self._runs = FalseVerdictRuns()
        self._readings: dict[str, _Reading] = {}
        self._shadows: dict[str, ShadowReport] = {}
        self._routes: Sequence[tuple[str, re.Pattern[str], Callable[..., Answer]]] = [
            ("GET", re.compile("/experiments"), self._list),
            ("GET", re.compile("/experiments/([^/]+)"), self._summary),
            ("GET", re.compile("/experiments/([^/]+)/report"), self._report),
            ("POST", re.compile("/experiments/([^/]+)/decision"), self._decide),
            ("GET", re.compile("/experiments/([^/]+)/history"), self._history),
            ("GET", re.compile("/experiments/([^/]+)/planner"), self._planner),
            ("GET", re.compile("/experiments/([^/]+)/aa"), self._runs_so_far),
            ("POST", re.compile("/experiments/([^/]+)/aa"), self._start_runs),
            ("GET", re.compile("/endpoints/([^/]+)/plans"), self._plans),
            ("GET", re.compile("/endpoints/([^/]+)/mirror"), self._mirror),
            ("GET", re.compile("/requests/([0-9a-f]{16})"), self._exposures),
            ("GET", re.compile("/recordings/([0-9a-f]{16})"), self._text),
            ("POST", re.compile("/feedback/pending"), self._pending),
            ("GET", re.compile("/series"), self._series),
            ("GET", re.compile("/journal"), self._journal),
            ("GET", re.compile("/audit"), self._audit),
            ("POST", re.compile("/audit"), self._keep_audit),
            ("POST", re.compile(ACTIVITY), lambda query, body: self._reader.activity.take(body)),
            ("GET", re.compile(ISSUED_KEYS), lambda query, body: self._reader.issued_keys.answer(query.get("after"))),
            ("POST", re.compile(ISSUED_KEYS), lambda query, body: self._reader.issued_keys.change(body)),
            ("POST", re.compile(f"{ACTIVITY}/uses"), lambda query, body: self._reader.activity.uses(query)),
            ("GET", re.compile(f"{ACTIVITY}/starts"), lambda query, body: self._reader.activity.starts()),
            ("POST", re.compile(f"{ACTIVITY}/requests"), lambda query, body: self._reader.activity.requests(body)),
            ("POST", re.compile(f"{ACTIVITY}/history"), lambda query, body: self._reader.activity.history(query, body)),
        ]

    def answer(self, method: str, path: str, query: Query, body: bytes) -> Answer:
        """The answer to any question. `path` begins with a slash and is not percent-encoded."""
        try:
            return self._answer(method, path, query, body)
        except ClientError as error:
            return Answer(error.status, _json({"message": error.message, "param": error.param}))

    def _answer(self, method: str, path: str, query: Query, body: bytes) -> Answer:
        matches = [
            (allowed, handler, m) for allowed, pattern, handler in self._routes if (m := pattern.fullmatch(path))
        ]
        for allowed, handler, match in matches:
            if allowed == method:
                return handler(*match.groups(), query=query, body=body)
        if matches:
            raise MethodNotAllowed(taken(path, [allowed for allowed, _, _ in matches], method))
        raise NotFound(f"No answer for {path}")

    def _list(self, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        summaries = [self._summarized(name, experiment) for name, experiment in self._reader.experiments().items()]
        return _formatted({"experiments": msgspec.to_builtins(summaries)}, form, lambda: list_document(summaries))

    def _summary(self, name: str, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        summary = self._summarized(name, self._experiment(name))
        return _formatted(summary, form, lambda: list_document([summary]))

    def _decide(self, name: str, query: Query, body: bytes) -> Answer:
        """Answers a decision that was made for another state with the present one, and 412."""
        request, experiment = decision(body), self._experiment(name)
        is_dry = is_dry_run(query)
        report = self._reading(name, self._judged(name)).report
        try:
            if is_dry:
                return Answer(200, _json(self._reader.foresee(report, request)))
            self._reader.decide(report, request)
        except PreconditionFailed as error:
            return Answer(error.status, _json(self._summarized(name, experiment)))
        self._readings.pop(name, None)
        return Answer(200, _json(self._summarized(name, experiment)))

    def _report(self, name: str, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        if "at" in query:
            raise BadRequest(
                "at: a running server reports the present. Its history has the intervals of the past, and "
                "`switchyard experiments report --ledger DIR --at TIME` reports from what was recorded until then",
                param="at",
            )
        reading = self._reading(name, self._judged(name))
        self._reader.shown(reading.report)
        return _formatted(reading.report, form, lambda: document(*reading))

    def _history(self, name: str, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        judged = self._judged(name)
        report = self._reading(name, judged).report
        comparison = _comparison(report, query)
        metric, treatment = comparison.metric, comparison.treatment
        points = list(judged.history(metric, treatment))
        history = {"experiment": name, "metric": metric, "treatment": treatment, "points": msgspec.to_builtins(points)}
        return _formatted(history, form, lambda: history_document(name, comparison, points), report.incomplete)

    def _planner(self, name: str, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        judged = self._judged(name)
        report = self._reading(name, judged).report
        comparison = _comparison(report, query)
        effect = number(query, "effect", default=comparison.minimal_effect)
        power = number(query, "power", default=0.8, below=1.0)
        now = self._reader.now()
        planned = judged.plan_sample_size(comparison.metric, effect, power, now, comparison.treatment)
        return _formatted(planned, form, lambda: plan_document(name, comparison, planned), report.incomplete)

    def _start_runs(self, name: str, query: Query, body: bytes) -> Answer:
        judged = self._judged(name)
        runs = whole_number(body, "runs", highest=MAX_RUNS)
        if not self._runs.start(name, runs, judged.false_verdicts):
            raise Conflict(f"A/A runs of '{name}' are under way; read them with GET, then start again")
        return Answer(202, _json(self._runs.of(name)))

    def _runs_so_far(self, name: str, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        self._experiment(name)
        runs: Runs | None = self._runs.of(name)
        if runs is None:
            raise NotFound(f"No A/A runs of '{name}' were started since the controller's start; start some with POST")
        is_over = runs.state != "running"  # a report for each poll takes long
        incomplete = self._reading(name, self._judged(name)).report.incomplete if is_over else ()
        return _formatted(runs, form, lambda: runs_document(name, runs), incomplete)

    def _plans(self, endpoint: str, query: Query, body: bytes) -> Answer:
        return Answer(200, _json({"plans": history(self._reader.entries(), endpoint)}))

    def _mirror(self, endpoint: str, query: Query, body: bytes) -> Answer:
        form = choice(query, "format", FORMATS)
        if (report := self._shadow_of(endpoint)) is None:
            raise NotFound(
                f"The endpoint '{endpoint}' has no mirror; declare one in the configuration", param="endpoint"
            )
        return _formatted(report, form, lambda: shadow_document(report))

    def _exposures(self, request: str, query: Query, body: bytes) -> Answer:
        return Answer(200, _json({"exposures": list(self._reader.exposures(int(request, 16)))}))

    def _pending(self, query: Query, body: bytes) -> Answer:
        """The numbers of scores in the body that match no exposure, and that come after its window."""
        items = msgspec.json.decode(body, type=list[FeedbackItem])
        analyses = [
            analysis for name in self._reader.experiments() if (analysis := self._reader.analysis(name)) is not None
        ]
        matches = [{*sets} for sets in zip(*(analysis.matches(items) for analysis in analyses), strict=True)] or [
            set()
        ] * len(items)
        late = sum("late" in match and "waiting" not in match for match in matches)
        return Answer(200, _json({"pending": sum(not match - {"unknown"} for match in matches), "late": late}))

    def _text(self, request: str, query: Query, body: bytes) -> Answer:
        return self._reader.recordings.text(request, float(query["at"]))

    def _series(self, query: Query, body: bytes) -> Answer:
        series: list[Series] = []
        for name in self._reader.experiments():
            if (judged := self._reader.analysis(name)) is not None:
                report, acting, _ = self._reading(name, judged)
                series += series_of(report, acting)
        for endpoint in self._reader.mirrored():
            if (shadow := self._shadow_of(endpoint)) is not None:
                series += shadow_series(shadow)
        return Answer(200, _json(series))

    def _journal(self, query: Query, body: bytes) -> Answer:
        return Answer(200, _json(page(self._reader.entries(), self._reader.experiments(), query)))

    def _audit(self, query: Query, body: bytes) -> Answer:
        return self._reader.audit.answer(query)

    def _keep_audit(self, query: Query, body: bytes) -> Answer:
        self._reader.audit.keep(decode_records(body))
        return Answer(200, _json({}))

    def _experiment(self, name: str) -> Experiment:
        declared = self._reader.experiments()
        if (experiment := declared.get(name)) is None:
            missing = self._reader.missing()
            lacks = f". {_incomplete(missing)}" if missing else ""
            raise NotFound(f"No experiment '{name}'; declared: {', '.join(declared) or 'none'}{lacks}", param="name")
        return experiment

    def _judged(self, name: str) -> ReadableAnalysis:
        experiment = self._experiment(name)
        if (judged := self._reader.analysis(name)) is None:
            fix = "; deploy its file with `state: running`" if experiment.state == "draft" else ""
            state = f"its state is {experiment.state}{fix}"
            raise NotFound(f"The experiment '{name}' has no evidence: {state}", param="name")
        return judged

    def _summarized(self, name: str, experiment: Experiment) -> Summary:
        if (judged := self._reader.analysis(name)) is None:
            return summary_without_evidence(name, experiment)
        report, acting, _ = self._reading(name, judged)
        self._reader.shown(report)
        return msgspec.structs.replace(summary_of(report, acting), service=list(self._reader.warnings()))

    def _reading(self, name: str, judged: ReadableAnalysis) -> "_Reading":
        """One that is not older than `REPORT_S`: many readers and scrapers must not keep the controller busy. It is a
        new one, though, once acting has changed.
        """
        now, last = self._reader.now(), self._readings.get(name)
        if (
            last is not None
            and 0 <= now - last.report.at < REPORT_S
            and self._reader.acting(last.report) == last.acting
        ):
            return last
        report = judged.report(now)
        acting = self._reader.acting(report)
        if acting is not None:  # it may have paused or stopped what the file declares as running
            report = msgspec.structs.replace(report, state=acting.state)
        actions = recent_actions(self._reader.entries(), name, MAX_ACTIONS)
        self._readings[name] = _Reading(report, acting, actions)
        return self._readings[name]

    def _shadow_of(self, endpoint: str) -> ShadowReport | None:
        """Like `_reading`, for a shadow."""
        now, last = self._reader.now(), self._shadows.get(endpoint)
        if last is not None and 0 <= now - last.at < REPORT_S and endpoint in self._reader.mirrored():
            return last
        if (report := self._reader.shadow(endpoint)) is not None:
            self._shadows[endpoint] = report
        return report


def _comparison(report: Report, query: Query) -> Comparison:
    """The comparison that `metric` and `treatment` name; by default the first."""
    comparisons = [*report.primary, *report.secondary]
    metric = choice(query, "metric", list(dict.fromkeys(comparison.metric for comparison in comparisons)))
    treatment = choice(query, "treatment", report.treatments)
    return next(
        comparison for comparison in comparisons if (comparison.metric, comparison.treatment) == (metric, treatment)
    )


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _formatted(
    value: Any, form: str, blocks: Callable[[], Iterable[Block]], incomplete: Sequence[str] | None = None
) -> Answer:
    """`incomplete`: as `Report.incomplete`, for what does not say so itself."""
    if form == "json":
        document = msgspec.to_builtins(value)
        return Answer(200, _json(document if incomplete is None else {**document, "incomplete": incomplete}), JSON)
    said = [*blocks(), *([Paragraph([_incomplete(incomplete)])] if incomplete else [])]
    if form == "markdown":
        return Answer(200, markdown.markdown(said).encode(), MARKDOWN)
    return Answer(200, text.text(said).encode(), TEXT)


def _incomplete(missing: Sequence[str]) -> str:
    return f"The ledger is incomplete: {'; '.join(missing).rstrip('.')}."
