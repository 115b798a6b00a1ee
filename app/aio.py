"""Ends blocks of coroutines early: time limits, a client's disconnect, a request's deadline; runs work beside them."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any, Self, TypeVar

from app.errors import DeadlinePassed, TimedOut


@asynccontextmanager
async def run_in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `work` while the block runs, then cancels it. Its errors are raised at the block's end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Callbacks:
    """Runs `work` at once, and then in the callbacks of the futures that it waits for, until its end or `end`.

    For a wait that each request has and hardly any completes: creating a task and cancelling it, which leaves a cycle
    of objects to the garbage collector, cost more than the wait. `work` runs in no task of its own, so that
    `asyncio.timeout` and `current_task` are not for it. Raises the errors of its first step; later ones go to the
    event loop's exception handler.
    """

    __slots__ = ("_is_over", "_work")

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._is_over = False
        self._continue()

    def end(self) -> None:
        """Ends the work where it waits."""
        self._is_over = True
        self._work.close()

    def _continue(self, _: object = None) -> None:
        if self._is_over:  # the future was done when the work was ended
            return
        try:
            waits_for = self._work.send(None)
        except StopIteration:
            self._is_over = True
            return
        if waits_for is None:  # `asyncio.sleep(0)`
            asyncio.get_running_loop().call_soon(self._continue)
        else:
            waits_for.add_done_callback(self._continue)


T = TypeVar("T")


_REST_S = 20e-6
"""Between two looks at all limits, for each of them: a hundred times as long as the look takes. Five thousand streams
end at most 0.1 s too late."""


class _Alarm:
    """Tells the limits of one event loop when their time has come, with one timer for all: to create one for each
    request and to cancel it takes ten times as long as to keep a set of them. The timer is that of the earliest limit;
    when that has long been over, the timer is set anew."""

    __slots__ = ("_at", "_limits", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._limits: set[TimeLimit] = set()
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, limit: "TimeLimit") -> None:
        """Calls the limit's `due` at its time, once, unless it is removed before."""
        self._limits.add(limit)
        if limit.when < self._at:
            self._set(limit.when)

    def remove(self, limit: "TimeLimit") -> None:
        """Forgets the limit."""
        self._limits.discard(limit)

    def _ring(self) -> None:
        now = max(self._loop.time(), self._at)  # event loops round
        self._at, self._timer = math.inf, None
        due = [limit for limit in self._limits if limit.when <= now]
        self._limits.difference_update(due)
        for limit in due:
            limit.due()
        if self._limits:
            earliest = min(limit.when for limit in self._limits)
            self._set(max(earliest, now + len(self._limits) * _REST_S))

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at, self._timer = at, self._loop.call_at(at, self._ring)


@lru_cache(maxsize=1)
def _alarm_of(loop: asyncio.AbstractEventLoop) -> _Alarm:
    """The alarm of an event loop: nearly always there is one. Where two take turns, each may have several."""
    return _Alarm(loop)


class TimeLimit:
    """Raises TimeoutError if the block still runs at `when`, in the event loop's time.

    What `asyncio.timeout_at` does, for limits that every request has: that one finds the running loop three times, each
    with a system call (getpid) in Python 3.11, can be rescheduled, and has a timer of its own.
    """

    __slots__ = ("_alarm", "_before", "_loop", "_passed", "_task", "when")

    def __init__(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        self.when, self._loop = when, loop
        self._passed = False

    def __enter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        assert task is not None, "a coroutine of a task"
        self._task, self._before = task, task.cancelling()
        self._alarm = _alarm_of(self._loop)
        self._alarm.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        self._alarm.remove(self)
        # A task that was cancelled from outside, too, stays cancelled.
        if self._passed and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def due(self) -> None:
        """The time has come."""
        self.pass_now()

    def pass_now(self) -> None:
        """The time is over."""
        if not self._passed:
            self._passed = True
            self._task.cancel()


def within(seconds: float) -> TimeLimit:
    """A limit from now on."""
    loop = asyncio.get_running_loop()
    return TimeLimit(loop.time() + seconds, loop)


class _Done(Awaitable[None]):
    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


DONE: Awaitable[None] = _Done()
"""What is already done, to be awaited."""


async def result_within(seconds: float, awaitable: Awaitable[T]) -> T:
    """The awaitable's result. Raises TimeoutError after that time; sets no timer for what need not wait."""
    steps: Any = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    with within(seconds):
        return await _Rest[T](steps, waits_for)


def run_until_blocked(awaitable: Awaitable[None]) -> Awaitable[None] | None:
    """Runs an awaitable without a task until it has to wait. Returns the rest, for a task to await; None if done."""
    if awaitable is DONE:  # nearly always; to run it would cost several times as much
        return None
    steps: Any = awaitable.__await__()
    try:
        waits_for = next(steps)
    except StopIteration:
        return None
    return _Rest[None](steps, waits_for)


class _Rest(Awaitable[T]):
    """The rest of a suspended awaitable: waits for the future that it waits for, then drives it to its end."""

    def __init__(self, steps: Any, waits_for: Any) -> None:
        self._steps, self._waits_for = steps, waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waits_for = self._steps, self._waits_for
        while True:
            try:
                try:
                    result = yield waits_for
                except BaseException as error:  # noqa: BLE001  a task may throw any exception into its awaitable
                    waits_for = steps.throw(error)
                else:
                    waits_for = steps.send(result)
            except StopIteration as done:
                end: T = done.value
                return end


Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
STOPPED = "The deployment stopped responding"
_TOO_LONG = "The response took longer than this server allows"


class ClientDisconnected(Exception):
    """The client closed the connection before its response was complete."""


class while_connected:
    """Cancels the block and raises ClientDisconnected when the client disconnects before its response is complete.

    `is_answered` returns whether the response is complete. Servers report a disconnect after that, too, even if the
    client stays, and the rest of the block (settling limits) must continue.
    """

    __slots__ = ("_disconnected", "_is_answered", "_receive", "_watch", "_work")

    def __init__(self, receive: Receive, is_answered: Callable[[], bool] = lambda: False) -> None:
        self._receive, self._is_answered = receive, is_answered
        self._work: asyncio.Task[Any] | None = None
        self._disconnected = False

    def __enter__(self) -> None:
        self._watch = Callbacks(self._disconnect())
        if self._disconnected:
            raise ClientDisconnected
        self._work = asyncio.current_task()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        self._watch.end()
        if self._disconnected and self._work is not None and isinstance(error, asyncio.CancelledError):
            self._work.uncancel()
            raise ClientDisconnected from None

    async def _disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_answered():
            self._disconnected = True
            if self._work is not None:
                self._work.cancel()


class until(TimeLimit):
    """Raises DeadlinePassed if the block still runs at `deadline` (event-loop time)."""

    def __init__(self, deadline: float) -> None:
        super().__init__(deadline, asyncio.get_running_loop())

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        except TimeoutError as error:
            raise DeadlinePassed(_TOO_LONG) from error


class IdleTimeout(TimeLimit):
    """Raises TimedOut if the block does not update `last` for `idle_s` seconds, DeadlinePassed at `deadline`.

    Both are event-loop times. `last` is checked once per idle period: a timer per chunk would cost more than relaying
    the chunk. With a `sign`, that is called after each `sign_s` seconds in which nothing was `shown`, and the check is
    made as often: what comes need not be anything that is passed on.
    """

    __slots__ = ("_deadline", "_idle_s", "_is_paused", "_sign", "_sign_s", "last", "shown")

    def __init__(
        self, idle_s: float, deadline: float, sign_s: float = math.inf, sign: Callable[[], None] | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._idle_s, self._deadline, self._sign_s, self._sign = idle_s, deadline, sign_s, sign
        self.last = self.shown = loop.time()
        self._is_paused = False
        super().__init__(min(self.last + (sign_s if sign_s < idle_s else idle_s), deadline), loop)

    def __exit__(self, *raised: Any) -> None:
        self._sign = None  # whoever gives signs may know this
        try:
            super().__exit__(*raised)
        except TimeoutError as error:
            if not self._is_paused and self.last + self._idle_s < self._deadline:
                raise TimedOut(STOPPED) from error
            raise DeadlinePassed(_TOO_LONG) from error

    def touch(self) -> None:
        """Nothing has been idle until now."""
        self.last = self._loop.time()

    def pause(self) -> None:
        """Until `resume`, only the deadline counts; signs go on."""
        self._is_paused = True

    def resume(self) -> None:
        """Nothing is idle from now on."""
        self._is_paused = False
        self.touch()
        self._alarm.remove(self)
        self.due()

    def due(self) -> None:
        now = self._loop.time()
        ends = self._deadline if self._is_paused else min(self.last + self._idle_s, self._deadline)
        if now >= ends:
            self.pass_now()
            return
        signs = self.shown + self._sign_s
        if now >= signs and self._sign is not None:
            self.shown, signs = now, now + self._sign_s
            self._loop.call_soon(self._give_sign)  # its errors are not those of other limits
        self.when = min(ends, signs)
        self._alarm.add(self)

    def _give_sign(self) -> None:
        if self._sign is not None:  # the block still runs
            self._sign()
