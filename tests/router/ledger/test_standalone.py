"""`switchyard router` with an experiment: the controller runs in its process and leaves every request on disk."""

import gzip
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.experiments.api import REPORT_S
from app.experiments.recordings import read
from app.experiments.storage.columns import Exposures, Tables
from app.experiments.storage.directory import history
from app.experiments.storage.gaps import Gaps
from app.experiments.storage.journal import read_entries
from app.experiments.storage.store import LocalStore
from app.experiments.storage.write_ahead import FOLDER, waiting
from app.internal_api import LEDGER_VARIABLE
from app.server.standalone import SEND_EVERY_S
from deployments.cli.experiments_client import open_directory
from tests.support.engine.fake_engine import FakeEngine
from tests.support.experiments.life import Said
from tests.support.processes.project import ROOT
from tests.support.processes.standalone_router import standalone_router
from tests.support.waiting import wait_until

SECRET_WORDS = "a horse and a saddle"
USER = "anna.schmidt@example.com"


@pytest.fixture
def url(engines: tuple[dict[str, FakeEngine], str]) -> str:
    """Where the engines are, as if they had not answered before."""
    fakes, url = engines
    for fake in fakes.values():
        fake.reset()
    return url


def ask(url: str, requests: int, user: str = USER) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": SECRET_WORDS}], "user": user}
    for _ in range(requests):
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200


def test_every_request_is_one_row_over_two_lives_of_the_process(url: str, tmp_path: Path) -> None:
    logs = ""
    for requests in (7, 5):
        with standalone_router(experiment(url), tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
            ask(router.url, requests)
        logs += router.log.read_text()
    directory = tmp_path / ".run/ledger"
    store = LocalStore(directory)
    exposures = Exposures.concat(list(history(store, 0.0, Tables(), {}, Gaps())))
    assert (len(exposures.rows), len(exposures.starts)) == (12, 12)
    assert len(set(exposures.rows.unit.tolist())) == 1  # the same user after the restart
    kinds = [entry.kind for entry in read_entries(store)]
    assert (kinds.count("run_begun"), kinds.count("controller_started")) == (1, 2)
    kept = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    for private in (SECRET_WORDS, USER, "Hello"):
        assert private.encode() not in kept
        assert private not in logs


def experiment(url: str) -> dict[str, Any]:
    section = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "duration", "minimal_effect": 0.05}],
    }
    return {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}, "sticky": {"by": "user"}}},
        "deployments": {name: {"url": f"{url}/{name}", "model": name, "tasks": ["chat"]} for name in ("blue", "green")},
        "experiments": {"trial": section},
    }


def ahead(directory: Path) -> int:
    """The rows on disk that are in no segment yet."""
    return sum(len(left.batch.rows) for process in waiting(directory) for left in process.batches)


def test_a_killed_process_loses_no_request_that_was_on_disk_and_counts_none_twice(url: str, tmp_path: Path) -> None:
    """On disk within a second: the router is the only one that knows them."""
    directory, asked = tmp_path / ".run/ledger", 0
    for requests in (7, 5):  # the second process is killed before it has stored what the first one left
        with standalone_router(experiment(url), tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
            ask(router.url, requests)
            asked += requests
            wait_until(lambda: ahead(directory) == asked, lambda: ahead(directory))  # noqa: B023
            router.process.kill()
            router.process.wait(60)
    assert not list(history(LocalStore(directory), 0.0, Tables(), {}, Gaps())), "no segment has been written"
    with standalone_router(experiment(url), tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
        ask(router.url, 3)
    exposures = Exposures.concat(list(history(LocalStore(directory), 0.0, Tables(), {}, Gaps())))
    assert (len(exposures.rows), len(exposures.starts), len(set(exposures.rows.request.tolist()))) == (15, 15, 15)
    assert ahead(directory) == 0
    assert not list((directory / FOLDER).iterdir())


def test_a_report_of_a_time_before_a_kill_says_what_was_shown_then(url: str, tmp_path: Path) -> None:
    """Word for word, while requests go on, and however soon after the answer the process is killed."""
    directory = tmp_path / ".run/ledger"
    shown: list[tuple[dict[str, Any], str]] = []
    for _ in range(4):
        with standalone_router(experiment(url), tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
            asking = threading.Thread(target=_ask_until_it_ends, args=[router.url])
            asking.start()
            for _ in range(4):
                time.sleep(REPORT_S)
                before = report(router.url, "json")
                text, after = report(router.url, "text"), report(router.url, "json")
                if before == after:  # the text is of the same moment
                    shown.append((json.loads(after), text))
            router.process.kill()
            router.process.wait(60)
            asking.join()
    assert len(shown) > 8
    assert sum(shown[-1][0]["requests"].values()) > sum(shown[0][0]["requests"].values()) > 0
    for then, text in shown:
        ledger = open_directory(str(directory), at=then["at"])
        again = [ledger.ask("GET", "/experiments/trial/report", {"format": form}) for form in ("json", "text")]
        assert again[1].decode() == text
        assert Said(text, json.loads(again[0])) == Said(text, then)


def _ask_until_it_ends(url: str) -> None:
    with suppress(httpx.HTTPError, AssertionError):
        for number in count():
            ask(url, 1, f"user-{number % 70}")


def report(url: str, form: str) -> str:
    return httpx.get(f"{url}/api/experiments/trial/report", params={"format": form}).text


def test_exposures_are_on_disk_within_a_second() -> None:
    """A request may end just after a batch was sealed, and the next one takes as long to be written, at most."""
    assert 2 * SEND_EVERY_S <= 1


def modes(directory: Path) -> tuple[set[int], set[int]]:
    """The modes of the directory with all folders below it, and of all files."""
    paths = [directory, *directory.rglob("*")]
    folders, files = ([path for path in paths if path.is_dir() is wanted] for wanted in (True, False))
    return {folder.stat().st_mode & 0o777 for folder in folders}, {file.stat().st_mode & 0o777 for file in files}


PRIVATE = ({0o700}, {0o600})


def test_only_the_owner_may_read_what_was_recorded_whatever_the_umask(url: str, tmp_path: Path) -> None:
    """Prompts among it: with all that the ledger writes, and with what an earlier version left readable."""
    directory = tmp_path / ".run/ledger"
    old = directory / "recordings/date=2026-01-01/old.jsonl.gz"
    old.parent.mkdir(0o755, parents=True)
    old.write_bytes(gzip.compress(b""))
    old.chmod(0o644)
    document = experiment(url)
    shadow, full = {"deployment": "green", "percent": 100}, {"text": "full"}
    document["endpoints"]["chat"] |= {"mirror": shadow, "record": full, "ledger": "always"}
    with standalone_router(document, tmp_path, 0, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
        ask(router.url, 3)
        wait_until(lambda: ahead(directory) == 3)
        assert modes(directory) == PRIVATE
    assert {path.name for path in directory.iterdir()} >= {"exposures", "journal", "recordings", "pairs", FOLDER}
    assert modes(directory) == PRIVATE
    for form, more in (("csv", ()), ("vllm-bench", ("--endpoint", "chat"))):
        output = tmp_path / f"export.{form}"
        output.touch()
        output.chmod(0o644)
        command = [sys.executable, "-m", "deployments", "experiments", "export", "--ledger", str(directory)]
        subprocess.run(
            [*command, "--format", form, *more, "--output", str(output)], cwd=ROOT, check=True, umask=0, timeout=60
        )
        assert output.stat().st_size
        assert output.stat().st_mode & 0o777 == 0o600


def test_recordings_alone_start_the_controller_and_the_last_ones_are_written_at_the_end(
    url: str, tmp_path: Path
) -> None:
    record = {"text": "full", "redact": ["horse"]}
    document = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}, "record": record}},
        "deployments": {"blue": {"url": f"{url}/blue", "model": "blue", "tasks": ["chat"]}},
    }
    with standalone_router(document, tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
        ask(router.url, 3)
    requests = read(str(tmp_path / ".run/ledger"), tmp_path)
    text = SECRET_WORDS.replace("horse", "[redacted]")
    assert [recorded.body and recorded.body["messages"] for recorded in requests] == [
        [{"role": "user", "content": text}]
    ] * 3
    kept = b"".join(path.read_bytes() for path in (tmp_path / ".run/ledger").rglob("*") if path.is_file())
    assert USER.encode() not in kept
