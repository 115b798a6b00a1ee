"""An application that can lose parts: two routers, two replicas of a small model."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from app.internal_api import INTERNAL_KEY_VARIABLE
from benchmarks.serving import engine
from deployments.local import processes as run_processes
from deployments.local.environment import TOKEN
from deployments.weights.cache import default_cache, prepare_tiny
from tests.support.ingress.haproxy import current_connections
from tests.support.processes.launcher import Launcher, launched
from tests.support.processes.load import Traffic, lanes
from tests.support.waiting import wait_until

ENGINE, REPLICA = "VLLM::EngineCore", "ray::ServeReplica:tiny:Engine"
TEMPLATE = "deployments.engine --template"
ROUTER, PROXY = "ray::ServeReplica:router:Router", "/bin/haproxy"
KEY = "key"
FIRST_BYTE_S = 15
HAND_OVER_AFTER_S = 2
NOTHING: Mapping[str, Any] = {}
BACK_WITHIN_S = 120


@dataclass
class Cluster:
    """The running application. `document` is its serve_config.yaml without a test's temporary changes."""

    launcher: Launcher
    document: dict[str, Any]

    @property
    def url(self) -> str:
        """Its base URL."""
        return self.launcher.url

    def processes(self, title: str) -> list[psutil.Process]:
        """The application's processes with this title, the oldest first."""
        found = []
        for pid in run_processes.processes_of(self.launcher.run_id):
            try:
                process = psutil.Process(pid)
                if title in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return sorted(found, key=lambda process: process.create_time())

    def kill(self, title: str) -> None:
        """SIGKILL to one process; fails unless it is gone."""
        victim, *_ = self.processes(title)
        victim.kill()
        assert victim.wait(5) is not None or not victim.is_running()

    def whole_again(self, *, routers: int = 2, engines: int = 2) -> None:
        """Waits until no part is missing. Fails if that takes too long."""
        expected = {ENGINE: engines, REPLICA: engines, ROUTER: routers}
        wait_until_back(lambda: {title: len(self.processes(title)) for title in expected} == expected, self.state)
        wait_until_back(lambda: len(self.processes(PROXY)) > 0, self.state)  # an older one may finish its streams
        wait_until_back(lambda: self.state() == {"router": "RUNNING", "tiny": "RUNNING"}, self.state)

    def connections(self) -> int:
        """The number of connections that the newest HAProxy has."""
        run = run_processes.record(self.launcher.directory)
        assert run is not None
        (admin,) = Path(run.directory).glob("*/admin.sock")  # in the directory of its node
        return current_connections(admin)

    def answers(self) -> bool:
        """Whether the router can be reached."""
        try:
            return httpx.get(f"{self.url}/health", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def metrics(self) -> dict[str, float]:
        """The metrics of one router."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        samples = (line.rpartition(" ") for line in lines if line.startswith("switchyard_"))
        return {name: float(value) for name, _, value in samples}

    def state(self) -> dict[str, str]:
        """Serve's statuses of the applications."""
        return {name: application["status"] for name, application in self.rest("GET").json()["applications"].items()}

    def change(self, *, engine: Mapping[str, Any] = NOTHING, args: Mapping[str, Any] = NOTHING, **router: Any) -> None:
        """Deploys the configuration with changed fields: of the router's, of the engine's deployment, of its `args`.

        Other arguments are another version: Serve replaces the engine's replicas one by one.
        """
        changed = copy.deepcopy(self.document)
        routers, engines = changed["applications"]
        routers["deployments"][0]["user_config"] |= router
        engines["deployments"][0] |= engine
        engines["args"] |= args
        self.rest("PUT", json=changed)

    def rest(self, method: str, **content: Any) -> httpx.Response:
        """Serve's REST API."""
        run = run_processes.record(self.launcher.directory)
        assert run is not None
        headers = {"authorization": f"Bearer {(Path(run.directory) / TOKEN).read_text()}"}
        url = f"{run.dashboard}/api/serve/applications/"
        return httpx.request(method, url, headers=headers, timeout=30, **content).raise_for_status()


def wait_until_back(condition: Callable[[], bool], state: Callable[[], object]) -> None:
    wait_until(condition, state, within_s=BACK_WITHIN_S)


def document() -> dict[str, Any]:
    """serve_config.yaml of the cluster."""
    user_config = {
        "endpoints": {"chat": {"tasks": ["chat", "completions", "responses"], "traffic": {"tiny": 100}}},
        "deployments": {"tiny": {"app": "tiny", "model": "tiny-llama"}},
        "timeouts": {"first_byte_s": FIRST_BYTE_S, "idle_s": 15},
    }
    tiny = copy.deepcopy(engine(prepare_tiny(default_cache())))
    tiny["deployment_config"]["autoscaling_config"] = None
    tiny["deployment_config"]["num_replicas"] = 2
    # Two engines then say the same, and one has room for the streams of both.
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    tiny["engine_kwargs"] |= {"dtype": "float32", "max_num_seqs": 256, "enable_prefix_caching": False, **tools}
    watchful = {"health_check_period_s": 1, "health_check_timeout_s": 5}
    return {
        "applications": [
            {
                "name": "router",
                "route_prefix": "/",
                "import_path": "deployments.router:build",
                "args": {},
                "deployments": [{"name": "Router", "num_replicas": 2, "user_config": user_config, **watchful}],
            },
            {
                "name": "tiny",
                "route_prefix": "/deployments/tiny",
                "import_path": "deployments.llm:build",
                "args": {"llm_config": tiny, "hand_over_after_s": HAND_OVER_AFTER_S},
                "deployments": [{"name": "Engine", **watchful}],
            },
        ]
    }


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("faults")
    config = directory / "serve_config.yaml"
    config.write_text(yaml.safe_dump(document()))
    with launched(config, directory, {INTERNAL_KEY_VARIABLE: KEY}) as launcher:
        cluster = Cluster(launcher, document())
        cluster.whole_again()
        yield cluster


@pytest.fixture
def unchanged(cluster: Cluster) -> Iterator[None]:
    """Restores the cluster's own configuration after the test."""
    yield
    cluster.change()
    cluster.whole_again()


@pytest.fixture
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    """Continuous traffic over every dialect, already running when the test starts."""
    with Traffic(cluster.url, lanes()).running() as traffic:
        traffic.flows(1)
        yield traffic
