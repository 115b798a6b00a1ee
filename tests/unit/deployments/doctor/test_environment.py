"""Environment variables that are missing or wrong."""

from deployments import draining, haproxy
from deployments.doctor.finding import Level
from deployments.doctor.host_checks import configuration, switches
from tests.support.processes.installations import default, installation, levels, the_problem, the_warning

ON_NODES = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    **haproxy.SETTINGS,
    **draining.SETTINGS,
    haproxy.METRICS_HOST_VARIABLE: haproxy.EVERY_INTERFACE,
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "3600",
    "SWITCHYARD_INTERNAL_KEY": "secret",
    "SWITCHYARD_UNIT_SECRET": "another",
}


ROUTERS_SECRETS = {"SWITCHYARD_INTERNAL_KEY", "SWITCHYARD_UNIT_SECRET"}


def test_a_broken_configuration_is_found_with_its_path() -> None:
    broken = default(endpoints={"chat": {"tasks": ["chat"], "traffic": {"nobody": 100}}}, defaults={}, experiments={})
    assert "unknown deployment 'nobody'" in the_problem(configuration(installation(broken)))
    assert levels(configuration(installation())) == [Level.OK]


def test_a_node_without_a_required_variable_is_found() -> None:
    assert levels(switches(installation(on_cluster=True, environment=ON_NODES))) == [Level.OK]
    for name in ("RAY_SERVE_ENABLE_HA_PROXY", "SWITCHYARD_INTERNAL_KEY"):
        lacking = {key: value for key, value in ON_NODES.items() if key != name}
        assert the_problem(switches(installation(on_cluster=True, environment=lacking))) == f"{name} is not set"


def test_a_node_of_engines_needs_their_key_alone() -> None:
    engines = {key: value for key, value in ON_NODES.items() if key not in ROUTERS_SECRETS}
    engines["SWITCHYARD_ENGINE_KEY"] = "derived"
    assert levels(switches(installation(on_cluster=True, environment=engines))) == [Level.OK]


def test_units_that_hang_on_the_internal_key_are_a_warning() -> None:
    lacking = {key: value for key, value in ON_NODES.items() if key != "SWITCHYARD_UNIT_SECRET"}
    found = the_warning(switches(installation(on_cluster=True, environment=lacking)))
    assert found == "SWITCHYARD_UNIT_SECRET is not set: the ledger's units hang on the key"


def test_a_setting_that_cuts_streams_is_a_warning() -> None:
    shorter = {**ON_NODES, "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "120"}
    found = the_warning(switches(installation(on_cluster=True, environment=shorter)))
    assert found == "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S is '120', not '3600'"
    soon = {name: value for name, value in ON_NODES.items() if name != "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"}
    assert "cuts its streams" in the_warning(switches(installation(on_cluster=True, environment=soon)))


def test_a_node_that_keeps_its_ingress_metrics_to_itself_is_a_warning() -> None:
    alone = {name: value for name, value in ON_NODES.items() if name != haproxy.METRICS_HOST_VARIABLE}
    assert "routers cannot read the metrics" in the_warning(switches(installation(on_cluster=True, environment=alone)))


def test_a_shell_that_overrides_serve_is_found() -> None:
    assert levels(switches(installation(environment={}))) == [Level.OK]
    found = the_problem(switches(installation(environment={"RAY_SERVE_ENABLE_HA_PROXY": "0"})))
    assert found == "RAY_SERVE_ENABLE_HA_PROXY is '0', not '1'"
    assert the_problem(switches(installation(environment={"RAY_AUTH_MODE": ""}))) == "RAY_AUTH_MODE is '', not 'token'"
