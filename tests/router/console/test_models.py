"""The page Models: applications, replicas, engines, and what nobody says; for managers and viewers."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Route, expect

from app.access.keys import append, create
from app.activity.report import ReplicaStart
from app.config.schema import parse
from app.engine.card import EngineCard
from app.errors import Unavailable
from app.server.application import Router
from app.server.fleet import ApplicationState, Fleet, Replica
from app.upstream.target import RuntimeEnvironment
from tests.router.console.conftest import OpenPage, sign_in
from tests.support.clients.browser import accessibility_problems, overflow, screenshot
from tests.support.experiments.live_controller import LiveController
from tests.support.processes.fake_fleet import MemoryFleet
from tests.support.processes.servers import ServerPool

SECRET = "hf_hunter2"
STARTED = round(time.time()) - 7200.0
CONFIG: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat"], "traffic": {"qwen3-8b": 90, "qwen3-8b-fp8": 10}},
        "embed": {"tasks": ["embeddings"], "traffic": {"bge": 100}},
    },
    "deployments": {
        "qwen3-8b": {"app": "qwen3-8b", "model": "qwen3-8b"},
        "qwen3-8b-fp8": {"app": "qwen3-8b-fp8", "model": "qwen3-8b"},
        "bge": {"url": "http://127.0.0.1:1", "model": "bge-small", "tasks": ["embeddings"]},
    },
}


def card(replica: int, **fields: Any) -> EngineCard:
    arguments = {"dtype": "bfloat16", "gpu_memory_utilization": 0.9, "max_model_len": 16384, "max_num_seqs": 256}
    known = {
        "vllm": "0.29.0",
        "ray": "2.60.0",
        "revision": "b968826d9c46",
        "device": "cuda",
        "devices": 1,
        "arguments": arguments,
        "ready_at": STARTED + 74.0 + replica,
        "running": 12 + replica,
        "waiting": replica,
        "kv_cache_use": 0.31 + replica / 10,
        "prefix_queries": 1000,
        "prefix_hits": 400 + 100 * replica,
    }
    return EngineCard(**{**known, **fields})


class Loaded:
    """A router whose control plane runs three replicas: two have engines that answer, and one starts."""

    def __init__(self, directory: Path) -> None:
        self.keys: dict[str, str] = {}
        for name, endpoints in (("boss", ()), ("watcher", ("chat",)), ("team", ("chat",))):
            self.keys[name], record = create(name, endpoints=endpoints)
            append(directory / "keys.yaml", record.line)
        self._access = {"keys_file": str(directory / "keys.yaml"), "managers": ["boss"], "viewers": ["watcher"]}
        engine = {"max_model_len": 16384, "gpu_memory_utilization": 0.9, "hf_token": SECRET}
        source = {"model_id": "qwen3-8b", "model_source": "Qwen/Qwen3-8B"}
        llm = {"llm_config": {"model_loading_config": source, "engine_kwargs": engine}}
        failed = ApplicationState("DEPLOY_FAILED", "the model has no weights at this revision", llm)
        states = {"qwen3-8b": ApplicationState("RUNNING", "", llm), "qwen3-8b-fp8": failed}
        self.fleet = MemoryFleet(Fleet(applications=states))
        nodes = ("10.0.0.4", "10.0.0.5")
        for number, node in enumerate(nodes):
            self._start(Replica(f"a{number}x7k2", "qwen3-8b", node, "RUNNING", STARTED, "H100"))
            self.fleet.cards[f"a{number}x7k2"] = card(number)
        self._start(Replica("f0m3q9", "qwen3-8b-fp8", "10.0.0.5", "STARTING", STARTED + 200, "H100", can_answer=False))
        self.controller = LiveController(directory / "ledger")
        self.controller.configure(parse(CONFIG))
        starts = [ReplicaStart(f"r{took}", "qwen3-8b", STARTED, took) for took in (74.0, 75.0, 121.0)]
        self.controller.activity.started(starts, ["r121.0"])
        environment = RuntimeEnvironment(internal_key="internal")
        self.router = Router(environment, fleet=self.fleet, controller=self.controller)
        self.router.reconfigure(CONFIG)
        self.url = ""

    def _start(self, replica: Replica) -> None:
        self.fleet.start(replica, lambda endpoints: b"")

    def guard(self) -> None:
        """Requires keys from now on."""
        self.router.reconfigure({**CONFIG, "access": self._access})

    def get(self, name: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys[name]}"} if name is not None else {}
        return httpx.get(f"{self.url}/api/models", headers=headers)


@pytest.fixture
def loaded(tmp_path: Path, servers: ServerPool) -> Iterator[Loaded]:
    loaded = Loaded(tmp_path)
    with servers.host(loaded.router.app) as loaded.url:
        yield loaded
    loaded.controller.close()


def test_managers_and_viewers_read_it_at_their_endpoints_and_others_do_not(loaded: Loaded) -> None:
    loaded.guard()
    whole, seen, refused = (loaded.get(name) for name in ("boss", "watcher", "team"))
    assert [one["application"] for one in whole.json()["applications"]] == ["qwen3-8b", "qwen3-8b-fp8"]
    assert [one["deployment"] for one in whole.json()["elsewhere"]] == ["bge"]
    assert (seen.status_code, seen.json()["elsewhere"]) == (200, [])
    assert (refused.status_code, loaded.get().status_code) == (403, 401)
    assert SECRET not in whole.text
    assert "hf_token" in whole.text


def test_an_engine_that_does_not_answer_hides_no_other(loaded: Loaded) -> None:
    del loaded.fleet.cards["a1x7k2"]
    first, second = loaded.get().json()["applications"][0]["replicas"]
    assert (first["running"], second["running"], second["state"]) == (12, None, "RUNNING")
    assert (first["is_silent"], second["is_silent"]) == (False, True)
    assert loaded.get().json()["applications"][0]["running"] == 12
    assert loaded.get().json()["applications"][0]["running_replicas"] == 1


def test_an_engine_that_a_request_has_lost_does_not_run_as_on_the_page_traffic(loaded: Loaded) -> None:
    """Before it is asked, and before Serve has noticed it."""
    loaded.router.state.fuse.died("qwen3-8b", "a0x7k2", b"", had_tokens=True)
    application = loaded.get().json()["applications"][0]
    assert (application["running_replicas"], application["running"]) == (1, 13)
    assert [one["is_silent"] for one in application["replicas"]] == [True, False]


def test_without_a_control_plane_the_answer_says_so(loaded: Loaded, servers: ServerPool) -> None:
    alone = Router(RuntimeEnvironment())
    alone.reconfigure(CONFIG)
    with servers.host(alone.app) as url:
        document = httpx.get(f"{url}/api/models").json()
    assert document["why_not"].startswith("No control plane")
    assert [one["running_replicas"] for one in document["applications"]] == [None, None]
    loaded.fleet.failure = Unavailable("The Serve controller is not available")
    assert loaded.get().json()["why_not"] == "The Serve controller is not available."


@pytest.mark.parametrize(("name", "width", "scheme"), [("models", 1280, "light"), ("models-390", 390, "dark")])
async def test_the_page_shows_what_the_api_says(
    loaded: Loaded, open_page: OpenPage, name: str, width: int, scheme: str
) -> None:
    page, _ = await open_page(loaded.url, width=width, scheme=scheme)
    await page.goto("/ui#/models")
    first = page.get_by_role("region", name="qwen3-8b", exact=True)
    rows = first.get_by_role("region", name="Replicas of qwen3-8b").locator("tbody tr")
    await expect(rows).to_have_count(2)
    document = loaded.get().json()["applications"][0]
    assert (document["running"], document["waiting"], document["prefix_hit_rate"]) == (25, 1, 0.45)
    for words in (
        "2 replicas run",
        "25 sequences run",
        "1 waits",
        "41\u00a0% of the KV cache",
        "45\u00a0% prefix hits",
    ):
        await expect(first.locator(".figures")).to_contain_text(words)
    for words in ("running", "10.0.0.5", "1 \u00d7 H100", "75\u00a0s", "13", "50\u00a0%"):
        await expect(rows.nth(1)).to_contain_text(words)
    await expect(first).to_contain_text("3 known starts since")
    await expect(first).to_contain_text("The last one was at")
    await expect(first).to_contain_text("1 of those replicas was stopped as planned.")
    await expect(first).to_contain_text("2 of those replicas have crashed, or stopped unseen.")
    await expect(first).to_contain_text("75\u00a0s at the median, 121\u00a0s at most.")
    second = page.get_by_role("region", name="qwen3-8b-fp8", exact=True)
    await expect(second).to_contain_text("0 known starts since")
    await expect(second).to_contain_text("its deployment failed: the model has no weights at this revision")
    await expect(second.get_by_role("row").last).to_contain_text("starting")
    await expect(page.get_by_text("bge (bge-small), at embed")).to_be_visible()
    summary = first.get_by_text("Versions and engine arguments")
    await summary.focus()
    await page.keyboard.press("Enter")
    await expect(first).to_contain_text("vLLM 0.29.0, Ray 2.60.0, model revision b968826d9c46.")
    arguments = first.get_by_role("region", name="Engine arguments of qwen3-8b").locator("tbody tr")
    await expect(arguments.filter(has_text="hf_token")).to_contain_text("set, not shown")
    await expect(arguments.filter(has_text="max_num_seqs")).to_contain_text("256")
    assert SECRET not in await page.content()
    assert await overflow(page) == 0
    assert await accessibility_problems(page) == []
    await screenshot(page, name)
    loaded.fleet.cards["a0x7k2"] = card(0, running=90)
    await expect(rows.nth(0)).to_contain_text("90")  # live
    await expect(summary.locator("..")).to_have_attribute("open", "")


async def test_a_replica_without_an_answer_is_not_counted_as_running(loaded: Loaded, open_page: OpenPage) -> None:
    """Serve lists one that has died as running until its own check has failed."""
    del loaded.fleet.cards["a1x7k2"]
    page, _ = await open_page(loaded.url)
    await page.goto("/ui#/models")
    first = page.get_by_role("region", name="qwen3-8b", exact=True)
    await expect(first.locator(".figure").nth(0)).to_have_text("1 replica runs")
    await expect(first.locator(".figure").nth(1)).to_have_text("1 does not answer")
    state = first.get_by_role("row").filter(has_text="a1x7k2").get_by_role("cell").first
    await expect(state).to_have_text("✕does not answerrunning, says Ray Serve")


async def test_an_unhealthy_application_says_what_has_happened(loaded: Loaded, open_page: OpenPage) -> None:
    page, _ = await open_page(loaded.url)

    async def unhealthy(route: Route) -> None:
        answer = await route.fetch()
        models = await answer.json()
        status = {"status": "UNHEALTHY", "message": "The deployments ['Engine'] are UNHEALTHY."}
        models["applications"][0] |= status
        await route.fulfill(response=answer, json=models)

    await page.route("**/api/models", unhealthy)
    await page.goto("/ui#/models")
    first = page.get_by_role("region", name="qwen3-8b", exact=True)
    await expect(first).to_contain_text("a replica has died or failed its check, and is being replaced.")
    await expect(first).not_to_contain_text("['Engine']")


async def test_a_caller_without_the_right_is_told_who_has_it(loaded: Loaded, open_page: OpenPage) -> None:
    loaded.guard()
    page, watch = await open_page(loaded.url)
    watch.expected = ["status of 401", "status of 403"]
    await page.goto("/ui#/models")
    await sign_in(page, loaded.keys["team"])
    await expect(page.get_by_text("'team' may not see what is loaded where")).to_be_visible()
