"""Live traffic is recorded without forbidden contents, and a replay gives the same result as the live experiment."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest

from app.access.keys import append, create
from app.experiments.contract.report import Report
from app.experiments.recordings import UnreadableRecording, read
from app.experiments.replay.runner import Replay
from app.experiments.replay.traces import config_of, section_of
from app.request_recordings.recorder import RecordedRequest
from deployments.cli.experiments_client import open_directory
from deployments.cli.main import main
from tests.router.experiments.conftest import LiveRig
from tests.router.experiments.test_privacy import ANSWER, PROMPT, SESSION, USER, generates, marked
from tests.router.experiments.test_verdicts import CHAT, after, users
from tests.support.engine.fake_engine import refuse
from tests.support.processes.load import Lane, ask_all, lanes, unexplained
from tests.support.waiting import wait_until_async

PHONE = "555-0123"


async def recorded(live: LiveRig, count: int) -> Sequence[RecordedRequest]:
    """The recording, once it has that many requests."""

    async def found() -> Sequence[RecordedRequest] | None:
        with suppress(UnreadableRecording):
            requests = await asyncio.to_thread(read, str(live.controller.directory), Path("/"))
            return requests if len(requests) >= count else None
        return None

    return await wait_until_async(found)


def files(directory: Path) -> str:
    """Every file of the recordings, decompressed."""
    import gzip

    return "".join(gzip.decompress(path.read_bytes()).decode() for path in sorted(directory.glob("recordings/*/*.gz")))


async def counted(live: LiveRig, outcome: str) -> float:
    async with httpx.AsyncClient(base_url=live.url) as http:
        text = (await http.get("/metrics")).text
    line = f'switchyard_recorded_requests_total{{endpoint="chat",outcome="{outcome}"}} '
    return sum(float(sample.removeprefix(line)) for sample in text.splitlines() if sample.startswith(line))


async def test_every_dialects_requests_are_recorded_without_text_name_or_key(live: LiveRig, tmp_path: Path) -> None:
    key, record = create("marker-caller")
    append(tmp_path / "keys.yaml", record.line)
    live.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    live.chat_endpoint(record={})
    for engine in (live.blue, live.green):
        engine.answer = generates(ANSWER, engine)
    requests = [marked_lane for lane in lanes(tokens=50) for marked_lane in marked(lane, key)]
    outcomes = await ask_all(live.url, requests)
    answered = [outcome for outcome in outcomes if outcome.status == 200]
    found = await recorded(live, len(answered))
    text = files(live.controller.directory)
    for marker in (PROMPT, ANSWER, USER, SESSION, key, "marker"):
        assert marker not in text, marker
    assert {recorded.dialect for recorded in found} == {lane.name for lane in lanes()}
    assert {recorded.stream for recorded in found} == {True, False}
    assert all(
        recorded.body is None and recorded.prompt_bytes > 0 and recorded.parameters["max_tokens"] == 50
        for recorded in found
    )
    assert any(recorded.prompt_tokens for recorded in found)


def chats(count: int, text: str) -> list[Lane]:
    body = {**CHAT.body, "messages": [{"role": "user", "content": text}], "user": USER}
    return [replace(CHAT, body=body, headers={"x-user": f"{USER}-{number}"}) for number in range(count)]


async def test_full_recordings_hold_the_requests_without_redacted_text(live: LiveRig) -> None:
    live.chat_endpoint(record={"text": "full", "redact": [r"\d{3}-\d{4}", "marker-name"]})
    await ask_all(live.url, chats(3, f"Call {PHONE}, says marker-name."))
    requests = await recorded(live, 3)
    bodies = [recorded.body for recorded in requests]
    assert [body and body["messages"] for body in bodies] == [
        [{"role": "user", "content": "Call [redacted], says [redacted]."}]
    ] * 3
    for marker in (PHONE, "marker-name", USER, "x-user"):
        assert marker not in files(live.controller.directory)


async def test_recorded_text_is_shown_to_managers_alone_and_each_reading_is_audited(
    live: LiveRig, tmp_path: Path
) -> None:
    keys = {}
    for name in ("boss", "watcher", "ann"):
        keys[name], record = create(name)
        append(tmp_path / "keys.yaml", record.line)
    access = {"keys_file": str(tmp_path / "keys.yaml"), "managers": ["boss"], "viewers": ["watcher"]}
    live.chat_endpoint(record={"text": "full", "redact": [r"\d{3}-\d{4}"]})
    live.change(access=access)
    message = {"role": "user", "content": f"{PROMPT} at {PHONE}"}
    body = {"model": "chat", "messages": [message], "max_tokens": 5, "user": USER}

    async with httpx.AsyncClient(base_url=live.url) as http:

        async def get(path: str, by: str) -> httpx.Response:
            return await http.get(path, headers={"authorization": f"Bearer {keys[by]}"})

        headers = {"authorization": f"Bearer {keys['ann']}", "x-request-id": "asked"}
        assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        await recorded(live, 1)

        async def text() -> httpx.Response | None:
            answer = await get("/api/texts/asked", "boss")
            return answer if answer.status_code == 200 else None

        answer = await wait_until_async(text)
        assert answer.headers["cache-control"] == "no-store"
        shown = answer.json()
        assert (shown["request_id"], shown["endpoint"]) == ("asked", "chat")
        assert shown["body"]["messages"][0]["content"] == f"{PROMPT} at [redacted]"
        assert USER not in answer.text
        for by in ("watcher", "ann"):
            refused = await get("/api/texts/asked", by)
            assert (refused.status_code, PROMPT in refused.text) == (403, False)
            assert PROMPT not in (await get("/api/requests", by)).text
        assert [(await get("/api/requests", by)).json()["texts"] for by in ("boss", "watcher", "ann")] == [
            ["chat"],
            [],
            [],
        ]
        assert [one["text"] for one in (await get("/api/requests", "boss")).json()["requests"]] == ["redacted"]
        assert (await get("/api/texts/none", "boss")).status_code == 404
        audited = (await get("/api/audit?action=recorded_text", "boss")).json()["records"]
        assert {(one["caller"], one["status"]) for one in audited} >= {("boss", 200), ("watcher", 403), ("ann", 403)}
        live.chat_endpoint(record={})
        gone = await get("/api/texts/asked", "boss")
        assert (gone.status_code, "records no texts" in gone.text) == (404, True)


async def test_a_request_that_names_a_deployment_is_not_recorded_nor_one_of_another_endpoint(live: LiveRig) -> None:
    live.chat_endpoint(record={})
    await ask_all(live.url, [replace(CHAT, headers={"azureml-model-deployment": "green"})] * 3)
    await ask_all(live.url, [replace(CHAT, body={**CHAT.body, "model": "blue"})] * 3)
    await ask_all(live.url, users(2, each=1))
    assert len(await recorded(live, 2)) == 2
    live.chat_endpoint(record=None)
    await ask_all(live.url, users(2, each=1))
    await live.report_of(4)
    assert len(await recorded(live, 2)) == 2


async def test_requests_do_not_notice_a_controller_that_is_away(live: LiveRig) -> None:
    live.chat_endpoint(record={})
    live.controller.absent = True
    assert unexplained(await ask_all(live.url, users(5, each=2))) == []
    live.controller.absent = False
    assert len(await recorded(live, 10)) == 10

    async def all_counted() -> bool:  # a file is there before its router hears of it
        return await counted(live, "recorded") == 10

    await wait_until_async(all_counted)


async def test_requests_do_not_notice_a_directory_that_fails(live: LiveRig) -> None:
    live.chat_endpoint(record={})
    folder = live.controller.directory / "recordings"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder")
    assert unexplained(await ask_all(live.url, users(5, each=2))) == []
    folder.unlink()
    assert len(await recorded(live, 10)) == 10


def replay(live: LiveRig, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Replays the recording. Returns the exit code, stdout and stderr."""
    directory = str(live.controller.directory)
    command = ["experiments", "replay", directory, "--arms", "blue,green", "--url", live.url, "--speed", "1000"]
    code = main([*command, *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("text", ["none", "full"])
async def test_a_replay_gives_the_verdict_of_the_live_experiment(
    live: LiveRig, text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    live.blue.answer, live.green.answer = after(0.01), after(0.06)
    live.chat_endpoint(record={"text": text})
    outcomes = await ask_all(live.url, users(80, each=3), at_once=16)
    shown = await live.report_of(len(outcomes))
    assert (shown.primary[0].metric, shown.primary[0].verdict, shown.decision) == ("ttft", "worse", "do_not_ship")
    await recorded(live, len(outcomes))
    seen = len(live.blue.requests), len(live.green.requests)
    out = str(tmp_path / "replay")
    arguments = ("--concurrency", "16", "--format", "json", "--out", out)
    code, printed, error = await asyncio.to_thread(replay, live, capsys, *arguments)
    assert (code, error) == (0, "")
    report = msgspec.json.decode(printed, type=Report)
    assert (report.primary[0].metric, report.primary[0].verdict) == ("ttft", "worse")
    assert report.decision == shown.decision
    assert report.headline == "replay on chat: green is worse than blue."
    assert report.requests == {"blue": len(outcomes), "green": len(outcomes)}, "every arm gets every request"
    assert sum(report.units.values()) == len(outcomes), "one unit per pair"
    assert report.alarms == []
    assert report.served == {"blue": {"blue": len(outcomes)}, "green": {"green": len(outcomes)}}
    notes = [warning for warning in report.warnings if "made up" in warning]
    assert bool(notes) == (text == "none")
    for engine, before in ((live.blue, seen[0]), (live.green, seen[1])):
        sent = engine.requests[before:]
        assert len(sent) == len(outcomes)
        if text == "full":
            assert {json.dumps(body["messages"]) for body in sent} == {json.dumps(CHAT.body["messages"])}
    assert await asyncio.to_thread(main, ["experiments", "report", "replay", "--ledger", out, "--check"]) == 10
    capsys.readouterr()
    await live.report(lambda report: sum(report.forced.values()) >= 2 * len(outcomes))
    assert len(await recorded(live, len(outcomes))) == len(outcomes), "a replay is not recorded again"


async def test_a_replay_finds_the_arm_that_fails(live: LiveRig, capsys: pytest.CaptureFixture[str]) -> None:
    live.chat_endpoint(record={})
    await ask_all(live.url, users(60, each=1))
    await recorded(live, 60)
    live.green.answer = refuse(500, "broken", kind="InternalServerError")
    code, printed, error = await asyncio.to_thread(replay, live, capsys, "--format", "json")
    assert (code, error) == (0, "")
    report = msgspec.json.decode(printed, type=Report)
    (errors,) = [guardrail for guardrail in report.guardrails if guardrail.event == "error"]
    assert errors.events == {"blue": 0, "green": 60}
    assert errors.alarm
    assert report.decision == "do_not_ship" or report.decision == "invalid"


async def test_all_dialects_recordings_can_be_replayed_with_and_without_their_texts(
    live: LiveRig, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("full", "none"):
        live.chat_endpoint(record={"text": text})
        await ask_all(live.url, [lane for lane in lanes() for _ in range(3)])
    requests = await recorded(live, 6 * len(lanes()))
    assert sum(recorded.body is not None for recorded in requests) == 3 * len(lanes())
    code, printed, error = await asyncio.to_thread(replay, live, capsys, "--format", "json")
    assert (code, error) == (0, "")
    report = msgspec.json.decode(printed, type=Report)
    assert [warning for warning in report.warnings if "refused" in warning] == []
    assert report.served == {"blue": {"blue": len(requests)}, "green": {"green": len(requests)}}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(["--arms", "blue"], 2, "--arms 'blue': name two deployments or more", id="one arm"),
        pytest.param(["--arms", "blue,red"], 1, "The server refuses the replay: No deployment 'red'", id="no such arm"),
        pytest.param(["--endpoint", "embed"], 1, "no requests of 'embed'; it has chat", id="no such endpoint"),
        pytest.param(["--out", "."], 2, "is not empty; name a new directory", id="a directory with something"),
        pytest.param(["--url", "http://127.0.0.1:1"], 3, "cannot be reached", id="no server"),
        pytest.param(["--experiment", "second"], 1, "serve_config.yaml", id="no such experiment"),
    ],
)
async def test_errors_are_one_line_with_the_fix(
    live: LiveRig,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "something").touch()
    live.chat_endpoint(record={})
    await ask_all(live.url, users(2, each=1))
    await recorded(live, 2)
    status, out, error = await asyncio.to_thread(replay, live, capsys, *arguments)
    assert (status, out) == (code, "")
    assert says in error
    assert error.count("\n") == 1


async def test_a_directory_without_recordings_is_an_error(live: LiveRig, capsys: pytest.CaptureFixture[str]) -> None:
    await ask_all(live.url, users(2, each=1))
    status, out, error = await asyncio.to_thread(replay, live, capsys)
    assert (status, out) == (1, "")
    assert "holds no recorded requests; an endpoint with `record` has some" in error


@pytest.mark.parametrize("declared", ["in the ledger", "in a file"])
async def test_the_metrics_of_an_experiment_judge_the_replay(
    live: LiveRig, capsys: pytest.CaptureFixture[str], tmp_path: Path, declared: str
) -> None:
    live.chat_endpoint(record={})
    await ask_all(live.url, users(40, each=1))
    await recorded(live, 40)
    live.experiment(
        primary=[{"metric": "duration", "minimal_effect": 0.1}],
        secondary=[{"metric": "ttft", "minimal_effect": 0.1}, {"metric": "thumbs", "minimal_effect": 0.1}],
        feedback={"thumbs": {"type": "boolean"}},
    )
    await live.report(lambda report: report.primary[0].metric == "duration")
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(live.config))
    config = ("--config", str(file)) if declared == "in a file" else ()
    code, printed, error = await asyncio.to_thread(
        replay, live, capsys, "--experiment", "first", "--format", "json", *config
    )
    assert (code, error) == (0, "")
    report = msgspec.json.decode(printed, type=Report)
    assert report.experiment == "first"
    assert [comparison.metric for comparison in report.primary] == ["duration"]
    assert [comparison.metric for comparison in report.secondary] == ["ttft", "output_tokens"]


async def test_an_interrupted_replay_can_be_reported(live: LiveRig, tmp_path: Path) -> None:
    live.chat_endpoint(record={})
    await ask_all(live.url, users(40, each=1))
    requests = await recorded(live, 40)
    live.blue.answer = live.green.answer = after(0.02)
    experiment = section_of(["blue", "green"], requests, None)
    out = str(tmp_path / "out")
    running = Replay(
        name="replay",
        config=config_of("replay", experiment, out, total_s=60),
        requests=requests,
        url=live.url,
        key=None,
        speed=1000,
        concurrency=1,
    )
    task = asyncio.create_task(running.run())
    while True:
        if sum(running.statuses.values()) >= 20:
            break
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    answered = running.statuses[200]
    assert 20 <= answered < 80
    shown = open_directory(out, at=None).ask("GET", "/experiments/replay/report")
    report = msgspec.json.decode(shown, type=Report)
    assert answered <= sum(report.requests.values()) <= answered + 2
    assert any("A replay of 40 recorded requests" in warning for warning in report.warnings)
