"""Configurations that are rejected, and the messages."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.config.base import MOST_PROBLEMS, ConfigError
from app.config.file_check import check_file
from app.config.loading import load
from app.config.reference import schema
from app.config.schema import parse
from tests.support.processes.project import ROOT

GOOD: dict[str, Any] = {
    "endpoints": {
        "chat": {"tasks": ["chat"], "traffic": {"blue": 90, "green": 10}},
        "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
    },
    "deployments": {
        "blue": {"app": "blue", "model": "m"},
        "green": {"url": "https://llm.example.com", "model": "m", "api_key_env": "KEY"},
        "mini": {"app": "mini", "model": "e", "tasks": ["embeddings"]},
    },
    "defaults": {"chat": "chat"},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    node = document
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    return document


def test_a_valid_configuration_is_accepted() -> None:
    assert parse(GOOD).endpoints["chat"].traffic == {"blue": 90, "green": 10}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("endpoints.chat.traffic", {"blue": 90, "green": 5}, "endpoints.chat.traffic: sums to 95 .*: add 5"),
        ("endpoints.chat.traffic", {"blue": 90, "green": 20}, "traffic: sums to 110 .*: take away 10"),
        (
            "endpoints.chat.traffic",
            {"blue": 90.5, "green": 9.5},
            "traffic.blue: expected a whole number, not 90.5",
        ),
        (
            "endpoints.chat.traffic",
            {"blue": 101, "green": -1},
            "endpoints.chat.traffic.green: expected at least 0, not -1",
        ),
        ("endpoints.chat.traffic", {}, "endpoints.chat.traffic: expected at least 1, not 0"),
        ("endpoints.chat.traffic", {"gone": 100}, "endpoints.chat.traffic: unknown deployment 'gone'; declare it"),
        ("endpoints.chat.traffic", {"blue": 50, "mini": 50}, "endpoints.chat.traffic: deployment 'mini' does embed"),
        ("endpoints.chat.fallback", ["gone"], "endpoints.chat.fallback: unknown deployment 'gone'"),
        ("endpoints.chat.fallback", ["mini"], "endpoints.chat.fallback: deployment 'mini' does embeddings"),
        ("endpoints.chat.tasks", [], "endpoints.chat.tasks: expected at least 1, not 0"),
        ("endpoints.chat.tasks", ["dance"], r"endpoints.chat.tasks\[0\]: expected one of chat, "),
        ("endpoints.chat.colour", {}, "endpoints.chat.colour: unknown key; .*known: tasks, traffic, sticky"),
        ("endpoints.chat.sticky", {"by": "header"}, "endpoints.chat.sticky: `by: header` needs `name: <header>`"),
        ("endpoints.chat.sticky", {"by": "user", "name": "x"}, "endpoints.chat.sticky: .*the others take no name"),
        (
            "endpoints.chat.sticky",
            {"by": "user", "nam": "x"},
            "endpoints.chat.sticky.nam: unknown key; did you mean name",
        ),
        (
            "endpoints.chat.content_filter",
            {"patterns": ["("]},
            r"endpoints.chat.content_filter.patterns\[0\]: .*regular",
        ),
        ("endpoints.chat.content_filter", {"words": []}, "content_filter.words: unknown key; .*known: patterns"),
        ("endpoints.blue", GOOD["endpoints"]["chat"], "endpoints.blue: a deployment has the same name; rename one"),
        ("endpoints.a b", GOOD["endpoints"]["chat"], "endpoints.a b: 'a b' is no name"),
        ("deployments.blue", {"model": "m"}, "deployments.blue: set either `app`"),
        ("deployments.blue", {"app": "a", "url": "http://x", "model": "m"}, "deployments.blue: set either `app`"),
        ("deployments.blue", {"app": "a"}, "deployments.blue.model: Field required"),
        ("deployments.green.continuation", {"wait_s": 5}, "deployments.green: `continuation` needs `app`: a server"),
        ("deployments.blue.continuation", {"wait_s": 0}, "blue.continuation.wait_s: expected more than 0, not 0"),
        ("deployments.blue.api_key_env", "K", "deployments.blue: `api_key_env` and `api_key_file` need `url`"),
        ("deployments.green.api_key_file", "k", "deployments.green: set either `api_key_env` or"),
        ("deployments.green.url", "llm.example.com", "deployments.green: `url` .*must be a server's address"),
        ("deployments.green.url", "http://x/v1/", "deployments.green: `url` .*leave out /v1"),
        ("deployments.green.port", 1, "deployments.green.port: unknown key"),
        *[
            ("deployments.mini.instruction_template", template, "deployments.mini: `instruction_template` needs")
            for template in ("", "{input}", "{instruction}: {text}", "{instruction} {input} {input}")
        ],
        ("defaults.chat", "gone", "defaults.chat: unknown endpoint 'gone'; known: chat, embed"),
        ("defaults.chat", "embed", "defaults.chat: endpoint 'embed' does embeddings only"),
        ("timeouts.idle", 3, "timeouts.idle: unknown key; did you mean idle_s"),
        ("timeouts.idle_s", 0, "timeouts.idle_s: expected more than 0, not 0"),
        ("endpoints.chat.admission", {"max_concurrent": 0}, "admission.max_concurrent: expected at least 1, not 0"),
        (
            "endpoints.chat.admission",
            {"max_concurrent": 1, "queue": 1},
            "admission.queue: unknown key; did you mean max_queued",
        ),
        ("max_body", 3, "max_body: unknown key; did you mean max_body_bytes"),
    ],
)
def test_an_invalid_configuration_is_rejected_with_the_path_and_the_fix(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(changed(path, value))


def test_all_problems_are_reported_together() -> None:
    document = changed("endpoints.chat.traffic", {"gone": 50, "mini": 50})
    document["defaults"]["chat"] = "nobody"
    with pytest.raises(ConfigError) as raised:
        parse(document)
    assert len(raised.value.problems) == 3


@given(st.integers(MOST_PROBLEMS - 2, MOST_PROBLEMS + 3))
def test_the_first_problems_are_listed_and_the_others_counted(count: int) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({f"odd{number}": 1 for number in range(count)} | GOOD)
    listed, more = caught.value.problems[:MOST_PROBLEMS], caught.value.problems[MOST_PROBLEMS:]
    assert len(listed) == min(count, MOST_PROBLEMS)
    assert all(line.startswith(f"odd{number}: unknown key") for number, line in enumerate(listed))
    rest = count - MOST_PROBLEMS
    assert more == ([f"(more): {rest} further problems are not listed; correct these first"] if rest > 0 else [])


@pytest.mark.parametrize("data", [None, [], "x", 3, {}])
def test_other_documents_are_rejected(data: object) -> None:
    with pytest.raises(ConfigError):
        parse(data)


def serve_file(**router: Any) -> dict[str, Any]:
    return {
        "applications": [
            {
                "name": "router",
                "route_prefix": "/",
                "import_path": "deployments.router:build",
                "deployments": [{"name": "Router", "user_config": GOOD}],
                **router,
            },
            {"name": "blue", "route_prefix": "/deployments/blue", "import_path": "own:blue"},
            {"name": "mini", "route_prefix": "/deployments/mini", "import_path": "own:mini"},
        ]
    }


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document, sort_keys=False))
    return path


def test_a_serve_file_and_a_bare_one_give_the_same_configuration(tmp_path: Path) -> None:
    assert (
        load(write(tmp_path / "serve.yaml", serve_file())) == load(write(tmp_path / "bare.yaml", GOOD)) == parse(GOOD)
    )


def broken(**change: Any) -> dict[str, Any]:
    document = serve_file()
    document["applications"][1].update(change)
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (broken(name="mini"), "duplicate name 'mini'"),
        (broken(name="other"), "deployments.blue.app: no application is named 'blue'"),
        (broken(route_prefix="/blue"), "applications.blue.route_prefix: must be /deployments/blue"),
        (serve_file(name="front"), "no application is named 'router'"),
        (serve_file(deployments=[{"name": "Router"}]), "the router has no `user_config`"),
        ({"applications": "x"}, "applications: expected a list, not x"),
        ("- 1\n- 2\n", "expected a mapping"),
        ("a: [", "not YAML"),
        ("a: 2030-02-31", "not YAML: day is out of range"),
        ("{[a]: b}", "serve.yaml:1: a key must be plain text"),
        ("[" * 400, "not YAML"),
        ("endpoints:\n  chat: 1\n  chat: 2\n", "serve.yaml:3: duplicate key 'chat'"),
    ],
)
def test_an_invalid_file_is_rejected(tmp_path: Path, document: Any, message: str) -> None:
    problems = check_file(write(tmp_path / "serve.yaml", document))
    assert any(message in problem for problem in problems), problems


def test_problems_in_a_serve_file_have_their_line_and_their_path_in_the_routers_part(tmp_path: Path) -> None:
    document = serve_file()
    document["applications"][0]["deployments"][0]["user_config"] = changed("endpoints.chat.traffic", {"blue": 1})
    (problem,) = check_file(write(tmp_path / "serve.yaml", document))
    assert problem.startswith(f"{tmp_path}/serve.yaml:12: endpoints.chat.traffic: sums to 1")


def test_a_merged_mapping_counts_and_its_keys_may_be_replaced(tmp_path: Path) -> None:
    text = "endpoints:\n  a: &a {tasks: [chat], traffic: {m: 100}}\n  b: {<<: *a, tasks: [completions]}\n"
    config = load(write(tmp_path / "serve.yaml", text + "deployments: {m: {app: m, model: m}}\n"))
    assert [list(endpoint.tasks) for endpoint in config.endpoints.values()] == [["chat"], ["completions"]]
    with pytest.raises(ConfigError, match="duplicate key 'tasks'"):
        load(write(tmp_path / "serve.yaml", text.replace("<<: *a", "<<: *a, tasks: [chat]")))


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in check_file(tmp_path / "gone.yaml")[0]


def test_the_default_configuration_is_valid() -> None:
    assert check_file(ROOT / "serve_config.yaml") == []


def test_the_committed_schema_is_the_generated_one() -> None:
    assert json.loads((ROOT / "serve_config.schema.json").read_text()) == schema()
