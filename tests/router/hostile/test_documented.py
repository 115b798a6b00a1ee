"""Valid and invalid requests generated from the OpenAPI document, for every operation of every dialect."""

from typing import Any

import numpy  # noqa: F401  # before the router's threads, or both import it at the same time
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance

from app.server.openapi import GROUPS
from tests.router.hostile.budget import attempt
from tests.router.hostile.client import HANGS_S, Reply
from tests.router.hostile.rig import HostileRig

SHARE = 0.14 / len(GROUPS)
"""Few: to generate a case takes ten times as long as to send it."""

NO_CONTROLLER = b"No controller of experiments runs beside this router"

MAX_RULES = 4
"""The number of alternatives of one schema that schemathesis combines."""

NAMES = st.sampled_from(["chat", "embed", "blue", "green", "unknown"])


@pytest.fixture(scope="module")
def operations(standing: HostileRig) -> list[Any]:
    """All of the document."""
    document = with_few_rules(standing.document())
    schema = schemathesis.openapi.from_dict(document)
    described: list[Any] = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(described) == sum(len(methods) for methods in document["paths"].values())
    return described


def with_few_rules(document: dict[str, Any]) -> dict[str, Any]:
    """The document without the rules of schemas that have too many: schemathesis would reject their operations."""
    for schema in document["components"]["schemas"].values():
        if len(schema.get("allOf", ())) > MAX_RULES:
            del schema["allOf"]
    return document


def named(case: Any, name: str) -> Any:
    """The case with a name that exists: otherwise nearly all cases would be a 404."""
    if isinstance(case.body, dict) and "model" in case.body:
        case.body["model"] = name
    case.path_parameters = {key: name if value else value for key, value in (case.path_parameters or {}).items()}
    return case


def dialects(operation: Any) -> set[str]:
    """Those of an operation, by the groups in which it is listed."""
    return {dialect for dialect, (title, _) in GROUPS.items() if title in operation.definition.raw["tags"]}


@pytest.mark.parametrize("dialect", GROUPS)
def test_no_request_of_the_document_breaks_the_router(hostile: HostileRig, operations: list[Any], dialect: str) -> None:
    chosen = [operation for operation in operations if dialect in dialects(operation)]
    assert chosen
    kinds: list[st.SearchStrategy[Any]] = [
        operation.as_strategy(generation_mode=mode)
        for operation in chosen
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    ]

    def of_kind(number: int) -> st.SearchStrategy[Any]:
        return kinds[number]

    # By their number: Hypothesis warns of a strategy whose `repr` is as long as that of all operations.
    cases = st.integers(0, len(kinds) - 1).flatmap(of_kind)
    with requests.Session() as session:
        session.trust_env = False

        def check(case: Any) -> None:
            answer = case.call(base_url=hostile.url, session=session, timeout=HANGS_S)
            headers = {name.lower(): values[0] for name, values in answer.headers.items()}
            reply = Reply(answer.status_code, headers, answer.content)
            impatient = "x-request-timeout-s" in {name.lower() for name in case.headers or {}}
            # A negative case may have a path or method that belongs to no dialect.
            if case.meta.generation.mode == GenerationMode.POSITIVE:
                case.validate_response(answer, checks=[response_schema_conformance])
            allowed = {*dialects(case.operation), "openai"}
            if case.operation.path.startswith("/tgi/"):  # Switchyard's own routes there, too
                allowed.add("tgi")
            asks_controller = dialect == "switchyard" and NO_CONTROLLER in reply.body
            try:
                hostile.check(reply, allowed, impatient=impatient, needs_controller=asks_controller)
            except AssertionError as error:
                error.add_note(f"{case.operation.label}: {case.body!r:.500}")
                raise

        attempt(st.one_of(cases, st.builds(named, cases, NAMES)), SHARE, check)


def test_every_list_has_the_documented_form(hostile: HostileRig, operations: list[Any]) -> None:
    """Also once callers without a key have asked for an endpoint that there is not."""
    refused = {"model": "unknown", "messages": [{"role": "user", "content": "hello"}]}
    assert requests.post(f"{hostile.url}/v1/chat/completions", json=refused, timeout=HANGS_S).status_code == 404
    lists = [one for one in operations if one.method == "get" and "{" not in one.path and not one.query]
    assert "/api/callers" in {one.path for one in lists}
    for operation in lists:
        case = operation.Case()
        answer = case.call(base_url=hostile.url, timeout=HANGS_S)
        case.validate_response(answer, checks=[response_schema_conformance])
