import pytest

from app.config.base import ConfigError
from app.exchange.snapshot import Preparation
from app.exposures.plans import plan_of
from app.upstream.target import RuntimeEnvironment
from tests.unit.app.config.test_parser import document


def test_plans_are_those_of_the_endpoints_and_kept_while_these_are() -> None:
    preparation = Preparation(RuntimeEnvironment())
    first, second = preparation.prepare(document(10, 20)), preparation.prepare(document(11, 20))
    for incoming in (first, second):
        endpoints = incoming.config.endpoints
        assert {name: it for name, (_, it) in incoming.plans.items()} == {
            n: plan_of(n, endpoints[n]) for n in endpoints
        }
        assert all(endpoint is endpoints[name] for name, (endpoint, _) in incoming.plans.items())
    assert second.plans["e1"][1] is first.plans["e1"][1]
    assert second.plans["e0"][1] != first.plans["e0"][1]
    assert set(second.targets) == {"blue", "green"}


def test_a_key_that_cannot_be_read_refuses_the_configuration() -> None:
    data = document(10)
    data["deployments"]["blue"] = {"url": "http://a", "model": "m", "api_key_env": "SWITCHYARD_TEST_UNSET"}
    with pytest.raises(ConfigError, match="SWITCHYARD_TEST_UNSET is not set"):
        Preparation(RuntimeEnvironment()).prepare(data)
