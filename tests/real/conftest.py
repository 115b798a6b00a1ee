"""The real application, once for the whole run: Ray Serve, HAProxy, vLLM engines with real weights, the router.

With `pytest -n`, the process that distributes the tests starts it, and the workers share it: engines answer several
tests at once in hardly more time than one. Tests that change its configuration, or count its engines' work, are in
`alone` and run while no other test does.
"""

import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import psutil
import pytest
import yaml
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from app.internal_api import INTERNAL_KEY_HEADER, INTERNAL_KEY_VARIABLE
from app.internal_keys import Purpose, derived
from deployments.local import processes as run_processes
from tests.support.processes.launcher import deliver, launched
from tests.support.processes.project import ROOT
from tests.support.processes.turns import turn
from tests.support.waiting import wait_until

_HERE = Path(__file__).parent
_ALONE = _HERE / "alone"
SHARED = "SWITCHYARD_TEST_APPLICATION"
"""Names the directory by which workers find the application."""


class Address(msgspec.Struct, frozen=True):
    """Where an application runs, as its users need it."""

    url: str
    internal_key: str
    directory: str


@dataclass(frozen=True)
class Application:
    """A running application: its URL, the OpenAI SDK on it (untyped: its overloads want literal types), the key to
    the models behind the router, and the launcher's run directory."""

    url: str
    sdk: Any
    internal_key: str
    directory: Path

    def engine_metric(self, deployment: str, *names: str) -> float:
        """The sum of one of vLLM's own metrics, or of several."""
        headers = {INTERNAL_KEY_HEADER: self.internal_key}
        text = httpx.get(f"{self.url}/deployments/{deployment}/metrics", headers=headers).raise_for_status().text
        beginnings = tuple(name + end for name in names for end in "{ ")
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(beginnings))

    def running(self, deployment: str) -> float:
        """The number of requests that the engine works on or has in its queue."""
        return self.engine_metric(deployment, "vllm:num_requests_running", "vllm:num_requests_waiting")


@contextmanager
def _running(directory: Path) -> Iterator[Address]:
    """An application that is started and stopped with the users' commands."""
    key = secrets.token_urlsafe(16)
    with launched(ROOT / "serve_config.yaml", directory, {INTERNAL_KEY_VARIABLE: key}) as launcher:
        yield Address(launcher.url, derived(key, Purpose.ENGINE), str(directory))
        engines = {pid for pid in run_processes.processes_of(launcher.run_id) if b"EngineCore" in _name(pid)}
        assert engines, "`stop` must find the engines by the run's marker"
        [template] = {psutil.Process(psutil.Process(pid).ppid()).ppid() for pid in engines}
        assert b"--template" in _name(template), "engines are copies, as their replicas are, of one process"
        launcher.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        launcher.process.send_signal(signal.SIGTERM)  # a second signal changes nothing
        assert launcher.process.wait(120) == 0
        launcher.assert_nothing_is_left()
        assert not (launcher.directory / "local.json").exists()


def _name(pid: int) -> bytes:
    """Its command line; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


class _SharedApplication:
    """Runs an application during the tests, in a thread of the process that distributes them."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="switchyard-"))
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Raises the error, if the application has failed since its start."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with _running(self.directory) as address:
                self._publish("address", msgspec.json.encode(address))
                self._over.wait()
        except BaseException as error:  # noqa: BLE001  workers wait for one or the other
            self._failure = error
            self._publish("failure", str(error).encode())

    def _publish(self, name: str, content: bytes) -> None:
        written = self.directory / f".{name}"
        written.write_bytes(content)
        written.rename(self.directory / name)


_started: list[_SharedApplication] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """In the process that hands out tests to workers."""
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        _started.append(_SharedApplication())
        os.environ[SHARED] = str(_started[0].directory)


def pytest_sessionfinish() -> None:
    """A failure here fails the run."""
    while _started:
        _started.pop().stop()


_LONGEST = ("test_friendli.py", "test_databricks.py", "test_logits.py", "test_openai.py", "test_tgi.py")
"""The longest of the files that share the application: they come first, so that no worker is left with one at the
end."""


class _Groups(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Gives workers whole files, and one of them all files whose tests run alone."""

    def _split_scope(self, nodeid: str) -> str:
        file = ROOT / nodeid.partition("::")[0]
        return str(_ALONE if file.is_relative_to(_ALONE) else file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Groups:
    return _Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order: tests that run alone, since they wait more than they compute; beside them the files that need no
    application, or start one; last the files that share the application.
    """
    others = list(dict.fromkeys(item.path for item in items if not item.path.is_relative_to(_HERE)))
    starting = [path for path in others if path.parent.name == "launcher"]
    others = [path for path in others if path not in starting]
    place = {path: float(number) for number, path in enumerate(others)}
    # The start of an application takes all cores: not all at once.
    place |= {path: number * len(others) / len(starting) - 0.75 for number, path in enumerate(starting)}
    longest = {name: number for number, name in enumerate(_LONGEST, start=len(others))}

    def key(item: pytest.Item) -> float:
        if _is_alone(item):
            return -0.5
        return place.get(item.path, longest.get(item.path.name, len(others) + len(_LONGEST)))

    items.sort(key=key)


def _is_alone(item: pytest.Item) -> bool:
    return item.path.is_relative_to(_ALONE)


_turn: list[AbstractContextManager[None]] = []
"""The application of this process."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Waits until the test may run; its timeout starts then. Tests that run alone one after another have one turn
    together, since their fixtures last longer than a test."""
    shared, alone = os.environ.get(SHARED), _is_alone(item)
    if shared is not None and not _turn and item.path.is_relative_to(_HERE):  # pytest calls this for other folders, too
        _shared_address(Path(shared))
        _turn.append(turn(Path(shared), alone=alone))
        _turn[0].__enter__()
    try:
        return (yield)
    finally:
        keeps = alone and nextitem is not None and _is_alone(nextitem)
        if _turn and not keeps:
            _turn.pop().__exit__(None, None, None)


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The shared application, or one of this process."""
    with ExitStack() as stack:
        if (shared := os.environ.get(SHARED)) is not None:
            address = _shared_address(Path(shared))
        else:
            address = stack.enter_context(_running(tmp_path_factory.mktemp("run")))
        sdk = openai.OpenAI(base_url=f"{address.url}/v1", api_key="unused", max_retries=0, timeout=120)
        with sdk:
            yield Application(address.url, sdk, address.internal_key, Path(address.directory))


def _shared_address(directory: Path) -> Address:
    """Waits until the application is ready. Fails if it could not start."""
    while not (directory / "address").exists():
        if (directory / "failure").exists():
            pytest.exit(f"The application did not start: {(directory / 'failure').read_text()}")
        time.sleep(0.2)
    return msgspec.json.decode((directory / "address").read_bytes(), type=Address)


def at_once(*requests: Callable[[], Any]) -> list[Any]:
    """The answers to these requests, sent at the same time: a step of the engine takes hardly longer for many sequences
    than for one."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: request(), requests))


@contextmanager
def reconfigured(application: Application, file: Path, changed: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """The application with the router's `user_config` as `changed` leaves it, delivered as `file`. Its own is restored
    afterwards."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    router = next(app for app in document["applications"] if app["name"] == "router")
    changed(router["deployments"][0]["user_config"])
    file.write_text(yaml.safe_dump(document))
    deliver(file, application.directory)
    try:
        yield
    finally:
        restore(application)


def restore(application: Application) -> None:
    """Restores the application's own configuration on every router."""
    deliver(ROOT / "serve_config.yaml", application.directory)
    wait_until(lambda: settled(application), within_s=120)


def settled(application: Application) -> bool:
    """Whether every router has the latest configuration."""
    answer = httpx.get(f"{application.url}/api/2.0/serving-endpoints/chat", timeout=30)
    return answer.status_code == 200 and answer.json()["state"]["config_update"] == "NOT_UPDATING"
