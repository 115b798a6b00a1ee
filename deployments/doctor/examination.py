"""All checks, in the order in which a person would look."""

from collections.abc import Callable, Iterator, Sequence

from deployments.doctor import host_checks, service_checks
from deployments.doctor.finding import Finding, Installation, problem

Check = Callable[[Installation], Iterator[Finding]]

CHECKS: Sequence[Check] = (
    host_checks.configuration,
    host_checks.switches,
    host_checks.versions,
    host_checks.haproxy_check,
    host_checks.port,
    service_checks.keys,
    service_checks.issuer,
    service_checks.limits_store,
    service_checks.weights,
    host_checks.memory,
    host_checks.disk,
    host_checks.shared_memory,
    host_checks.build,
    host_checks.compiler,
    host_checks.gpus,
    service_checks.applications,
    service_checks.last_errors,
)


def examine(installation: Installation, checks: Sequence[Check] = CHECKS) -> Iterator[Finding]:
    """Yields the findings of every check. One that raises is a finding, too: on a broken installation any may."""
    for check in checks:
        try:
            yield from check(installation)
        except Exception as error:  # noqa: BLE001  the other checks must still run
            name = check.__name__.replace("_", " ")
            yield problem(name, f"the check failed: {type(error).__name__}: {error}", "report this as a bug")
