"""Runs programs for a test in one separate process, one after the other, since importing an SDK takes seconds. The
process reads programs as lines of JSON and answers each with a line: its output, or its traceback.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

_LOOP = """
import contextlib, io, json, sys, traceback
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "program", "exec"), {"__name__": "__main__"})
        answer = [True, printed.getvalue()]
    except BaseException:
        answer = [False, traceback.format_exc()]
    print(json.dumps(answer), flush=True)
"""


class ProgramFailed(Exception):
    """The program raised: the message is its traceback."""


class ProgramRunner:
    """The process."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin, self._stdout = stdin, stdout

    def run(self, code: str) -> str:
        """The program's output. Raises ProgramFailed."""
        self._stdin.write(f"{json.dumps(code)}\n")
        self._stdin.flush()
        ok, text = json.loads(self._stdout.readline())
        if not ok:
            raise ProgramFailed(text)
        return str(text)


@contextmanager
def program_runner() -> Iterator[ProgramRunner]:
    """A runner whose process ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield ProgramRunner(process.stdin, process.stdout)
        finally:
            process.stdin.close()
