"""All checks, in the order in which a person would look."""

from collections.abc import Callable, Iterator, Sequence

from deployments.doctor import applications, environment, ingress, machine, models, packages, stores
from deployments.doctor.finding import Finding, problem
from deployments.doctor.installation import Installation

CHECKS: Sequence[Callable[[Installation], Iterator[Finding]]] = (
    environment.configuration,
    environment.switches,
    packages.versions,
    ingress.haproxy,
    ingress.port,
    stores.keys,
    stores.issuer,
    stores.limits_store,
    models.weights,
    machine.memory,
    machine.disk,
    machine.shared_memory,
    machine.build,
    machine.compiler,
    machine.gpus,
    applications.applications,
    applications.last_errors,
)


def examine(it: Installation) -> Iterator[Finding]:
    """Yields the findings of every check. One that raises is a finding, too: on a broken installation any may."""
    for check in CHECKS:
        try:
            yield from check(it)
        except Exception as error:  # noqa: BLE001  the other checks must still run
            name = check.__name__.replace("_", " ")
            yield problem(name, f"the check failed: {type(error).__name__}: {error}", "report this as a bug")
