"""The host: a controller in its own thread, and the same over HTTP."""

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from app.activity.report import ReplicaStart
from app.config.experiments import LedgerSettings
from app.config.schema import Config, parse
from app.control_plane import with_traffic
from app.errors import Broken, Unavailable, UpstreamError
from app.experiments.controller import Controller, InvalidBatch
from app.experiments.host import ControllerHost, host_controller
from app.experiments.storage import segments
from app.experiments.storage.columns import Tables
from app.experiments.storage.keeper import Submit
from app.experiments.storage.store import LocalStore
from app.exposures.wire import decode_acknowledgement, encode
from app.internal_api import APP_PREFIX, EXPERIMENTS
from app.internal_keys import Purpose, derived
from app.request_recordings.recorder import VERSION as RECORDING_VERSION
from app.request_recordings.recorder import RecordingFile, encode_file
from app.server.experiments_host import experiments_app
from app.upstream.controller_client import HttpController
from app.upstream.target import RuntimeEnvironment
from deployments.engine.internal_key import InternalKeyMiddleware
from tests.support.experiments.exposures import batch, row, start
from tests.support.experiments.life import failing
from tests.support.processes.servers import ServerPool, serve
from tests.support.waiting import wait_until_async
from tests.unit.app.experiments.test_controller import configuration

KEY = "internal"


class ConfigurationSource:
    """A fake control plane: it applies changes, or does not answer."""

    def __init__(self, config: Config | None) -> None:
        self.config = config
        self.is_absent = False

    async def __call__(self) -> Config | None:
        if self.is_absent:
            raise UpstreamError("absent")
        return self.config


def host(tmp_path: Path, config: Config | None) -> tuple[ControllerHost, ConfigurationSource]:
    source = ConfigurationSource(config)
    return host_controller(source, tmp_path), source


def progress(acknowledgement: bytes) -> tuple[int, int]:
    """The last batches up to which everything is received, and durable."""
    decoded = decode_acknowledgement(acknowledgement)
    return decoded.received, decoded.durable


def one_request(number: int = 1) -> bytes:
    return encode(batch(number, starts=[start(number)], rows=[row(number)], oldest=1))


async def test_sent_batches_are_on_disk_when_the_host_has_stopped(tmp_path: Path) -> None:
    hosted, _ = host(tmp_path, configuration(starts_at=1.0))
    async with hosted:
        assert progress(await hosted.send(one_request())) == (1, 0)
        answer = await hosted.ask("GET", "/experiments", {}, b"")
        assert [experiment["experiment"] for experiment in json.loads(answer.body)["experiments"]] == ["trial"]
    store = LocalStore(tmp_path / ".run/ledger")
    (segment,) = segments.committed(store)
    assert segments.read(store, segment, Tables())[1].rows.seq.tolist() == [1]


async def test_an_experiment_delivered_just_now_is_found(tmp_path: Path) -> None:
    bare = configuration().model_copy(update={"experiments": {}})
    hosted, source = host(tmp_path, bare)
    async with hosted:
        assert (await hosted.ask("GET", "/experiments/trial", {}, b"")).status == 404
        source.config = configuration()
        assert (await hosted.ask("GET", "/experiments/trial", {}, b"")).status == 200


async def test_the_starts_of_replicas_are_asked_for_once_and_outlive_the_host(tmp_path: Path) -> None:
    asked: list[set[str]] = []

    async def new_starts(known: Collection[str]) -> tuple[list[ReplicaStart], list[str]]:
        asked.append(set(known))
        if len(asked) == 1:
            raise UpstreamError("absent")
        found = [ReplicaStart("r1", "blue-app", time.time() - 60, 41.5)]
        return ([], ["r1"]) if "r1" in known else (found, [])

    def new(ledger: LedgerSettings, submit: Submit) -> Controller:
        return Controller(ledger, base=tmp_path, has_control_plane=False, submit=submit)

    async def starts(hosted: ControllerHost) -> Any:
        return json.loads((await hosted.ask("GET", "/activity/starts", {}, b"")).body)

    source = ConfigurationSource(configuration())
    async with ControllerHost(source, new, new_starts=new_starts, tick_s=0.01, configuration_s=0.02) as hosted:
        assert await starts(hosted) is None, "nobody has looked"
        await wait_until_async(lambda: asked and asked[-1] == {"r1"})
        assert asked[:3] == [set(), set(), {"r1"}]
        await wait_until_async(lambda: len(asked) > 3)
        listed = await starts(hosted)
    blue = listed["applications"]["blue-app"]
    assert (blue["count"], blue["median_s"], blue["longest_s"], blue["replicas"]) == (1, 41.5, 41.5, ["r1"])
    assert blue["stopped"] == ["r1"]
    async with ControllerHost(source, new, tick_s=0.01) as again:
        assert await starts(again) == listed


async def test_before_the_first_configuration_batches_are_refused(tmp_path: Path) -> None:
    hosted, source = host(tmp_path, None)
    source.is_absent = True
    async with hosted:
        with pytest.raises(Unavailable):
            await hosted.send(one_request())
        source.is_absent, source.config = False, configuration()
        await wait_until_async(lambda: hosted.controller is not None)
        assert decode_acknowledgement(await hosted.send(one_request())).received == 1


async def test_a_question_for_plans_is_answered_from_the_present_configuration(tmp_path: Path) -> None:
    hosted, source = host(tmp_path, configuration())

    async def weights() -> list[dict[str, int]]:
        answer = await hosted.ask("GET", "/endpoints/chat/plans", {}, b"")
        return [plan["weights"] for plan in json.loads(answer.body)["plans"]]

    async with hosted:
        (first,) = await weights()
        assert source.config is not None
        present = source.config.model_dump(mode="json", exclude_unset=True)
        source.config = parse(with_traffic(present, "chat", {**first, "blue": 100, "green": 0}))
        assert await weights() == [source.config.endpoints["chat"].traffic, first]
        source.is_absent = True
        assert len(await weights()) == 2


async def test_a_configuration_with_another_directory_gets_another_controller(tmp_path: Path) -> None:
    hosted, source = host(tmp_path, configuration())
    async with hosted:
        await hosted.send(one_request())
        first, source.config = (
            hosted.controller,
            configuration().model_copy(
                update={"ledger": configuration().ledger.model_copy(update={"url": "elsewhere"})}
            ),
        )
        assert first is not None
        first.wants_configuration = True
        await wait_until_async(lambda: hosted.controller is not first)
        assert progress(await hosted.send(one_request(2))) == (0, 0)
    assert len(segments.committed(LocalStore(tmp_path / ".run/ledger"))) == 1


async def test_a_directory_that_cannot_be_read_is_an_answer(tmp_path: Path) -> None:
    hosted, _ = host(tmp_path, configuration())
    async with hosted:
        await hosted.send(one_request())
        await wait_until_async(lambda: (tmp_path / ".run/ledger/journal").exists())
        (tmp_path / ".run/ledger").rename(tmp_path / "gone")
        (tmp_path / ".run/ledger").write_text("")
        answer = await hosted.ask("GET", f"/requests/{5:016x}", {}, b"")
        assert answer.status == 503
        assert "cannot be read" in json.loads(answer.body)["message"]


async def test_a_decision_that_is_not_on_disk_says_so(tmp_path: Path) -> None:
    """Also the first one that the directory fails to take: nothing had to be written just before."""
    hosted, _ = host(tmp_path, configuration())
    ledger = tmp_path / ".run/ledger"
    decision = json.dumps({"action": "pause", "reason": "as wanted", "by": "boss"}).encode()
    async with hosted:
        controller = hosted.controller
        assert controller is not None
        await wait_until_async(lambda: (ledger / "journal").exists() and controller.storage.writing is None)
        before = json.loads((await hosted.ask("GET", "/experiments/trial", {}, b"")).body)
        assert (before["acting"]["state"], before["service"]) == ("running", [])
        with failing(ledger):
            made = json.loads((await hosted.ask("POST", "/experiments/trial/decision", {}, decision)).body)
            assert made["acting"]["state"] == "paused"
            [trouble] = made["service"]
            assert "decisions would be lost with the controller" in trouble
            resuming = json.dumps({"action": "resume", "reason": "as wanted", "by": "boss"}).encode()
            foreseen = await hosted.ask("POST", "/experiments/trial/decision", {"dry_run": "true"}, resuming)
            assert json.loads(foreseen.body)["state"] == "running"
        await wait_until_async(lambda: controller.health().failing_since is None)
        assert any("paused" in path.read_text() for path in ledger.rglob("*.jsonl"))
        assert json.loads((await hosted.ask("GET", "/experiments/trial", {}, b"")).body)["service"] == []


async def test_over_http_the_answers_are_the_same_and_need_the_internal_key(tmp_path: Path) -> None:
    hosted, _ = host(tmp_path, configuration(starts_at=1.0))
    pool = ServerPool()
    inner = experiments_app(hosted)
    guarded = InternalKeyMiddleware(inner, keys=[derived(KEY, Purpose.CONTROLLER)])
    app = Starlette(routes=[Mount(f"{APP_PREFIX}{EXPERIMENTS}", guarded)], lifespan=inner.router.lifespan_context)
    with pool.host(app) as url:
        async with HttpController(RuntimeEnvironment(url, KEY)) as client:
            assert progress(await client.send(one_request())) == (1, 0)
            with pytest.raises(Broken, match="status 400"):
                await client.send(b"nonsense")
            missing = await client.ask("GET", "/experiments/a b%2Fc", {"format": "text"}, b"")
            assert missing.status == 404
            assert "a b%2Fc" in json.loads(missing.body)["message"]
            assert (await client.ask("GET", "/experiments/trial", {"format": "text"}, b"")).media_type.startswith(
                "text/"
            )
        async with HttpController(RuntimeEnvironment(url, "wrong")) as stranger:
            with pytest.raises(Unavailable):
                await stranger.send(one_request(2))
    pool.close()


def recording(**fields: object) -> bytes:
    file = RecordingFile(version=RECORDING_VERSION, router="0" * 16, number=1, written_at=1.8e9, lines=b"lines")
    return encode_file(msgspec.structs.replace(file, **fields))


def recordings_in(directory: Path) -> list[Path]:
    return list(directory.rglob("recordings/*/*.jsonl.gz"))


async def test_recordings_are_written_over_http_behind_the_internal_key(tmp_path: Path) -> None:
    hosted, _ = host(tmp_path, configuration())
    inner = experiments_app(hosted)
    guarded = InternalKeyMiddleware(inner, keys=[derived(KEY, Purpose.CONTROLLER)])
    app = Starlette(routes=[Mount(f"{APP_PREFIX}{EXPERIMENTS}", guarded)], lifespan=inner.router.lifespan_context)
    pool = ServerPool()
    with pool.host(app) as url:
        async with HttpController(RuntimeEnvironment(url, KEY)) as client:
            await client.record(recording())
            with pytest.raises(Broken, match="status 400"):
                await client.record(recording(version=RECORDING_VERSION + 1))
            (written,) = recordings_in(tmp_path)
            assert written.read_bytes() == b"lines"
            written.unlink()
            written.parent.rmdir()
            written.parent.touch()  # the directory fails
            with pytest.raises(Unavailable):
                await client.record(recording())
            written.parent.unlink()
        async with HttpController(RuntimeEnvironment(url, "wrong")) as stranger:
            with pytest.raises(Unavailable):
                await stranger.record(recording())
    pool.close()
    assert recordings_in(tmp_path) == []


async def test_an_answer_of_another_server_is_an_error() -> None:
    async def router(request: object) -> JSONResponse:
        return JSONResponse({"error": {"message": "No route"}}, 404)

    with serve(Starlette(routes=[Route("/{path:path}", router, methods=["GET", "POST"])])) as url:
        async with HttpController(RuntimeEnvironment(url, KEY)) as client:
            with pytest.raises(Unavailable):
                await client.send(one_request())
            with pytest.raises(Unavailable):
                await client.ask("GET", "/experiments", {}, b"")
    async with HttpController(RuntimeEnvironment("http://127.0.0.1:9", KEY)) as client:
        with pytest.raises(Unavailable):
            await client.send(one_request())


async def test_an_invalid_batch_raises_in_the_same_process_too(tmp_path: Path) -> None:
    hosted, _ = host(tmp_path, configuration())
    async with hosted:
        with pytest.raises(InvalidBatch):
            await hosted.send(b"nonsense")
