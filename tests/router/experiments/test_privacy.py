"""No text of a client or an engine is stored or exposed: in the ledger, the journal, logs, metrics, or the API."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet
from starlette.responses import JSONResponse, Response

from app.access.keys import append, create
from app.experiments.storage.store import TEMPORARY
from tests.router.experiments.conftest import LiveRig
from tests.support.engine.fake_engine import USAGE, Answer, FakeEngine, chunk, refuse, stream
from tests.support.processes.load import Lane, ask_all, lanes, unexplained
from tests.support.processes.log_lines import log_lines

PROMPT, ANSWER, USER, SESSION, TOOL, ID = (
    f"marker-{place}" for place in ("prompt", "answer", "user", "session", "tool", "id")
)
"""Of these only the request id may be in a log line, because that is its purpose."""

TOOLS = [{"type": "function", "function": {"name": TOOL, "parameters": {"type": "object"}}}]


def marked(lane: Lane, key: str) -> Iterator[Lane]:
    """The request with a marker wherever a client may write text, and the same with an error."""
    body: dict[str, Any] = dict(lane.body)
    if "messages" in body:
        body["messages"] = [{"role": "user", "content": PROMPT}]
    for name in ("prompt", "inputs", "input"):
        if name in body:
            body[name] = PROMPT
    if lane.name == "openai":
        body |= {"user": USER, "tools": TOOLS} if "messages" in body else {}
    headers = {**lane.headers, "authorization": f"Bearer {key}", "x-user": USER, "x-session-id": SESSION}
    yield replace(lane, body=body, headers={**headers, "x-request-id": f"{ID}-{lane.name}"})
    yield replace(lane, body={**body, "temperature": PROMPT, PROMPT: 1}, headers=headers)


def generates(text: str, engine: FakeEngine) -> Answer:
    """Generates `text` for a chat; elsewhere answers as `engine` did before."""
    other = engine.answer

    def answer(body: dict[str, Any]) -> Response:
        if engine.paths[-1] != "/v1/chat/completions":
            return other(body)
        if body.get("stream"):
            return stream([chunk(text), chunk("", finish_reason="stop"), "data: [DONE]\n\n"])
        choices = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
        return JSONResponse({"id": f"{ID}-body", "created": 1, "choices": choices, "model": text, "usage": USAGE})

    return answer


def written(directory: Path) -> Sequence[str]:
    """Every file's bytes, except those being written, and the decompressed contents of Parquet files."""
    contents = []
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and path.suffix != TEMPORARY):
        contents.append(path.read_bytes().decode("latin-1"))
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
            contents += [repr(table.to_pylist()), repr(table.schema.metadata)]
    return contents


async def test_no_text_name_or_key_is_kept_or_returned(live: LiveRig, tmp_path: Path) -> None:
    key, record = create("marker-caller")
    append(tmp_path / "keys.yaml", record.line)
    live.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    live.experiment(secondary=[{"metric": "thumbs", "minimal_effect": 0.05}], feedback={"thumbs": {"type": "boolean"}})
    markers = [PROMPT, ANSWER, USER, SESSION, TOOL, key]
    with log_lines() as logged:
        for engine in (live.blue, live.green):
            engine.answer = generates(ANSWER, engine)
        requests = [lane_with_marks for lane in lanes(tokens=50) for lane_with_marks in marked(lane, key)]
        outcomes = await ask_all(live.url, requests)
        assert unexplained([outcome for outcome in outcomes if "x-request-id" in outcome.lane.headers]) == []
        live.blue.answer = live.green.answer = refuse(500, ANSWER, kind="InternalServerError")
        await ask_all(live.url, requests[::2])
        shown = await calls(live, key)
        live.controller.replaced()
    kept = written(live.controller.directory)
    assert any("exposures" in str(path) for path in live.controller.directory.rglob("*.parquet"))
    assert any("'dialect': 'anthropic'" in text for text in kept), "rows are among what was read"
    for marker in markers:
        assert not [text for text in (*kept, *shown, *logged) if marker in text], marker
    assert not [text for text in (*kept, *shown) if ID in text and "request_id" not in text]
    assert not [text for text in kept if ID in text or "marker" in text]


async def calls(live: LiveRig, key: str) -> Sequence[str]:
    """Everything that the API and the metrics return."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=live.url, headers=headers) as http:
        score = {"request_id": f"{ID}-openai", "metric": "thumbs", "value": True}
        answers = [await http.post("/api/feedback", json=score)]
        for form in ("json", "markdown", "text"):
            for path in ("", "/first", "/first/report", "/first/history?metric=ttft"):
                separator = "&" if "?" in path else "?"
                answers.append(await http.get(f"/api/experiments{path}{separator}format={form}"))
        answers += [await http.get(f"/api/requests/{ID}-{suffix}") for suffix in ("openai", "anthropic", "tgi", "body")]
        answers.append(await http.get("/metrics"))
    assert [answer for answer in answers if answer.status_code >= 400] == []
    return [answer.text for answer in answers]
