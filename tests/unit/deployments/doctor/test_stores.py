"""Keys, an issuer and a limits store that are unavailable or broken."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.access.keys import append, create
from deployments.doctor.finding import Installation, Level
from deployments.doctor.service_checks import issuer, keys, limits_store
from tests.support.processes.installations import default, installation, levels, the_problem, the_warning
from tests.support.processes.oidc_provider import AUDIENCE, LocalIssuer
from tests.support.processes.redis_server import RedisServer
from tests.support.processes.servers import free_port, serve


def with_access(**access: Any) -> Installation:
    return installation(default(access=access))


def test_a_missing_broken_or_empty_keys_file_is_found(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    found = with_access(keys_file=str(file))
    assert str(file) in the_problem(keys(found))
    file.write_text("- name: [")
    assert str(file) in the_problem(keys(found))
    file.write_text("")
    assert the_warning(keys(found)) == f"{file} has no keys"
    append(file, create("team")[1].line)
    assert levels(keys(found)) == [Level.OK]


def test_keys_that_this_node_does_not_mount_are_a_warning(tmp_path: Path) -> None:
    found = replace(with_access(keys_file=str(tmp_path / "secret/keys.yaml")), on_cluster=True)
    assert the_warning(keys(found)).startswith(f"{tmp_path}/secret is not mounted on this node")
    (tmp_path / "secret").mkdir()
    assert "keys.yaml" in the_problem(keys(found))


def test_stores_that_are_not_configured_have_no_findings() -> None:
    assert [*keys(installation()), *issuer(installation()), *limits_store(installation())] == []


def test_an_issuer_that_does_not_answer_is_found() -> None:
    provider = LocalIssuer()
    with serve(provider.app) as provider.url:
        found = with_access(oidc={"issuer": provider.url, "audience": AUDIENCE})
        assert levels(issuer(found)) == [Level.OK]
        provider.up = False
        assert "does not answer with its keys" in the_problem(issuer(found))
    assert "does not answer with its keys" in the_problem(issuer(found))


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.stop()


def test_a_store_that_does_not_answer_is_found(redis: RedisServer) -> None:
    found = with_access(limits={"store": {"url": redis.url}})
    assert levels(limits_store(found)) == [Level.OK]
    redis.stop()
    assert the_problem(limits_store(found)).startswith("it does not answer")


def test_a_store_with_a_missing_or_invalid_url_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_access(limits={"store": {"url_env": "LIMITS_URL"}})
    monkeypatch.delenv("LIMITS_URL", raising=False)
    assert the_problem(limits_store(found)) == "its URL cannot be read from the variable LIMITS_URL"
    assert "this node cannot read" in the_warning(limits_store(replace(found, on_cluster=True)))
    monkeypatch.setenv("LIMITS_URL", "nonsense")
    assert "is not a redis:// URL" in the_problem(limits_store(found))
    monkeypatch.setenv("LIMITS_URL", f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert "secret" not in the_problem(limits_store(found))
