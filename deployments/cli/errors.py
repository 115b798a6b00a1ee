from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `switchyard`, documented in its `--help`."""

    OK = 0
    WRONG = 1
    USAGE = 2
    UNREACHABLE = 3
    DENIED = 4


class CommandError(Exception):
    """A command cannot be carried out. The message names the problem and the fix."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.WRONG) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
