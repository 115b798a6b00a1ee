"""A simulated world: users with habits, two deployments, and the routers' records, as columns."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.config.schema import Config, parse
from app.experiments.analysis.analysis import Analysis, Pace
from app.experiments.analysis.arrays import Floats, Ints, Mask
from app.experiments.analysis.cells import MAX_LINES
from app.experiments.storage.columns import DTYPES, OverdueColumns, RowColumns, StartColumns, Tables
from app.exposures.wire import Failure, FinishCode, Flag, LateKind, Plan

BLUE, GREEN = "blue", "green"
START = 1_800_000_000.0
DAY_S = 86400.0


def config(weights: tuple[int, int] = (50, 50), sticky: str | None = "user", **experiment: Any) -> Config:
    """An endpoint `chat` over blue and green with the experiment `green-float32`, changed by `experiment`."""
    declared: dict[str, Any] = {
        "endpoint": "chat",
        "control": BLUE,
        "treatments": [GREEN],
        "primary": [{"metric": "ttft", "minimal_effect": 0.05}],
    }
    endpoint: dict[str, Any] = {"tasks": ["chat"], "traffic": {BLUE: weights[0], GREEN: weights[1]}}
    if sticky is not None:
        endpoint["sticky"] = {"by": sticky}
    prices = {BLUE: (1.0, 2.0), GREEN: (1.0, 3.0)}
    return parse(
        {
            "endpoints": {"chat": endpoint},
            "deployments": {
                name: {"app": name, "model": name, "price": {"input_per_million": i, "output_per_million": o}}
                for name, (i, o) in prices.items()
            },
            "experiments": {"green-float32": declared | experiment},
        }
    )


@dataclass
class World:
    """The properties of the requests. Shares and factors of green are relative to blue."""

    seed: int = 1
    users: int = 400
    slower: float = 1.0
    """Green's times divided by blue's."""
    error_rate: tuple[float, float] = (0.005, 0.005)
    lost: float = 0.0
    """The share of green's users without any record."""
    hangs: float = 0.0
    """The share of green's requests that never get a first token."""
    weights: tuple[int, int] = (50, 50)
    plan: str = "0-aaaaaaaa"
    cold: tuple[float, float] | None = None
    """Seconds after the start between which green's replicas are new, and three times as slow."""

    def __post_init__(self) -> None:
        self.tables = Tables()
        self.codes = {name: self.tables.name(name) for name in (BLUE, GREEN, "openai", "chat")}
        self.rng = np.random.default_rng(self.seed)
        self.habit = self.rng.normal(0, 0.3, self.users)
        self.draw = np.random.default_rng(7).random(self.users)
        self.loses = np.random.default_rng(8).random(self.users)
        self._sequence = 0

    def requests(self, count: int, hours: float = 24.0, since: float = START) -> "Recorded":
        """Generates requests, spread over a number of hours."""
        rng, codes = self.rng, self.codes
        user = np.minimum((self.users * rng.random(count) ** 1.5).astype(int), self.users - 1)
        green = self.draw[user] < self.weights[1] / sum(self.weights)
        at = np.sort(since + rng.random(count) * hours * 3600)
        prompt = np.exp(rng.normal(6.5, 1.2, count))
        ttft = np.exp(-1.2 + self.habit[user] + 0.15 * np.log(prompt) + rng.normal(0, 0.4, count))
        ttft = np.where(green, ttft * self.slower, ttft)
        cold = np.zeros(count, np.bool_)
        if self.cold is not None:
            cold = green & (at >= START + self.cold[0]) & (at < START + self.cold[1])
            ttft = np.where(cold, 3 * ttft, ttft)
        tokens = np.ceil(np.exp(rng.normal(4, 0.5, count)))
        failed = rng.random(count) < np.where(green, self.error_rate[1], self.error_rate[0])
        duration = ttft + tokens * 0.02 * np.where(green, self.slower, 1.0)
        hanging = green & (rng.random(count) < self.hangs)
        filled = self._filled(
            at,
            user,
            green,
            served=np.where(failed, -1, np.where(green, codes[GREEN], codes[BLUE])),
            status=np.where(failed, 502, 200),
            error=np.where(failed, Failure.UNREACHABLE, Failure.NONE),
            prompt_bytes=prompt,
            prompt_tokens=np.where(failed, np.nan, np.ceil(prompt / 4)),
            completion_tokens=np.where(failed, np.nan, tokens),
            ttft_s=np.where(failed, np.nan, ttft),
            duration_s=np.where(failed, 0.1, duration),
            itl_mean_s=np.where(failed, np.nan, 0.02),
            itl_max_s=np.where(failed, np.nan, 0.05),
            finish=np.where(failed, FinishCode.NONE, FinishCode.STOP),
            cold=cold,
        )
        gone = green & (self.loses[user] < self.lost)
        return _recorded(filled, ~gone, hanging)

    def before(self, count: int, hours: float = 71.0, since: float = START - 3 * DAY_S) -> "Recorded":
        """Requests under a plan that gives blue all of the traffic."""
        weights, plan = self.weights, self.plan
        self.weights, self.plan = (100, 0), "0-undivided"
        recorded = self.requests(count, hours, since)
        self.weights, self.plan = weights, plan
        return recorded

    def answered(self, at: Floats, user: Ints, green: Mask, **columns: Any) -> "Recorded":
        """Records of requests that were answered. `at` in Unix seconds; `columns` are the rows', by name."""
        everything = np.ones(len(at), np.bool_)
        return _recorded(self._filled(at, user, green, **columns), everything, ~everything)

    def _filled(self, at: Floats, user: Ints, green: Mask, **columns: Any) -> dict[str, NDArray[Any]]:
        count, codes = len(at), self.codes
        plan = self.tables.plan(Plan("chat", self.plan, {BLUE: self.weights[0], GREEN: self.weights[1]}))
        arm = np.where(green, codes[GREEN], codes[BLUE])
        number = np.arange(self._sequence, self._sequence + count)
        self._sequence += count
        values: dict[str, Any] = {
            "router": 1,
            "batch": 1,
            "arrived": at,
            "seq": number + 1,
            "at": at,
            "unit": _hashed(user, 11),
            "plan": plan,
            "assigned": arm,
            "flags": 0,
            "reason": 1,
            "request": _hashed(number, 12),
            "answer": _hashed(number, 13),
            "caller": _hashed(user, 14),
            "served": arm,
            "dialect": codes["openai"],
            "task": codes["chat"],
            "stream": True,
            "status": 200,
            "error": Failure.NONE,
            "attempts": 1,
            "prompt_bytes": 500,
            "max_tokens": np.nan,
            "prompt_tokens": 100.0,
            "completion_tokens": 50.0,
            "ttft_s": 0.2,
            "duration_s": 1.0,
            "itl_mean_s": 0.02,
            "itl_max_s": 0.05,
            "finish": FinishCode.STOP,
            "turn": 0,
            "in_flight": 2,
            "cold": False,
            "group": -1,
            "moves": 0,
            "pause_s": 0.0,
        } | columns
        return {name: np.broadcast_to(value, count).astype(DTYPES[name]) for name, value in values.items()}


@dataclass(frozen=True)
class Recorded:
    """The routers' records of some requests."""

    starts: StartColumns
    rows: RowColumns
    late: OverdueColumns

    def flagged(self, flag: Flag) -> "Recorded":
        """All with a flag."""
        return Recorded(_with(self.starts, flag), _with(self.rows, flag), _with(self.late, flag))

    def tell(self, analysis: Analysis, parts: int = 1, order: NDArray[np.int64] | None = None) -> None:
        """Adds everything, in a number of batches; `order` is the order of the rows."""
        rows = self.rows if order is None else self.rows.take(order.astype(np.intp))
        for part in range(parts):
            analysis.add_starts(self.starts.take(_slice(len(self.starts), part, parts)))
            analysis.add_late(self.late.take(_slice(len(self.late), part, parts)))
            analysis.add_rows(rows.take(_slice(len(rows), part, parts)))


C = TypeVar("C", StartColumns, RowColumns, OverdueColumns)


def _with(columns: C, flag: Flag) -> C:
    return replace(columns, flags=(columns.flags | np.uint16(flag)).astype(np.uint16))


def _recorded(filled: dict[str, NDArray[Any]], told: Mask, hanging: Mask) -> Recorded:
    """The starts of the requests that the routers told of, the rows of those that ended, late records of the others."""
    extra = {"kind": np.full(len(told), LateKind.SLOW, np.uint8), "above_s": np.full(len(told), 10.0)}
    return Recorded(
        _columns(StartColumns, filled).take(told),
        _columns(RowColumns, filled).take(told & ~hanging),
        _columns(OverdueColumns, filled | extra).take(told & hanging),
    )


def _columns(kind: type[C], filled: dict[str, NDArray[Any]]) -> C:
    return kind(**{name: filled[name] for name in kind.names()})


def _slice(size: int, part: int, parts: int) -> slice:
    return slice(size * part // parts, size * (part + 1) // parts)


def _hashed(numbers: NDArray[np.int64], salt: int) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (numbers.astype(np.uint64) + np.uint64(salt * 1_000_003)) * np.uint64(0x9E3779B97F4A7C15)
        return (z ^ (z >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)


class Unpaced(Pace):
    """Analyses everything whenever there is new data."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def allows(self) -> bool:
        return True


def analysis_of(
    world: World, declared: Config | None = None, name: str = "green-float32", *, max_lines: int = MAX_LINES
) -> Analysis:
    """An analysis of the world's records."""
    declared = declared or config(world.weights)
    return Analysis(
        name, declared.experiments[name], declared, world.tables, START, pace=Unpaced(), max_lines=max_lines
    )
