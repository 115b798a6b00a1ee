"""Compiles a constraint in a child process, before vLLM compiles it where nothing can stop it.

A compilation of xgrammar cannot be interrupted: some schemas, expressions and grammars of a few bytes take minutes and
gigabytes, and some end the process. vLLM reads a constraint on the event loop of its server and compiles it in a thread
of its engine. Here a child does both first, with bounded CPU time and memory, and follows the compiled constraint for
some tokens. What the child does not survive is refused for a while; the rest costs the engine about the same again.

The children are forks of one small process with xgrammar and the vocabulary. It is sent a socket for each trial; a
child hears the constraint there, says `STARTED`, and `DONE` in the end. If the other side hangs up, the child ends.

    python -m deployments.engine.trial FILE_DESCRIPTOR < SETTINGS
"""

import asyncio
import fcntl
import json
import math
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from threading import Timer
from typing import Any

STEPS = 32
"""Tokens of the answer with which a trial ends. Forced text in between does not count."""

SHORT_S, NICENESS = 0.5, 10
"""What takes longer goes on at a low priority."""

AT_A_TIME = 8
"""Trials. Further ones wait."""

REFUSED_S = 600.0
"""The time for which a constraint stays refused. Then it is tried again: another version may compile it faster."""

REMEMBERED = 4096
"""Constraints whose verdict is known."""

STARTED, DONE = b".", b"1"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a trial. CPU time is in whole seconds: `RLIMIT_CPU` has no others."""

    reading_s: int = 1
    """CPU time for reading a constraint. vLLM does that on the event loop that passes on all answers."""
    compiling_s: int = 60
    """CPU time for reading and compiling it."""
    following_s: int = 1
    """CPU time for an answer's first `STEPS` tokens. All answers wait while the engine follows one."""
    bytes: int = 512 * 1024 * 1024
    """Memory, beside what the process has anyway."""
    elapsed_s: int = 600
    """Time, however busy the machine is."""


class TooCostly(Exception):
    """A constraint cannot be compiled within the bounds."""


class Trials:
    """Tries constraints for one vocabulary. Its process starts with the first trial, or with `start`."""

    def __init__(self, vocabulary: str, *, any_whitespace: bool = True, bounds: Bounds = Bounds()) -> None:
        """`vocabulary`: xgrammar's `TokenizerInfo` as JSON. `any_whitespace`: in JSON, as vLLM is configured."""
        self._settings = json.dumps([vocabulary, any_whitespace, asdict(bounds)]).encode()
        self._bounds = bounds
        self._verdicts: OrderedDict[bytes, bool] = OrderedDict()
        self._running: dict[bytes, _Trial] = {}
        self._places = asyncio.Semaphore(AT_A_TIME)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> "subprocess.Popen[bytes]":
        """Starts the process, if it does not run. Does not wait for it."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as settings:
            settings.write(self._settings)
            settings.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=settings,
                pass_fds=[theirs.fileno()],
                # One thread, so that it can be forked.
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "OMP_NUM_THREADS": "1",
                    "OPENBLAS_NUM_THREADS": "1",
                },
                start_new_session=True,  # an interrupt at the terminal is not for it: it ends with this process
            )
        return self._process

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
                f"it takes more than {self._bounds.compiling_s} s of CPU time or {self._bounds.bytes // 1024**2} MiB, "
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
                if said := await self._said_by_child(json.dumps([kind, text]).encode()):
                    return said == STARTED + DONE
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, 10)  # it is ending
        raise RuntimeError("the process that tries constraints does not run")

    async def _said_by_child(self, constraint: bytes) -> bytes:
        """What it says until it ends; nothing if there was none."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
            except OSError:
                ours.close()
                return b""
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(constraint)
            writer.write_eof()
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


def _serve(control: socket.socket, vocabulary: str, any_whitespace: bool, bounds: Bounds) -> None:
    """Forks a child for each socket that arrives, until the other side of `control` is closed."""
    import xgrammar

    tokens = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child becomes a zombie
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                try:
                    control.close()
                    _try(connection, tokens, any_whitespace, bounds)
                finally:
                    connection.close()  # the verdict does not wait until the memory is given back
                    os._exit(0)


def _try(connection: socket.socket, tokens: Any, any_whitespace: bool, bounds: Bounds) -> None:
    """Compiles the constraint that `connection` sends. The kernel ends this process where it leaves the bounds."""
    import xgrammar

    os.setpgid(0, 0)
    Timer(SHORT_S, os.setpriority, (os.PRIO_PGRP, 0, NICENESS)).start()
    signal.alarm(bounds.elapsed_s)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_cpu_time(bounds.reading_s)
    _limit_memory(bounds.bytes)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C++ says why it ends
    with connection.makefile("rb") as constraint:
        kind, text = json.load(constraint)
    connection.sendall(STARTED)
    # From now on, SIGIO ends this process when the other side hangs up.
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        grammar = _read(kind, text, any_whitespace)
    except Exception as error:  # noqa: BLE001  vLLM gets the same error, and says so
        if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
            connection.sendall(DONE)
        return
    _limit_cpu_time(bounds.compiling_s)
    compiled = xgrammar.GrammarCompiler(tokens, max_threads=8, cache_enabled=False).compile_grammar(grammar)
    _limit_cpu_time(math.ceil(time.process_time()) + bounds.following_s)
    _follow(compiled, tokens.vocab_size)
    connection.sendall(DONE)


def _follow(compiled: Any, vocabulary_size: int) -> None:
    """Makes the beginning of an answer, as an engine does."""
    import numpy as np
    from xgrammar import GrammarMatcher, allocate_token_bitmask

    matcher, bitmask = GrammarMatcher(compiled), allocate_token_bitmask(1, vocabulary_size)
    choose = random.Random(0)
    for _ in range(STEPS):
        if matcher.is_terminated():
            return
        matcher.accept_string(matcher.find_jump_forward_string())
        matcher.fill_next_token_bitmask(bitmask)
        allowed = np.flatnonzero(np.unpackbits(bitmask.numpy().view(np.uint8), bitorder="little")[:vocabulary_size])
        if not len(allowed):  # no text satisfies it: `app.engine.constraints` knows some of these
            return
        matcher.accept_token(int(allowed[choose.randrange(len(allowed))]))


def _read(kind: str, text: str, any_whitespace: bool) -> Any:
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


def _limit_cpu_time(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


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
