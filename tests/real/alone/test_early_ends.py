"""Requests that end early, by a timeout or an SDK's method: the engine stops working for them."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from azure.ai.inference import ChatCompletionsClient
from azure.core.credentials import AzureKeyCredential

from tests.real.conftest import Application
from tests.support.clients.conversations import MESSAGES
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

GREEN = "smollm2-green"
IDLE_WITHIN_S = 10.0
"""A quiet machine needs less than one; the answers would take minutes."""


def wait_until_idle(application: Application) -> None:
    wait_until(lambda: application.running(GREEN) == 0, within_s=IDLE_WITHIN_S)


def test_azures_sdk_closes_its_stream(application: Application) -> None:
    with ChatCompletionsClient(application.url, AzureKeyCredential("unused"), retry_total=0) as client:
        stream: Any = client.complete(
            messages=MESSAGES,
            max_tokens=4000,
            model_extras={"ignore_eos": True},
            stream=True,
            headers={"azureml-model-deployment": GREEN},
        )
        assert next(iter(stream)).choices
        assert application.running(GREEN) >= 1
        stream.close()
        wait_until_idle(application)


def test_databricks_truncate_returns_the_text_so_far_at_a_timeout(application: Application) -> None:
    body = {"prompt": "Tell a story.", "logit_bias": {"2": -100}}  # SmolLM2's end of sequence never comes
    url, seconds = f"{application.url}/serving-endpoints/{GREEN}/invocations", {"x-request-timeout-s": "3"}

    def ask(**fields: Any) -> httpx.Response:
        return httpx.post(url, json={**body, **fields}, headers=seconds, timeout=60)

    with ThreadPoolExecutor() as pool:
        whole, late = pool.submit(ask, error_behavior="truncate"), pool.submit(ask)
        streamed = ask(error_behavior="truncate", stream=True)
    cut = whole.result().json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert 0 < cut["usage"]["completion_tokens"] < 8000
    assert cut["choices"][0]["text"]
    wait_until_idle(application)
    assert (late.result().status_code, late.result().json()["error_code"]) == (504, "DEADLINE_EXCEEDED")
    *_, last, done, end = streamed.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"] > 0


def test_friendlis_timeout_is_a_429(application: Application) -> None:
    url = f"{application.url}/serverless/v1/completions"
    long = {"model": GREEN, "prompt": "The little bird", "max_tokens": 4000, "min_tokens": 4000}
    result = httpx.post(url, json={**long, "timeout_microseconds": 300_000}, timeout=240)
    assert (result.status_code, result.json()["error"]["param"]) == (429, "timeout_microseconds")
    wait_until_idle(application)
    with httpx.stream(
        "POST", url, json={**long, "timeout_microseconds": 3_000_000, "stream": True}, timeout=240
    ) as stream:
        lines = stream.iter_lines()
        assert "token_sampled" in next(lines)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    wait_until_idle(application)
