"""`switchyard router` with an experiment: the controller runs in its process and leaves every request on disk."""

from pathlib import Path

import httpx

from app.experiments.columns import Exposures, Tables
from app.experiments.recordings.reading import read
from app.experiments.storage import journal, reading
from app.experiments.storage.store import LocalStore
from app.internal_api import LEDGER_VARIABLE
from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.standalone_router import standalone_router

SECRET_WORDS = "a horse and a saddle"
USER = "anna.schmidt@example.com"


def ask(url: str, requests: int) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": SECRET_WORDS}], "user": USER}
    for _ in range(requests):
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 200


def test_every_request_is_one_row_over_two_lives_of_the_process(
    engines: tuple[dict[str, FakeEngine], str], tmp_path: Path
) -> None:
    fakes, url = engines
    fakes["blue"].reset()
    fakes["green"].reset()
    section = {
        "endpoint": "chat",
        "control": "blue",
        "treatments": ["green"],
        "primary": [{"metric": "duration", "minimal_effect": 0.05}],
    }
    document = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}, "sticky": {"by": "user"}}},
        "deployments": {name: {"url": f"{url}/{name}", "model": name, "tasks": ["chat"]} for name in ("blue", "green")},
        "experiments": {"trial": section},
    }
    logs = ""
    for requests in (7, 5):
        with standalone_router(document, tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
            ask(router.url, requests)
        logs += router.log.read_text()
    directory = tmp_path / ".run/ledger"
    store = LocalStore(directory)
    found = Exposures.concat(list(reading.history(store, 0.0, Tables(), {})))
    assert (len(found.rows), len(found.starts)) == (12, 12)
    assert len(set(found.rows.unit.tolist())) == 1  # the same user after the restart
    kinds = [entry.kind for entry in journal.read(store)]
    assert (kinds.count("run_begun"), kinds.count("controller_started")) == (1, 2)
    kept = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    for private in (SECRET_WORDS, USER, "Hello"):
        assert private.encode() not in kept
        assert private not in logs


def test_recordings_alone_start_the_controller_and_the_last_ones_are_written_at_the_end(
    engines: tuple[dict[str, FakeEngine], str], tmp_path: Path
) -> None:
    fakes, url = engines
    fakes["blue"].reset()
    record = {"text": "full", "redact": ["horse"]}
    document = {
        "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 100}, "record": record}},
        "deployments": {"blue": {"url": f"{url}/blue", "model": "blue", "tasks": ["chat"]}},
    }
    with standalone_router(document, tmp_path, **{LEDGER_VARIABLE: str(tmp_path)}) as router:
        ask(router.url, 3)
    found = read(str(tmp_path / ".run/ledger"), tmp_path)
    text = SECRET_WORDS.replace("horse", "[redacted]")
    assert [it.body and it.body["messages"] for it in found] == [[{"role": "user", "content": text}]] * 3
    kept = b"".join(path.read_bytes() for path in (tmp_path / ".run/ledger").rglob("*") if path.is_file())
    assert USER.encode() not in kept
