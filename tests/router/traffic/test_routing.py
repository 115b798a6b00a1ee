"""Which deployment answers, how the answer names it, and live changes of the configuration."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from ssl import SSLContext
from typing import Any

import httpx
import pytest
from scipy.special import bdtr
from starlette.responses import JSONResponse, Response

from app.config.base import ConfigError
from tests.router.conftest import Rig
from tests.support.engine.fake_engine import USAGE, Answer, frame, refuse, stream
from tests.support.engine.other_answers import completion, message, response
from tests.support.processes.certificates import certificate_for, server_context
from tests.support.processes.raw_server import tls_in_front_of

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}


def ask(rig: Rig, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    return httpx.post(f"{rig.url}/v1/chat/completions", json={**CHAT, **fields}, headers=headers)


def served_by(rig: Rig, headers: dict[str, str] | None = None, **fields: object) -> str:
    answer = ask(rig, headers, **fields)
    assert answer.status_code == 200, answer.text
    return answer.headers["azureml-model-deployment"]


def test_the_header_chooses_even_a_deployment_without_traffic(rig: Rig) -> None:
    assert served_by(rig, {"azureml-model-deployment": "green"}) == "green"
    assert served_by(rig, {"azureml-model-deployment": "green"}, stream=True) == "green"


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_says_by_which_rule_its_deployment_was_chosen(rig: Rig, stream: bool) -> None:
    def reason(headers: dict[str, str] | None = None, **fields: object) -> str | None:
        header: str | None = ask(rig, headers, stream=stream, **fields).headers.get("x-switchyard-reason")
        return header

    assert reason() == "traffic"
    assert reason({"azureml-model-deployment": "green"}) == "header"
    assert reason(model="green") == "model"
    assert reason(model="nothing") is None
    rig.chat_endpoint(sticky={"by": "user"}, fallback=["green"])
    assert reason(user="ann") == "sticky"
    rig.blue.answer = refuse(500, "out of memory")
    assert reason(user="ann") == "failover"


def test_a_header_that_names_no_deployment_of_the_endpoint_gets_the_valid_ones(rig: Rig) -> None:
    answer = ask(rig, {"azureml-model-deployment": "mini"})
    assert answer.status_code == 404
    assert "blue, green" in answer.json()["error"]["message"]


def test_a_deployment_as_the_model_serves_exactly(rig: Rig) -> None:
    assert served_by(rig, model="green") == "green"


def test_the_request_id_is_the_clients_or_a_new_one(rig: Rig) -> None:
    assert ask(rig, {"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = {ask(rig).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    odd = ask(rig, {"x-request-id": "has space"}).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", odd)
    sent = [headers["x-request-id"] for headers in rig.blue.headers]
    assert sent[0].startswith("mine-1-")


def test_errors_carry_the_request_id_too(rig: Rig) -> None:
    assert ask(rig, {"x-request-id": "mine-1"}, model="gone").headers["x-request-id"] == "mine-1"


def test_the_split_follows_the_percentages(rig: Rig) -> None:
    rig.chat_endpoint(traffic={"blue": 70, "green": 30})
    with httpx.Client() as client:
        url = f"{rig.url}/v1/chat/completions"
        seen = Counter(client.post(url, json=CHAT).headers["azureml-model-deployment"] for _ in range(400))
    assert 0.0005 < bdtr(seen["green"], 400, 0.3) < 0.9995


@pytest.mark.parametrize(
    ("sticky", "headers", "fields"),
    [
        ({"by": "header", "name": "X-Session-Id"}, {"x-session-id": "s{i}"}, {}),
        ({"by": "user"}, {}, {"user": "u{i}"}),
        ({"by": "api_key"}, {"authorization": "Bearer k{i}"}, {}),
        ({"by": "api_key"}, {"api-key": "k{i}"}, {}),
    ],
)
def test_the_same_key_always_reaches_the_same_deployment(
    rig: Rig, sticky: dict[str, str], headers: dict[str, str], fields: dict[str, str]
) -> None:
    rig.chat_endpoint(traffic={"blue": 50, "green": 50}, sticky=sticky)

    def round_of(number: int) -> list[str]:
        return [
            served_by(
                rig,
                {name: value.format(i=i) for name, value in headers.items()},
                **{name: value.format(i=i) for name, value in fields.items()},
            )
            for i in range(12)
        ]

    first, second = round_of(1), round_of(2)
    assert first == second
    assert set(first) == {"blue", "green"}


def test_traffic_moves_live_without_a_failed_request(rig: Rig) -> None:
    def ask_until_moved(worker: int) -> list[tuple[int, str]]:
        with httpx.Client() as client:
            answers = [client.post(f"{rig.url}/v1/chat/completions", json=CHAT) for _ in range(60)]
        return [(answer.status_code, answer.headers["azureml-model-deployment"]) for answer in answers]

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask_until_moved, worker) for worker in range(4)]
        for share in range(0, 101, 10):
            rig.chat_endpoint(traffic={"blue": 100 - share, "green": share})
        seen = [answer for future in running for answer in future.result()]
    assert {status for status, _ in seen} == {200}
    assert served_by(rig) == "green"


def test_a_wrong_configuration_is_rejected_and_the_last_good_one_stays(rig: Rig) -> None:
    with pytest.raises(ConfigError, match="sums to 99"):
        rig.router.reconfigure({**rig.config, "endpoints": {"chat": {"tasks": ["chat"], "traffic": {"blue": 99}}}})
    assert served_by(rig) == "blue"
    assert 'switchyard_config_reloads_total{outcome="refused"} 1.0' in httpx.get(f"{rig.url}/metrics").text


def test_a_key_that_cannot_be_read_rejects_the_configuration(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"deployments.far.api_key_env: the variable SWITCHYARD_NO_SUCH is not set"):
        rig.change(deployments={"far": {"url": "http://x", "model": "m", "api_key_env": "SWITCHYARD_NO_SUCH"}})
    gone = str(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"deployments.far.api_key_file: .*No such file"):
        rig.change(deployments={"far": {"url": "http://x", "model": "m", "api_key_file": gone}})


def test_a_deployment_elsewhere_gets_its_own_key_and_not_the_callers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTNER_KEY", "theirs")
    blue = rig.config["deployments"]["blue"]
    rig.change(deployments={"blue": {**blue, "api_key_env": "PARTNER_KEY"}})
    served_by(rig, {"authorization": "Bearer mine", "api-key": "mine"})
    assert rig.blue.headers[-1]["authorization"] == "Bearer theirs"
    assert "mine" not in str(rig.blue.headers[-1])


async def test_a_deployment_elsewhere_needs_a_certificate_of_a_trusted_authority(
    rig: Rig, private_authority: SSLContext, tmp_path: Path
) -> None:
    engine = httpx.URL(rig.config["deployments"]["blue"]["url"])
    stranger = server_context(*certificate_for("127.0.0.1", tmp_path))
    assert engine.port is not None
    async with httpx.AsyncClient(base_url=rig.url) as client:
        for context, status in ((private_authority, 200), (stranger, 503)):
            async with tls_in_front_of(engine.port, context) as front:
                rig.add("elsewhere", f"{front.url}{engine.path}")
                answer = await client.post("/v1/chat/completions", json=CHAT)
                assert answer.status_code == status, answer.text
                assert "certificate" not in answer.text


def named(body: dict[str, Any]) -> Response:
    """An answer like vLLM's: with the engine's own name and a fingerprint."""
    head = {"id": "c", "created": 1, "model": body["model"], "system_fingerprint": "vllm-1"}
    message = {"role": "assistant", "content": "hi"}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": USAGE})
    delta = {"index": 0, "delta": message, "finish_reason": "stop"}
    return stream([frame({**head, "object": "chat.completion.chunk", "choices": [delta]}), "data: [DONE]\n\n"])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/models/chat/completions?api-version=2024-05-01-preview",
        "/serving-endpoints/chat/completions",
        "/serverless/v1/chat/completions",
    ],
)
async def test_answers_name_the_deployment_and_clients_may_send_that_or_the_engines_name(rig: Rig, path: str) -> None:
    rig.blue.answer = rig.green.answer = named
    async with httpx.AsyncClient(base_url=rig.url) as client:
        for model, deployment in (("chat", "blue"), ("green", "green"), ("green-model", "green")):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
            whole = (await client.post(path, json=body)).json()
            streamed = (await client.post(path, json={**body, "stream": True})).text
            assert whole["model"] == deployment
            assert f'"model":"{deployment}"' in streamed
            assert f"{deployment}-model" not in streamed
            if "serverless" not in path:
                assert whole["system_fingerprint"] == f"{deployment}-vllm-1"


@pytest.mark.parametrize(
    ("path", "fields", "answer"),
    [
        ("/v1/completions", {"prompt": "hi"}, completion),
        ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 3}, message),
        ("/v1/responses", {"input": "hi"}, response),
        ("/tgi/chat/v1/chat/completions", {"messages": CHAT["messages"]}, named),
    ],
)
def test_other_kinds_of_answers_name_the_deployment(
    rig: Rig, path: str, fields: dict[str, Any], answer: Answer
) -> None:
    rig.green.answer = answer
    body = {"model": "green", **fields}
    assert httpx.post(rig.url + path, json=body).json()["model"] == "green"
    streamed = httpx.post(rig.url + path, json={**body, "stream": True}).text
    assert '"model":"green"' in streamed
    assert "green-model" not in streamed
