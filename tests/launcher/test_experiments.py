"""The controller of experiments as Serve runs it: the routers' records end up in the ledger's directory."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from starlette.applications import Starlette
from starlette.routing import Mount

from app.experiments.storage.columns import Exposures, Tables
from app.experiments.storage.directory import history
from app.experiments.storage.gaps import Gaps
from app.experiments.storage.journal import read_entries
from app.experiments.storage.store import LocalStore
from deployments.local import processes
from deployments.local.environment import TOKEN
from tests.support.engine.fake_engine import FakeEngine
from tests.support.processes.launcher import Launcher, launched
from tests.support.processes.servers import serve
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(700)]

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


@dataclass(frozen=True)
class Cluster:
    """A Serve application of two routers and the controller."""

    launcher: Launcher

    @property
    def ledger(self) -> LocalStore:
        return LocalStore(self.launcher.directory / ".run/ledger")

    def starts(self) -> int:
        """The number of controllers that have started, according to the journal on disk."""
        return [entry.kind for entry in read_entries(self.ledger)].count("controller_started")

    def ask(self, requests: int) -> None:
        """Sends chat requests, each on its own connection, so that both routers get some."""
        for user in range(requests):
            answer = httpx.post(
                f"{self.launcher.url}/v1/chat/completions", json={**CHAT, "user": f"user-{user}"}, timeout=30
            )
            assert answer.status_code == 200

    def counted(self) -> int:
        """The number of requests in the controller's report; -1 while it does not answer."""
        answer = httpx.get(f"{self.launcher.url}/api/experiments/trial/report", timeout=40)
        return sum(answer.json()["requests"].values()) if answer.status_code == 200 else -1

    def controller(self) -> set[int]:
        """The process ids of its replicas."""
        run = processes.record(self.launcher.directory)
        assert run is not None
        headers = {"authorization": f"Bearer {(Path(run.directory) / TOKEN).read_text()}"}
        status: Any = httpx.get(f"{run.dashboard}/api/serve/applications/", headers=headers).json()
        replicas = status["applications"]["experiments"]["deployments"]["Experiments"]["replicas"]
        return {replica["pid"] for replica in replicas if replica["state"] == "RUNNING"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("experiments")
    config = directory / "serve_config.yaml"
    fakes = Starlette(routes=[Mount(f"/{name}", FakeEngine().app) for name in ("blue", "green")])
    with serve(fakes) as url:
        user_config = {
            "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 50, "green": 50}}},
            "deployments": {
                name: {"url": f"{url}/{name}", "model": name, "tasks": ["chat"]} for name in ("blue", "green")
            },
            "experiments": {
                "trial": {
                    "endpoint": "chat",
                    "control": "blue",
                    "treatments": ["green"],
                    "primary": [{"metric": "duration", "minimal_effect": 0.05}],
                }
            },
        }
        router = {
            "name": "router",
            "route_prefix": "/",
            "import_path": "deployments.router:build",
            "deployments": [{"name": "Router", "num_replicas": 2, "user_config": user_config}],
        }
        experiments = {
            "name": "experiments",
            "route_prefix": "/deployments/experiments",
            "import_path": "deployments.experiments:build",
        }
        config.write_text(yaml.safe_dump({"applications": [router, experiments]}))
        with launched(config, directory, {}) as launcher:
            yield Cluster(launcher)


def until(condition: Callable[[], bool]) -> None:
    wait_until(condition, within_s=120)


def test_nothing_is_lost_when_the_controller_is_killed(cluster: Cluster) -> None:
    cluster.ask(30)
    until(lambda: cluster.counted() == 30)
    (killed,) = cluster.controller()
    os.kill(killed, signal.SIGKILL)
    cluster.ask(20)
    until(lambda: bool(cluster.controller() - {killed}))
    until(lambda: cluster.counted() == 50)
    until(lambda: cluster.starts() == 2)  # the next test kills this one, too


def test_a_temporary_plan_ends_even_if_the_controller_died_meanwhile_and_the_history_shows_it(
    cluster: Cluster,
) -> None:
    url = f"{cluster.launcher.url}/api/endpoints/chat/traffic"

    def present() -> dict[str, Any]:
        plan: dict[str, Any] = httpx.get(url, timeout=40).json()
        return plan

    until(lambda: present()["delivery"] == "settled")
    document = {"weights": {"green": 100}, "ttl_s": 5, "reason": "a try"}
    made = httpx.put(url, json=document, headers={"if-match": f'"{present()["plan"]}"'}, timeout=40)
    assert made.status_code == 200, made.text
    assert (made.json()["generation"], made.json()["expires"]["restores"]["generation"]) == (1, 0)
    (killed,) = cluster.controller()
    os.kill(killed, signal.SIGKILL)
    until(lambda: present()["generation"] == 2)
    until(lambda: bool(cluster.controller() - {killed}))
    assert present()["weights"] == {"blue": 50, "green": 50}
    until(lambda: httpx.get(f"{url}/history", timeout=40).status_code == 200)
    until(lambda: httpx.get(f"{url}/history", timeout=40).json()["plans"][0]["generation"] == 2)
    plans = httpx.get(f"{url}/history", timeout=40).json()["plans"]
    assert plans[0]["reason"] == "generation 1 was temporary: generation 0 again"
    assert plans[-1]["generation"] == 0
    until(lambda: cluster.counted() == 50)  # routers have sent the killed one's batches again


def test_strangers_cannot_reach_the_controller(cluster: Cluster) -> None:
    url = f"{cluster.launcher.url}/deployments/experiments"
    assert httpx.post(f"{url}/batches", content=b"").status_code == 401
    assert httpx.get(f"{url}/api/experiments").status_code == 401


def test_when_it_stops_every_request_is_one_row_on_disk(cluster: Cluster) -> None:
    """Must run after all others but one: it ends the application that they share."""
    cluster.launcher.process.send_signal(signal.SIGINT)
    assert cluster.launcher.process.wait(timeout=120) == 0
    exposures = Exposures.concat(list(history(cluster.ledger, 0.0, Tables(), {}, Gaps())))
    for columns in (exposures.rows, exposures.starts):
        assert len(columns) == 50
        assert len(set(zip(columns.router.tolist(), columns.seq.tolist(), strict=True))) == 50
    assert [entry.kind for entry in read_entries(cluster.ledger)].count("run_begun") == 1
    assert cluster.starts() == 3


def test_another_start_on_the_same_ledger_says_that_it_goes_on_with_the_run(cluster: Cluster) -> None:
    directory = cluster.launcher.directory
    with launched(directory / "serve_config.yaml", directory, {}):
        said = "The experiment trial continues its run of "
        until(lambda: said in (directory / "terminal").read_text())
    assert [entry.kind for entry in read_entries(cluster.ledger)].count("run_begun") == 1
