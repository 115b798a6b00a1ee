"""Compiles a constraint in a child process, before vLLM compiles it where nothing can stop it.

A compilation of xgrammar cannot be interrupted: some schemas, expressions and grammars of a few bytes take minutes and
gigabytes, and some end the process. vLLM reads a constraint on the event loop of its server and compiles it in a thread
of its engine. Here a child does both first, with bounded CPU time and memory, and follows the compiled constraint for
some tokens: from its beginning, and from wherever an answer may come to (`everywhere`). What the child does not survive
is refused for a while; the rest costs the engine about the same again.

The children are forks of one process with xgrammar and the vocabulary, which says `READY` when it has both. It is a
spare of the replica where there is one (`deployments.engine.fork`): xgrammar imports torch. For each trial it is sent a
file with the constraint, and a socket where a child says `STARTED`, and `DONE` in the end. If the other side hangs up,
the child ends. Nothing is sent to the child there: the kernel would end it for that, too.

    python -m deployments.engine.trial FILE_DESCRIPTOR < SETTINGS
"""

import asyncio
import fcntl
import json
import math
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from operator import itemgetter
from re import _parser  # type: ignore[attr-defined, unused-ignore]
from threading import Timer
from typing import Any, TextIO

from deployments.engine.fork import Forked, run_in_spare

STEPS, STEPS_EVERYWHERE = 32, 4
"""Tokens that a trial follows from the beginning, where forced text in between does not count, and from each other
place."""

APART = 8
"""Elements of a sequence between two places from which it is followed."""

SHORT_S, NICENESS = 0.5, 10
"""What takes longer goes on at a low priority."""

AT_A_TIME = 8
"""Trials. Further ones wait."""

REFUSED_S = 600.0
"""The time for which a constraint stays refused. Then it is tried again: another version may compile it faster."""

REMEMBERED = 4096
"""Constraints whose verdict is known."""

READY, STARTED, DONE = b"+", b".", b"1"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a trial. CPU time is in whole seconds: `RLIMIT_CPU` has no others."""

    reading_s: int = 1
    """CPU time for reading a constraint. vLLM does that on the event loop that passes on all answers."""
    total_s: int = 10
    """CPU time for all of a trial (`trial_s`)."""
    following_s: int = 1
    """CPU time for following it from one place. All answers wait while the engine follows one."""
    bytes: int = 512 * 1024 * 1024
    """Memory, beside what the process has anyway."""
    elapsed_s: int = 120
    """Time, however busy the machine is."""


_TOKENS_PER_S, _LEAST_S = 5000, 2


def trial_s(tokens: int) -> int:
    """The CPU time of a trial for a vocabulary of so many tokens: what strings with five different `maxLength` take,
    the costliest of all that schemas commonly have. One of 300 properties takes a tenth."""
    return max(_LEAST_S, math.ceil(tokens / _TOKENS_PER_S))


class TooCostly(Exception):
    """A constraint cannot be compiled within the bounds."""


class Trials:
    """Tries constraints for one vocabulary. Its process starts with the first trial, or with `start`."""

    def __init__(self, vocabulary: str, *, any_whitespace: bool = True, bounds: Bounds = Bounds()) -> None:
        """`vocabulary`: xgrammar's `TokenizerInfo` as JSON. `any_whitespace`: in JSON, as vLLM is configured."""
        self._vocabulary, self._any_whitespace, self._bounds = vocabulary, any_whitespace, bounds
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._running: dict[bytes, _Trial] = {}
        self._places = asyncio.Semaphore(AT_A_TIME)
        self._process: TrialProcess | None = None
        self._control: socket.socket | None = None

    def start(self) -> "TrialProcess":
        """Starts the process, if it does not run. Does not wait for it."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            settings = (self._vocabulary, self._any_whitespace, self._bounds)
            self._process = run_in_spare(_serve, theirs, *settings) or _spawned(theirs, *settings)
        return self._process

    async def ready(self) -> bool:
        """Waits until the process, which may import for seconds, can try constraints. False if it has ended instead."""
        self.start()
        assert self._control is not None
        return await asyncio.to_thread(self._control.recv, 1) == READY

    def close(self) -> None:
        """Ends the process; trials that are under way end, too."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    async def check(self, kind: str, text: str) -> None:
        """Raises TooCostly if the constraint cannot be compiled within the bounds, RuntimeError if it cannot be tried.

        `kind` is one of `json`, `regex`, `grammar` and `structural_tag`. A constraint that xgrammar finds invalid
        passes: vLLM says what is wrong with it.
        """
        key = blake2b(f"{kind} {text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if (compiles := self._verdicts.get(key)) is None:
            compiles = await self._shared(key, kind, text)
            self._remember(key, compiles)
        if not compiles:
            raise TooCostly(
                f"it takes more than {self._bounds.total_s} s of CPU time or {self._bounds.bytes // 1024**2} MiB, "
                f"{self._bounds.reading_s} s to be read or {self._bounds.following_s} s to be followed"
            )

    def _remember(self, key: bytes, compiles: bool) -> None:
        if key not in self._verdicts and not compiles:
            asyncio.get_running_loop().call_later(REFUSED_S, self._verdicts.pop, key, None)
        self._verdicts[key] = compiles
        while len(self._verdicts) > REMEMBERED:
            self._verdicts.popitem(last=False)

    async def _shared(self, key: bytes, kind: str, text: str) -> bool:
        """The verdict of one trial for all requests that wait for it. The trial ends when none does."""
        if (trial := self._running.get(key)) is None:
            trial = self._running[key] = _Trial(asyncio.create_task(self._compiles(kind, text)))
        trial.waiting += 1
        try:
            return await asyncio.shield(trial.task)
        finally:
            trial.waiting -= 1
            if not trial.waiting:
                trial.task.cancel()
                del self._running[key]

    async def _compiles(self, kind: str, text: str) -> bool:
        async with self._places:
            for _ in range(2):
                process = self.start()
                if said := await self._said_by_child(json.dumps([kind, text])):
                    return said == STARTED + DONE
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, 10)  # it is ending
        raise RuntimeError("the process that tries constraints does not run")

    async def _said_by_child(self, constraint: str) -> bytes:
        """What it says until it ends; nothing if there was none."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs, os.fdopen(os.memfd_create("constraint"), "w") as file:
            file.write(constraint)
            file.flush()
            try:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno(), file.fileno()])
            except OSError:
                ours.close()
                return b""
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@dataclass(slots=True)
class _Trial:
    task: asyncio.Task[bool]
    waiting: int = 0
    """Requests."""


TrialProcess = Forked | subprocess.Popen[bytes]


def _spawned(control: socket.socket, vocabulary: str, any_whitespace: bool, bounds: Bounds) -> subprocess.Popen[bytes]:
    """A Python of its own that serves trials. It imports for seconds."""
    with tempfile.TemporaryFile("w+") as settings:
        json.dump([vocabulary, any_whitespace, asdict(bounds)], settings)
        settings.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(control.fileno())],
            stdin=settings,
            pass_fds=[control.fileno()],
            # One thread, so that it can be forked.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            start_new_session=True,  # an interrupt at the terminal is not for it: it ends with this process
        )


def _serve(control: socket.socket, vocabulary: str, any_whitespace: bool, bounds: Bounds) -> None:
    """Forks a child for each socket that arrives, until the other side of `control` is closed."""
    import llguidance  # noqa: F401  before the children need them
    import numpy as np
    import outlines_core  # noqa: F401
    import xgrammar

    tokens = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    longest = np.argsort([-len(token) for token in tokens.decoded_vocab], kind="stable")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child becomes a zombie
    control.sendall(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as connection, os.fdopen(descriptors[1]) as constraint:
            if os.fork() == 0:
                try:
                    control.close()
                    _try(connection, constraint, tokens, longest, any_whitespace, bounds)
                finally:
                    connection.close()  # the verdict does not wait until the memory is given back
                    os._exit(0)


def _try(
    connection: socket.socket, constraint: TextIO, tokens: Any, longest: Any, any_whitespace: bool, bounds: Bounds
) -> None:
    """Compiles a constraint and tells `connection`. The kernel ends this process where it leaves the bounds.

    `longest`: the tokens' numbers, the longest first.
    """
    import numpy as np
    import xgrammar

    os.setpgid(0, 0)
    Timer(SHORT_S, os.setpriority, (os.PRIO_PGRP, 0, NICENESS)).start()
    signal.alarm(bounds.elapsed_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_cpu_time(bounds.reading_s)
    _limit_memory(bounds.bytes)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C++ says why it ends
    # From now on, SIGIO ends this process when the other side hangs up.
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    connection.sendall(STARTED)  # fails if it has hung up
    constraint.seek(0)
    kind, text = json.load(constraint)
    try:
        grammar = _read_as_vllm(kind, text, any_whitespace)
    except Exception as error:  # noqa: BLE001  vLLM gets the same error, and says so
        if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
            connection.sendall(DONE)
        return
    # With its cache, the second compilation takes hardly any time.
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=8, cache_enabled=True)
    _limit_cpu_time(bounds.total_s)
    answer = TrialText(compiler.compile_grammar(grammar), np.arange(len(longest)))
    _follow(answer, bounds)
    _limit_cpu_time(bounds.total_s)
    augmented, first, places = everywhere(str(grammar))
    grammar = xgrammar.Grammar.from_ebnf(augmented, root_rule_name=first)
    if _is_cheap_everywhere(TrialText(compiler.compile_grammar(grammar), longest), places, bounds):
        connection.sendall(DONE)


def _follow(answer: "TrialText", bounds: Bounds) -> None:
    _limit_following(bounds)
    choose = random.Random(0)
    for _ in range(STEPS):
        answer.add_forced()
        if not answer.add(choose.choice):
            return


def _is_cheap_everywhere(answer: "TrialText", places: int, bounds: Bounds) -> bool:
    """Whether no place of `everywhere` takes too long."""
    for place in range(places):
        _limit_following(bounds)
        begin = time.process_time()
        answer.begin(f"{place};")
        for _ in range(STEPS_EVERYWHERE):
            if not answer.add(itemgetter(0)):  # the longest token
                break
        if time.process_time() - begin > bounds.following_s:
            return False
    return True


class TrialText:
    """Grows token by token, as an engine's answer does, and fits the constraint that is compiled."""

    def __init__(self, compiled: Any, order: Any) -> None:
        """`order`: all tokens' numbers."""
        from xgrammar import GrammarMatcher, allocate_token_bitmask

        self._matcher, self._order = GrammarMatcher(compiled), order
        self._bitmask = allocate_token_bitmask(1, len(order))

    def begin(self, text: str) -> None:
        """Begins anew."""
        self._matcher.reset()
        self._matcher.accept_string(text)

    def add_forced(self) -> None:
        """Adds the text that has no alternative, unless it ends within a character: then xgrammar cannot tell it."""
        if not self._matcher.is_terminated():
            with suppress(UnicodeDecodeError):
                self._matcher.accept_string(self._matcher.find_jump_forward_string())

    def add(self, choose: Callable[[Any], Any]) -> bool:
        """Adds one of the tokens that may come next, in their order. False if there is none: the text is complete, or
        no text satisfies the constraint (`app.engine.constraints` knows some of these).
        """
        import numpy as np

        if self._matcher.is_terminated():
            return False
        self._matcher.fill_next_token_bitmask(self._bitmask)
        bits = np.unpackbits(self._bitmask.numpy().view(np.uint8), bitorder="little")
        allowed = self._order[np.flatnonzero(bits[self._order])]
        return len(allowed) > 0 and self._matcher.accept_token(int(choose(allowed)))


def everywhere(grammar: str) -> tuple[str, str, int]:
    """A grammar whose texts begin at any place to which one of `grammar`'s may come, after the place's number: `3;`.
    Returns it, as xgrammar writes grammars, the name of its first rule, and how many places there are: the beginnings
    of all rules, and each eighth element of a sequence.

    A grammar is costly at once where many rules may begin. This finds such a place, however late an answer comes there.
    """
    new = "place"
    while new in grammar:
        new += "_"
    rules, places = [grammar], []
    for name, body in _RULE.findall(grammar):
        places.append(name)
        for sequence in _sequences(body):
            for start in range(APART, len(sequence), APART):
                part, place = sequence[start : start + APART], f"{new}{len(places)}"
                if start + APART < len(sequence):
                    part.append(f"{new}{len(places) + 1}")
                rules.append(f"{place} ::= {' '.join(part)}")
                places.append(place)
    choices = " | ".join(f'"{number};" {place}' for number, place in enumerate(places))
    return "\n".join([*rules, f"{new} ::= {choices}"]), new, len(places)


_RULE = re.compile(r"^(\S+) ::= (.+)$", re.MULTILINE)
_ELEMENT = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]\*?|[^\s()|"\[{]+(?:\{[^}]*\})?|[(|)]')


def _sequences(body: str) -> Iterator[list[str]]:
    """The elements of each sequence on a rule's right side."""
    sequence: list[str] = []
    if body.startswith("("):  # and not what only a structural tag has
        for element in _ELEMENT.findall(body):
            if element in "(|)":
                yield sequence
                sequence = []
            else:
                sequence.append(element)


def read(kind: str, text: str, any_whitespace: bool) -> Any:
    """The constraint as xgrammar's `Grammar`. Raises what xgrammar raises."""
    from xgrammar import Grammar, StructuralTagItem

    match kind:
        case "json":
            return Grammar.from_json_schema(text, any_whitespace=any_whitespace)
        case "regex":
            return Grammar.from_regex(text)
        case "grammar":
            return Grammar.from_ebnf(text)
    tag = json.loads(text)
    if "structures" not in tag:
        return Grammar.from_structural_tag(text)
    items = [
        StructuralTagItem(begin=item["begin"], schema=json.dumps(item["schema"]), end=item["end"])
        for item in tag["structures"]
    ]
    return Grammar.from_structural_tag(items, tag["triggers"])


def _read_as_vllm(kind: str, text: str, any_whitespace: bool) -> Any:
    """The constraint as xgrammar's `Grammar`. Raises what xgrammar raises. vLLM asks others about what it lacks."""
    try:
        grammar = read(kind, text, any_whitespace)
    except Exception as error:
        if "bad_alloc" not in str(error):
            with suppress(Exception):
                _read_by_others(kind, text)
        raise
    if kind == "json" and _LACKING.search(text):
        with suppress(Exception):
            _read_by_others(kind, text)
    return grammar


_LACKING = re.compile(
    r'"(?:multipleOf|uniqueItems|(?:min|max)?[cC]ontains|format|(?:min|max)Length|patternProperties|propertyNames)"'
)
"""Keywords of schemas for which vLLM may ask other libraries, too."""


def _read_by_others(kind: str, text: str) -> None:
    """As vLLM does on its event loop, where xgrammar lacks something. Raises what llguidance and outlines raise."""
    import llguidance
    from outlines_core import json_schema

    if kind == "json" and '"patternProperties"' in text:
        _parser.parse(json_schema.build_regex_from_schema(text))  # it doubles with each array in an array
        return
    if kind == "json":
        rules = llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": True})
    elif kind == "regex":
        rules = llguidance.grammar_from("regex", text)
    else:
        rules = llguidance.grammar_from("grammar", text)
    llguidance.LLMatcher.validate_grammar(rules, None)


def _limit_cpu_time(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limit_following(bounds: Bounds) -> None:
    """Limits the CPU time for following the constraint from one place."""
    _limit_cpu_time(min(math.ceil(time.process_time()) + bounds.following_s, bounds.total_s))


def _limit_memory(more: int) -> None:
    with open("/proc/self/statm") as pages:
        now = int(pages.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (now + more, resource.RLIM_INFINITY))


def main() -> None:
    """Serves trials on the socket whose file descriptor is the argument."""
    vocabulary, any_whitespace, bounds = json.load(sys.stdin)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _serve(control, vocabulary, any_whitespace, Bounds(**bounds))


if __name__ == "__main__":
    main()
