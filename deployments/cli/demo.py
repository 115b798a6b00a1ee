"""`switchyard demo`: simulated traffic, for a server without users. Users ask an endpoint questions; a table shows the
answers.

Arrivals are a Poisson process, so that slow answers do not delay later questions. As with real users, some ask far more
often than others, and prompts differ in length. As in a real application, all begin with the same instructions, which
an engine's prefix cache computes once.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from deployments.cli.options import CommandError, ExitCode, Key, Url, router_client, table

if TYPE_CHECKING:
    import aiohttp

app = typer.Typer(help="Simulated traffic.", rich_markup_mode=None)


@app.callback()
def demo() -> None:
    """Makes `traffic` a subcommand although it is the only one."""


@app.command()
def traffic(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="An endpoint for chat.")],
    minutes: Annotated[float, typer.Option(min=0.01, help="How long.")] = 10.0,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests per second, on average.")] = 3.0,
    users: Annotated[int, typer.Option(min=1, help="Simulated users; some ask far more often than others.")] = 200,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 16,
    feedback: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Also score answers, as a boolean feedback metric.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Repeat a run's users and questions; without it, every run has new ones."),
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Send chat requests of simulated users to an endpoint.

    Each user has a separate session (the header x-session-id), so that `sticky: {by: conversation}` keeps it on one
    deployment. Ctrl-C ends it early. Prints a line every ten seconds, and at the end the outcomes by deployment.

    \b
    Examples:
      switchyard demo traffic chat
      switchyard demo traffic chat --minutes 2 --rate 5 --feedback thumbs
    """
    client = router_client(url, key)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    plan = DemoTraffic(
        endpoint=endpoint, users=users, rate=rate, seconds=minutes * 60, max_tokens=max_tokens, seed=seed
    )
    sender = TrafficSender(client.url, key, plan, say=partial(typer.echo, err=True), feedback=feedback)
    try:
        asyncio.run(sender.run())
    except KeyboardInterrupt:
        typer.echo("Stopped early.", err=True)
    if table := sender.table():
        typer.echo(table)
    sender.check()


MAX_IN_FLIGHT = 32
"""Questions are skipped while this many wait for an answer: the server is slower than the rate."""

_TIMEOUT_S = 120.0

PROGRESS_S = 10.0
"""How often a run says how far it is."""

_PERMANENT: Mapping[int, ExitCode] = {
    400: ExitCode.WRONG,
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.WRONG,
}
"""Status codes that the next question would get, too."""

_INSTRUCTIONS = (
    "You are the assistant of a small museum of everyday things. Visitors ask you about what they see, on a tablet "
    "that stands beside each room's door. Answer in plain words, in one or two sentences, and begin with the answer "
    "itself. Do not greet the visitor, do not repeat the question, and do not use lists or headings. If a question "
    "has nothing to do with the museum, answer it all the same, as briefly as you can. If you do not know the answer, "
    "say so, and name the person at the desk who can help. Never invent a year, a name or a price. The museum opens "
    "at nine and closes at six. Children under twelve pay nothing, and a ticket is good for the whole day."
)
_SUBJECTS = "rivers, bread, chess, violins, bridges, whales, glass, trains, maps, bees, tea, comets".split(", ")
_QUESTIONS = (
    "Tell me one thing about {subject}.",
    "Why do people like {subject}?",
    "Write a short line about {subject}.",
    "What should I know about {subject} before a visit to a museum?",
)
_CONTEXT = "Earlier somebody said that {subject} are the most interesting thing of all, which not everyone believed. "


@dataclass(frozen=True)
class DemoTraffic:
    """The traffic to send: `rate` in requests per second, over `seconds`."""

    endpoint: str
    users: int
    rate: float
    seconds: float
    max_tokens: int
    seed: int


@dataclass(frozen=True)
class Question:
    """One question. `after_s`: seconds since the previous one."""

    after_s: float
    session: str
    prompt: str


def questions(plan: DemoTraffic) -> Iterator[Question]:
    """The questions of a plan, the same for the same seed."""
    random = Random(plan.seed)
    activity = list(itertools.accumulate(random.lognormvariate(0, 1) for _ in range(plan.users)))
    started, elapsed = False, 0.0
    while True:
        after_s = random.expovariate(plan.rate) if started else 0.0  # what is refused is refused at once
        started, elapsed = True, elapsed + after_s
        if elapsed > plan.seconds:
            return
        user = random.choices(range(plan.users), cum_weights=activity)[0]
        subject = random.choice(_SUBJECTS)
        context = "".join(
            _CONTEXT.format(subject=random.choice(_SUBJECTS)) for _ in range(int(random.expovariate(0.5)))
        )
        prompt = context + random.choice(_QUESTIONS).format(subject=subject)
        yield Question(after_s, f"demo-{plan.seed}-{user}", prompt)


@dataclass
class AnswerTally:
    """One deployment's answers: those that were whole, and those that failed, also after their beginning. Times are in
    seconds."""

    answered: int = 0
    failed: int = 0
    first_token_s: list[float] = field(default_factory=list)


class TrafficSender:
    """Sends a plan to the router at `url`. `feedback`: a metric for which every answer is scored, at random. `say`
    takes a line once a request is not refused, and one about the progress every `every_s` seconds."""

    def __init__(
        self,
        url: str,
        key: str | None,
        plan: DemoTraffic,
        *,
        say: Callable[[str], None],
        feedback: str | None = None,
        every_s: float = PROGRESS_S,
    ) -> None:
        self._url, self._plan, self._feedback = url, plan, feedback
        self._say, self._every_s = say, every_s
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._random = Random(plan.seed + 1)
        self._seen: defaultdict[str, AnswerTally] = defaultdict(AnswerTally)
        self._sent = self._left_out = 0
        self._is_announced = False
        self._error = ""
        self._refused: CommandError | None = None
        self._is_refused = asyncio.Event()

    async def run(self) -> None:
        """Sends every question at its time, then waits for the last answers. Ends early at an answer that all further
        questions would get, too."""
        import aiohttp  # not for `--help`

        from app.aio import run_in_background

        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        waiting: set[asyncio.Task[None]] = set()
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
            run_in_background(self._report_progress(waiting)),
        ):
            due = time.monotonic()
            for question in questions(self._plan):
                due += question.after_s
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_refused.wait(), due - time.monotonic())
                    break
                if len(waiting) >= MAX_IN_FLIGHT:
                    self._left_out += 1
                    continue
                self._sent += 1
                task = asyncio.create_task(self._ask(session, question))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
            await asyncio.gather(*waiting)

    async def _report_progress(self, waiting: Sized) -> None:
        started = time.monotonic()
        while True:
            await asyncio.sleep(self._every_s)
            failed = sum(seen.failed for seen in self._seen.values())
            requests = f"{self._sent:,} request{'' if self._sent == 1 else 's'}"
            self._say(f"{time.monotonic() - started:.0f} s: {requests}, {len(waiting)} waiting, {failed:,} failed")

    async def _ask(self, session: "aiohttp.ClientSession", question: Question) -> None:
        import aiohttp

        from app.routing.traffic import DEPLOYMENT_HEADER

        body = {
            "model": self._plan.endpoint,
            "messages": [
                {"role": "system", "content": _INSTRUCTIONS},
                {"role": "user", "content": question.prompt},
            ],
            "max_tokens": self._plan.max_tokens,
            "stream": True,
        }
        name = "(none)"
        try:
            started = time.perf_counter()
            headers = {"x-session-id": question.session}
            async with session.post(f"{self._url}/v1/chat/completions", json=body, headers=headers) as answer:
                name = answer.headers.get(DEPLOYMENT_HEADER, name)
                if (code := _PERMANENT.get(answer.status)) is None:
                    self._announce()
                if answer.status != 200:
                    self._failed(name, message := await _message(answer))
                    if code is not None:
                        self._refuse(message, code)
                    return
                if problem := await self._read(answer, self._seen[name], started):
                    self._failed(name, problem)
                    return
                self._seen[name].answered += 1
            if self._feedback is not None:
                await self._score(session, answer.headers["x-request-id"])
        except aiohttp.ClientConnectorError as error:
            self._failed(name, str(error))
            if not self._is_answered():
                self._refuse(f"{self._url} cannot be reached: {error}", ExitCode.UNREACHABLE)
        except (aiohttp.ClientError, TimeoutError) as error:
            self._failed(name, str(error) or "no answer in time")

    def _refuse(self, message: str, code: ExitCode) -> None:
        """Ends the run: all further questions would get this, too."""
        self._refused = CommandError(message, code)
        self._is_refused.set()

    def _announce(self) -> None:
        if self._is_announced:
            return
        self._is_announced, plan = True, self._plan
        rate = f"{plan.rate:g} {'request' if plan.rate == 1 else 'requests'}/s"
        minutes = f"{plan.seconds / 60:g} min"
        self._say(f"Sending {rate} to {self._url} for {minutes}, with --seed {plan.seed}; Ctrl-C ends it.")

    async def _read(self, answer: "aiohttp.ClientResponse", seen: AnswerTally, started: float) -> str:
        """Reads the stream. Returns why it is not whole: "" if it is."""
        error, is_done, is_first = "", False, True
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                is_done = True
            elif line.startswith(b'data: {"error":'):
                error = f"The stream was cut short: {_message_in(line.removeprefix(b'data: '))}"
            elif line.startswith(b"data: {") and is_first:
                seen.first_token_s.append(time.perf_counter() - started)
                is_first = False
        return error or ("" if is_done else "The stream ended before it was complete")

    async def _score(self, session: "aiohttp.ClientSession", request_id: str) -> None:
        score = {"request_id": request_id, "metric": self._feedback, "value": self._random.random() < 0.8}
        async with session.post(f"{self._url}/api/feedback", json=score) as answer:
            if answer.status >= 400:
                self._error = await _message(answer)

    def _failed(self, name: str, message: str) -> None:
        self._seen[name].failed += 1
        self._error = message

    def table(self) -> str:
        """The answers by deployment; empty if the server has refused all."""
        if self._refused is not None and not self._is_answered():
            return ""
        rows = [
            [
                name,
                str(seen.answered),
                str(seen.failed),
                f"{median(seen.first_token_s) * 1000:.0f} ms" if seen.first_token_s else "-",
            ]
            for name, seen in sorted(self._seen.items())
        ]
        lines = [table(["DEPLOYMENT", "ANSWERED", "FAILED", "FIRST TOKEN (MEDIAN)"], rows)]
        if self._left_out:
            lines.append(f"{self._left_out} questions skipped: {MAX_IN_FLIGHT} were waiting. Try a lower --rate.")
        if self._error:
            lines.append(f"The last error: {self._error}")
        return "\n".join(lines)

    def _is_answered(self) -> bool:
        return any(seen.answered for seen in self._seen.values())

    def check(self) -> None:
        """Raises CommandError if the server refused a question for good, or answered none."""
        if self._refused is not None:
            raise self._refused
        if not self._is_answered():
            raise CommandError("No request was answered", ExitCode.UNREACHABLE)


async def _message(answer: "aiohttp.ClientResponse") -> str:
    """An error's message, in one line."""
    return _message_in(await answer.read()) or f"status {answer.status}"


def _message_in(error: bytes) -> str:
    """The message of an error in OpenAI's form; "" if it is in another."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(error)["error"]["message"])
    return ""
