"""The errors of `switchyard experiments replay` about a recording, before it calls a server."""

from pathlib import Path

import pytest

from app.request_recordings.recorder import encoder
from deployments.cli.main import main
from deployments.cli.options import ExitCode
from tests.unit.app.experiments.replay.test_traces import request_requests

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("endpoints", "task", "arguments", "code", "says"),
    [
        (["chat", "other"], "chat", [], ExitCode.USAGE, "several endpoints; name one: --endpoint chat"),
        (["chat"], "sing", [], ExitCode.WRONG, "requests of 'sing', which this version cannot replay"),
        (["chat"], "chat", ["--endpoint", "other"], ExitCode.WRONG, "no requests of 'other'; it has chat"),
        (["chat"], "chat", [], ExitCode.UNREACHABLE, f"{NOBODY} cannot be reached"),
        ([], "chat", [], ExitCode.WRONG, "holds no recorded requests; an endpoint with `record` has some"),
    ],
    ids=["several endpoints", "an unknown task", "no such endpoint", "no server", "nothing recorded"],
)
def test_errors_are_one_line_with_the_fix(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    endpoints: list[str],
    task: str,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    file = tmp_path / "it.jsonl"
    file.write_bytes(
        b"".join(encoder.encode(request_requests(task, endpoint=endpoint)) + b"\n" for endpoint in endpoints)
    )
    command = ["experiments", "replay", str(file), "--arms", "blue,green", "--url", NOBODY, *arguments]
    assert main(command) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1
