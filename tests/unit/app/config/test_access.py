"""Invalid `access` sections, and servers that other machines can reach."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.access import Limiting, Limits, StoreSettings
from app.config.base import ConfigError, is_loopback
from app.config.file_check import check_file
from app.config.loading import runs_several
from app.config.schema import parse
from tests.support.processes.project import ROOT
from tests.unit.app.config.test_schema import GOOD, serve_file, write

OIDC = {"issuer": "https://id.example.com", "audience": "switchyard"}


def with_access(**access: Any) -> dict[str, Any]:
    return {**GOOD, "access": access}


@pytest.mark.parametrize(
    "access",
    [
        {},
        {"keys_file": "/etc/switchyard/keys.yaml", "metrics": "restricted"},
        {"oidc": {**OIDC, "jwks_url": "https://id.example.com/keys", "principal_claim": "azp"}},
        {"oidc": {"issuer": "http://127.0.0.1:9000/realm", "audience": "x"}},
        {"limits": {"default": {"requests_per_minute": 60, "tokens_per_minute": None}, "endpoints": {"chat": {}}}},
        {"limits": {"callers": {"auth0|62": {"concurrent_requests": 1}}, "store": {"url": "rediss://cache:6379/1"}}},
        {"keys_file": "keys.yaml", "groups": ["staff", "customers-eu"]},
        {"oidc": {**OIDC, "groups_claim": "groups"}, "groups": ["staff"]},
    ],
)
def test_a_valid_access_section_is_accepted(access: dict[str, Any]) -> None:
    parse(with_access(**access))


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        ({"oidc": {**OIDC, "groups_claim": "groups"}}, "`oidc.groups_claim` needs `groups`"),
        ({"allow_anonymous": True, "groups": ["staff"]}, "`groups` needs `keys_file` or `oidc`"),
        ({"keys_file": "keys.yaml", "groups": [f"g{number}" for number in range(17)]}, "at most 16"),
        ({"keys_file": "keys.yaml", "groups": ["the staff"]}, "groups"),
    ],
)
def test_groups_are_few_and_somebody_may_belong_to_them(access: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(with_access(**access))
    assert problem in "\n".join(caught.value.problems)


def test_the_section_in_the_docs_is_valid() -> None:
    page = (ROOT / "docs/operate/access.md").read_text()
    section = page.partition("```yaml\naccess:")[2].partition("```")[0]
    access = parse({**GOOD, **yaml.safe_load(f"access:{section}")}).access
    assert access.limits.limits_for("batch", "embed", None) == Limits(
        requests_per_minute=600, tokens_per_minute=2000000, concurrent_requests=4
    )


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ({"key_file": "x"}, "access.key_file: unknown key; did you mean keys_file"),
        ({"metrics": "restricted", "allow_anonymous": True}, "access: `metrics: restricted` needs `keys_file` or"),
        ({"managers": ["boss", "anonymous"]}, "access: `managers` names 'anonymous'"),
        ({"viewers": ["anonymous"]}, "access: `viewers` names 'anonymous'"),
        ({"operators": {"gone": []}}, "access.operators.gone: unknown endpoint; known: chat, emb"),
        ({"managers": ["oidc:x"], "keys_file": "k"}, "`managers` names 'oidc:x', but there are no tokens; set `oidc`"),
        ({"managers": ["key:x"], "oidc": OIDC}, "`managers` names 'key:x', but there are no keys; set `keys_file`"),
        (
            {"managers": ["boss"], "operators": {"chat": ["ann"]}, "keys_file": "k", "oidc": OIDC},
            "`managers` names 'boss', which may be .* write 'key:boss' or 'oidc:boss'; `operators.chat` names 'ann'",
        ),
        ({"oidc": {**OIDC, "jwks_url": "https://["}}, "access.oidc: `jwks_url` .*https:// URL"),
        ({"metrics": "closed"}, "access.metrics: expected one of open, restricted, not closed"),
        ({"oidc": {}}, "access.oidc.issuer: Field required"),
        ({"oidc": {**OIDC, "audience": ""}}, "access.oidc.audience: .*at least 1"),
        ({"oidc": {**OIDC, "issuer": "http://id.example.com"}}, "access.oidc: `issuer` .*https:// URL"),
        ({"oidc": {**OIDC, "issuer": "id"}}, "access.oidc: `issuer` .*https:// URL"),
        ({"oidc": {**OIDC, "jwks_url": "ftp://x"}}, "access.oidc: `jwks_url` .*https:// URL"),
        ({"oidc": {**OIDC, "leeway_s": -1}}, "access.oidc.leeway_s: expected at least 0, not -1"),
        ({"oidc": {**OIDC, "jwks": "x"}}, "access.oidc.jwks: unknown key; did you mean jwks_url"),
        (
            {"limits": {"default": {"requests_per_minute": 0}}},
            "limits.default.requests_per_minute: expected at least 1, not 0",
        ),
        ({"limits": {"default": {"requests_per_minute": 1.5}}}, "limits.default.requests_per_minute: .*whole number"),
        ({"limits": {"default": {"rpm": 1}}}, "limits.default.rpm: unknown key; .*known: requests_per_minute"),
        ({"limits": {"endpoints": {"gone": {}}}}, "limits.endpoints.gone: unknown endpoint; known: chat, emb"),
        ({"limits": {"callers": {"a\nb": {}}}}, "access.limits.callers.a\nb: .*printable"),
        ({"limits": {"on_store_failure": "die"}}, "limits.on_store_failure: expected one of allow, refuse, not die"),
        ({"limits": {"store": {}}}, "access.limits.store: set exactly one of `url`, `url_env` and `url_file`"),
        ({"limits": {"store": {"url": "redis://x", "url_env": "X"}}}, "access.limits.store: set exactly one of"),
        ({"limits": {"store": {"url": "http://x"}}}, "access.limits.store: `url` must begin with redis://"),
        ({"limits": {"store": {"url": "redis://:pw@x"}}}, "access.limits.store: `url` holds a password"),
        ({"limits": {"store": {"url": "redis://x?password=pw"}}}, "access.limits.store: `url` holds a password"),
    ],
)
def test_an_invalid_access_section_is_rejected(access: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        parse(with_access(**access))
    assert "pw@" not in str(raised.value)


def test_each_number_is_the_smallest_of_the_limits() -> None:
    limiting = Limiting.model_validate(
        {
            "default": {"requests_per_minute": 60, "tokens_per_minute": 1000, "concurrent_requests": 4},
            "endpoints": {"chat": {"tokens_per_minute": 500}},
            "callers": {"team": {"requests_per_minute": 600}},
        }
    )
    assert limiting.limits_for("other", "embed", None) == limiting.default
    assert limiting.limits_for("team", "chat", None) == Limits(
        requests_per_minute=600, tokens_per_minute=500, concurrent_requests=4
    )
    own = Limits.model_validate({"requests_per_minute": 7, "concurrent_requests": None})
    assert limiting.limits_for("team", "chat", own) == Limits(requests_per_minute=7, tokens_per_minute=500)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "")],
)
def test_loopback_hosts_are_recognised(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("deployment", "several"),
    [
        ({}, False),
        ({"num_replicas": 1}, False),
        ({"num_replicas": 2}, True),
        ({"num_replicas": "auto"}, True),
        ({"autoscaling_config": {"min_replicas": 1}}, False),
        ({"autoscaling_config": {"max_replicas": 1}}, False),
        ({"autoscaling_config": {"max_replicas": 4}}, True),
    ],
)
def test_several_routers_are_recognised(deployment: dict[str, Any], several: bool) -> None:
    assert runs_several(deployment) is several


def router(user_config: dict[str, Any], **deployment: Any) -> dict[str, Any]:
    return serve_file(deployments=[{"name": "Router", "user_config": user_config, **deployment}])


LIMITED: dict[str, Any] = {"limits": {"default": {"requests_per_minute": 60}}}


def test_several_routers_cannot_count_limits_in_memory(tmp_path: Path) -> None:
    (problem,) = check_file(write(tmp_path / "serve.yaml", router(with_access(**LIMITED), num_replicas=2)))
    assert problem.startswith(f"{tmp_path}/serve.yaml:36: access.limits: several routers cannot count")
    LIMITED["limits"]["store"] = {"url_env": "REDIS_URL"}
    assert check_file(write(tmp_path / "serve.yaml", router(with_access(**LIMITED), num_replicas=2))) == []
    del LIMITED["limits"]["store"]
    assert check_file(write(tmp_path / "serve.yaml", router(with_access(**LIMITED)))) == []
    assert check_file(write(tmp_path / "serve.yaml", router(GOOD, num_replicas=2))) == []


@pytest.mark.parametrize(
    ("host", "access", "right"),
    [
        ("127.0.0.1", {}, True),
        (None, {}, True),
        ("0.0.0.0", {}, False),
        ("0.0.0.0", {"limits": {"default": {"requests_per_minute": 1}}}, False),
        ("0.0.0.0", {"allow_anonymous": True}, True),
        ("0.0.0.0", {"keys_file": "keys.yaml"}, True),
        ("0.0.0.0", {"oidc": OIDC}, True),
    ],
)
def test_a_server_that_other_machines_reach_needs_authentication(
    tmp_path: Path, host: str | None, access: dict[str, Any], right: bool
) -> None:
    options = {"port": 8000} if host is None else {"host": host, "port": 8000}
    document = {"http_options": options, **router(with_access(**access))}
    problems = check_file(write(tmp_path / "serve.yaml", document))
    assert (problems == []) is right
    assert all(": access: the server would be reachable from other machines" in problem for problem in problems)


def test_the_stores_url_may_be_in_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:secret@cache\n")
    monkeypatch.setenv("REDIS_URL", "redis://other")
    assert StoreSettings(url_file=file).read() == "redis://:secret@cache"
    assert StoreSettings(url_env="REDIS_URL").read() == "redis://other"
    assert StoreSettings(url="redis://plain").read() == "redis://plain"
