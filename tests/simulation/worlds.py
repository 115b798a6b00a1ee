"""Traffic with a known truth: users of unequal activity, who differ, with prompts of many lengths and a daily wave."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.experiments.statistics.look import LookScale

Kind = Literal["log_ttft", "mean_ttft", "errors", "tokens_per_second"]

RAMP = (0.01, 0.05, 0.25, 0.5)
PROMPT_BUCKETS = np.log([256, 1024, 4096, 16384])


@dataclass(frozen=True)
class World:
    """The distribution of requests. The defaults are those of the design's first table."""

    kind: Kind
    requests: int = 10_000
    users: int | None = 800
    """None: every request is its own user."""
    shares: tuple[float, ...] = (0.5,)
    """The treatment's share, in steps of `step` requests; the last one lasts to the end."""
    step: int = 2_500
    effect: float = 1.0
    """The treatment's times, error rate or speed, as a multiple of control's."""
    activity: float = 1.0
    """The shape of users' activity, a gamma distribution; small: very unequal."""
    user_sd: float = 0.4
    """How much users differ in ln of time, as a standard deviation."""
    noise: float = 0.7
    """The standard deviation of ln of time between requests of one user."""
    prompt_slope: float = 0.3
    """How much ln of time grows with ln of the prompt's length."""
    wave: float = 0.2
    """The amplitude of the daily wave, in ln."""
    days: float = 2.0
    error_rate: float = 0.02
    stay: float | None = None
    """The share of the run for which a user stays, equally active; None: all users are there all the time."""
    before: int = 0
    """Requests from before the run, which all went to control."""
    remembered: float = 1.0
    """The share of users of whom there are such requests."""
    informative: bool = True
    """Whether those requests are the users' own, rather than somebody else's."""
    chance: int = 1
    """The arms are drawn so often, without an effect; those stay whose earlier requests differ most."""
    plan_strata: bool = True
    prompt_strata: bool = False

    @property
    def scale(self) -> LookScale:
        return "difference" if self.kind == "log_ttft" else "ratio"


class Traffic(NamedTuple):
    """One array entry per request, in order of arrival."""

    unit: NDArray[np.intp]
    stratum: NDArray[np.intp]
    arm: NDArray[np.intp]
    x: NDArray[np.float64]
    d: NDArray[np.float64]
    before: "Before | None" = None


class Before(NamedTuple):
    """One array entry per request from before the run."""

    unit: NDArray[np.intp]
    x: NDArray[np.float64]
    d: NDArray[np.float64]


def draw(world: World, rng: np.random.Generator) -> Traffic:
    """One run's requests."""
    n = world.requests
    if world.users is None:
        users, unit = n, np.arange(n)
    elif world.stay is not None:
        users, now = world.users, np.arange(n) / n
        came = np.sort(rng.random(users) * (1 + world.stay) - world.stay)
        first, after = np.searchsorted(came, now - world.stay), np.searchsorted(came, now, side="right")
        unit = first + (rng.random(n) * (after - first)).astype(np.intp)
    else:
        users = world.users
        activity = rng.gamma(world.activity, size=users)
        unit = rng.choice(users, world.before + n, p=activity / activity.sum())
    share = np.array(world.shares)[np.minimum(np.arange(n) // world.step, len(world.shares) - 1)]
    before, unit = unit[: world.before], unit[world.before :]
    drawn = rng.random((world.chance, users))
    arm = (drawn[0][unit] < share).astype(np.intp)  # as with rendezvous: a growing share moves units one way
    ln_prompt = rng.normal(7.0, 1.2, world.before + n)
    level = world.wave * np.sin(2 * np.pi * world.days * np.arange(-world.before, n) / n)
    stratum = np.unique(share, return_inverse=True)[1] if world.plan_strata else np.zeros(n, dtype=np.intp)
    if world.prompt_strata:
        stratum = (len(PROMPT_BUCKETS) + 1) * stratum + np.searchsorted(PROMPT_BUCKETS, ln_prompt)
    everybody, treated = np.concatenate([before, unit]), np.concatenate([np.zeros(len(before), np.intp), arm])
    x, d = _values(world, rng, users, everybody, treated, level + world.prompt_slope * (ln_prompt - 7.0))
    if not world.before:
        return Traffic(unit, stratum, arm, x, d)
    known = _known(world, rng, users, Before(before, x[: world.before], d[: world.before]))
    if world.chance > 1:
        arm = (_most_different(known, drawn)[unit] < share).astype(np.intp)
    return Traffic(unit, stratum, arm, x[world.before :], d[world.before :], known)


def _known(world: World, rng: np.random.Generator, users: int, before: Before) -> Before:
    """What is remembered of the requests before the run."""
    owner = before.unit if world.informative else rng.permutation(users)[before.unit]
    which = (rng.random(users) < world.remembered)[owner]
    return Before(owner[which], before.x[which], before.d[which])


def _most_different(before: Before, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    """The draw whose halves differ most in their requests before the run."""

    def difference(draw: NDArray[np.float64]) -> float:
        treated = draw[before.unit] < 0.5
        return float(abs(before.x[treated].mean() - before.x[~treated].mean()))

    return np.asarray(max(drawn, key=difference))


def _values(
    world: World,
    rng: np.random.Generator,
    users: int,
    unit: NDArray[np.intp],
    arm: NDArray[np.intp],
    level: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n = len(unit)
    factor = np.where(arm == 1, world.effect, 1.0)
    if world.kind == "errors":
        proneness = rng.gamma(0.6, 1 / 0.6, users)
        rate = np.minimum(world.error_rate * proneness[unit] * factor, 0.95)
        return (rng.random(n) < rate).astype(np.float64), np.ones(n)
    if world.kind == "tokens_per_second":
        tokens = np.ceil(rng.lognormal(5.0, 0.6, n))
        ln_speed = 3.5 + rng.normal(0, 0.36, users)[unit] + rng.normal(0, 0.34, n) - level
        return tokens, tokens / (np.exp(ln_speed) * factor)
    ln_time = -1.0 + rng.normal(0, world.user_sd, users)[unit] + level + rng.normal(0, world.noise, n) + np.log(factor)
    return (ln_time if world.kind == "log_ttft" else np.exp(ln_time)), np.ones(n)
