"""Every example of the OpenAPI document is a valid request, at every path that has it, and names what is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from starlette.responses import JSONResponse, Response

from app.access.keys import append, create
from app.server.application import Router
from app.upstream.target import RuntimeEnvironment
from tests.router.conftest import Rig
from tests.router.hostile.engine import ANSWERS
from tests.support.engine.fake_engine import CARD, USAGE, FakeEngine
from tests.support.processes.fake_control_plane import MemoryControl
from tests.support.processes.servers import ServerPool

SHIPPED = Path(__file__).parents[3] / "serve_config.yaml"

UNSERVED = {
    "/classify": "no model of the shipped configuration classifies",
    "/v1/classify": "the same",
    "/dedicated/classify": "the same",
    "/predict": "the same",
    "/tgi/{endpoint}/predict": "the same",
}
"""The calls of models that the shipped configuration does not answer, and why."""

MALFORMED = (400, 405, 413, 415, 422)


def scores(body: dict[str, Any]) -> Response:
    """A rank for each document, and in the form of `/score`."""
    documents = [
        {"index": index, "document": {"text": text}, "relevance_score": 0.5, "object": "score", "score": 0.5}
        for index, text in enumerate(body["documents"])
    ]
    return JSONResponse({"id": "r", "model": "m", "usage": USAGE, "results": documents, "data": documents})


def pooled(body: dict[str, Any]) -> Response:
    """The vectors of each text's tokens."""
    data = [{"object": "pooling", "index": index, "data": [[0.5, 0.5]]} for index, _ in enumerate(body["input"])]
    return JSONResponse({"id": "p", "object": "list", "created": 1, "model": "m", "data": data, "usage": USAGE})


def classified(body: dict[str, Any]) -> Response:
    """Two classes of each text."""
    data = [{"index": index, "label": "A", "probs": [0.7, 0.3]} for index, _ in enumerate(body["input"])]
    return JSONResponse({"id": "c", "object": "list", "created": 1, "model": "m", "data": data, "usage": USAGE})


ALSO = {"/v1/rerank": scores, "/v2/rerank": scores, "/score": scores, "/pooling": pooled, "/classify": classified}


def answers_all(engine: FakeEngine) -> None:
    """Makes it an application of this project that answers at every route."""
    engine.card = CARD
    engine.answer = lambda body: (ANSWERS | ALSO)[engine.paths[-1]](body)


@pytest.fixture
def url(rig: Rig) -> str:
    """A router with the endpoints of the shipped configuration, in front of fake engines."""
    (router,) = (app for app in yaml.safe_load(SHIPPED.read_text())["applications"] if app["name"] == "router")
    shipped: dict[str, Any] = router["deployments"][0]["user_config"]
    engines = dict(zip(shipped["deployments"], rig.config["deployments"].values(), strict=True))
    rig.config = shipped | {
        "deployments": {
            name: {**engines[name], **{key: value for key, value in fields.items() if key != "app"}}
            for name, fields in shipped["deployments"].items()
        }
    }
    rig.change()
    for engine in (rig.blue, rig.green, rig.mini):
        answers_all(engine)
    return rig.url


class Filled(NamedTuple):
    """A request as the page of the API has it before anybody changes anything. `body` is None without one."""

    method: str
    path: str
    operation: dict[str, Any]
    body: Any

    def send(self, url: str) -> httpx.Response:
        """The answer to it."""
        values: dict[str, dict[str, str]] = {"path": {}, "query": {}, "header": {}}
        for parameter in self.operation["parameters"]:
            if "example" in parameter:
                values[parameter["in"]][parameter["name"]] = parameter["example"]
        return httpx.request(
            self.method,
            url + self.path.format(**values["path"]),
            params=values["query"],
            headers=values["header"],
            json=self.body,
            timeout=20,
        )


def requests(url: str, key: str = "") -> Iterator[Filled]:
    """Those of operations with a body."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    paths = httpx.get(f"{url}/openapi.json", headers=headers).raise_for_status().json()["paths"]
    for path, methods in paths.items():
        for method, operation in methods.items():
            if "requestBody" in operation:
                yield Filled(
                    method, path, operation, operation["requestBody"]["content"]["application/json"]["example"]
                )


def is_management(request: Filled) -> bool:
    """Whether it is no call of a model."""
    return request.path.startswith("/api/")


def test_every_call_of_a_model_is_answered_as_the_page_fills_it_in(url: str) -> None:
    calls = [request for request in requests(url) if not is_management(request)]
    answers = {request.path: request.send(url) for request in calls}
    refused = {path: answer.text for path, answer in answers.items() if answer.status_code != 200}
    assert refused.keys() == UNSERVED.keys(), refused
    assert {path: answer.status_code for path, answer in answers.items() if path in refused} == dict.fromkeys(
        UNSERVED, 404
    ) | {"/predict": 422}, "there is no such endpoint, and no default one"
    assert len(answers) > 100


def test_no_example_of_a_change_is_malformed_and_few_change_anything(rig: Rig, url: str, servers: ServerPool) -> None:
    control = MemoryControl(rig.config, lambda config: None)
    control.delivers_at_once = True
    router = Router(RuntimeEnvironment(internal_key="internal"), control=control, controller=rig.keeper)
    router.reconfigure(rig.config)
    with servers.host(router.app) as managed:
        changes = [request for request in requests(managed) if is_management(request)]
        answers = {request.path: request.send(managed) for request in changes}
    assert {path: answer.text for path, answer in answers.items() if answer.status_code in MALFORMED} == {}
    assert len(answers) == 11
    assert control.replaced == 1, "Databricks' alone, which takes no ETag and has no dry run"


def test_an_operation_says_what_its_example_needs(rig: Rig, url: str) -> None:
    described = {request.path: request.operation.get("description", "") for request in requests(url)}
    assert "`defaults: {completions: …}`" in described["/generate"]
    assert "defaults" not in described["/tgi/{endpoint}/generate"] + described["/v1/chat/completions"]
    lacking = {path for path, text in described.items() if "stands for an endpoint with the task `classify`" in text}
    assert lacking | {"/predict"} == UNSERVED.keys()
    assert "`defaults: {classify: …}`" in described["/predict"]
    classes = {"tasks": ["classify"], "traffic": {"classifier": 100}}
    rig.change(
        deployments={"classifier": {**rig.config["deployments"]["minilm"], "tasks": ["classify"]}},
        endpoints={"classes": classes},
        defaults={"classify": "classes"},
    )
    assert not any("stands for" in request.operation.get("description", "") for request in requests(url))
    unserved = [request for request in requests(url) if request.path in UNSERVED]
    assert {request.path: request.send(url).status_code for request in unserved} == dict.fromkeys(UNSERVED, 200)


def named(url: str, key: str = "") -> set[str]:
    """What the examples have as a model."""
    return {request.body["model"] for request in requests(url, key) if "model" in request.body}


def test_examples_name_the_endpoints_that_the_reader_may_use_and_no_other(rig: Rig, url: str, tmp_path: Path) -> None:
    assert named(url) == {"chat", "embed", "<an endpoint for classify>"}
    key, record = create("team", endpoints=("embed",))
    append(tmp_path / "keys.yaml", record.line)
    rig.change(access={"keys_file": str(tmp_path / "keys.yaml")})
    tasks = ("chat", "completions", "responses", "embeddings", "rerank", "classify")
    open_ = {f"<an endpoint for {task}>" for task in tasks}
    assert named(url) == named(url, "sk-nonsense") == open_
    rest = open_ - {"<an endpoint for embeddings>", "<an endpoint for rerank>"}
    assert named(url, key) == rest | {"embed"}
    hidden = httpx.get(f"{url}/openapi.json", headers={"authorization": f"Bearer {key}"}).text
    assert "minilm" in hidden
    assert "smollm2" not in hidden
    assert "no-prefix-cache" not in hidden
