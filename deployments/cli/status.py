"""`switchyard status`: endpoints, their split, deployments, replicas and health."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from deployments.cli.options import RouterClient, table
from deployments.local.dashboard import Instance


@dataclass(frozen=True)
class EndpointStatus:
    """`traffic`: deployment to percentage; `ready`: a deployment with traffic is healthy."""

    tasks: list[str]
    ready: bool
    traffic: dict[str, int]


@dataclass(frozen=True)
class DeploymentStatus:
    """`application` is the Serve application, None for a server elsewhere or if Serve cannot be read. `parent`: the
    deployment of the model that it adapts, for a LoRA adapter."""

    model: str
    healthy: bool
    application: str | None = None
    parent: str | None = None


@dataclass(frozen=True)
class ApplicationStatus:
    """A Serve application and its replicas."""

    status: str
    running: int
    wanted: int
    messages: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Status:
    """Everything that `switchyard status` prints. `applications` is None for a server elsewhere."""

    url: str
    ready: bool
    endpoints: dict[str, EndpointStatus]
    deployments: dict[str, DeploymentStatus]
    applications: dict[str, ApplicationStatus] | None

    def as_json(self) -> dict[str, Any]:
        """The output of `--json`."""
        return asdict(self)

    def table(self) -> str:
        """The output for a terminal: a line for each endpoint's deployments, then Serve's messages about failing
        applications.
        """
        rows = [row for name in self.endpoints for row in self._rows(name)]
        unused = [
            name
            for name in self.deployments
            if all(name not in endpoint.traffic for endpoint in self.endpoints.values())
        ]
        rows += [["-", "", name, "-", *self._state(name)] for name in unused]
        lines = [f"{self.url}: {'ready' if self.ready else 'NOT READY'}", ""]
        lines.append(table(["ENDPOINT", "TASKS", "DEPLOYMENT", "SHARE", "HEALTH", "REPLICAS", "MODEL"], rows))
        used = {deployment.application for deployment in self.deployments.values()}
        others = {name: application for name, application in (self.applications or {}).items() if name not in used}
        if others:
            lines += [
                "",
                *(
                    f"{name}: {application.status}, {application.running}/{application.wanted} replicas"
                    for name, application in others.items()
                ),
            ]
        for name, application in (self.applications or {}).items():
            if application.status != "RUNNING":
                lines += [f"{name}: {message}" for message in application.messages]
        return "\n".join(lines)

    def _rows(self, name: str) -> list[list[str]]:
        endpoint = self.endpoints[name]
        rows = [
            ["", "", deployment, f"{share} %", *self._state(deployment)]
            for deployment, share in endpoint.traffic.items()
        ]
        rows[0][:2] = [name, ", ".join(endpoint.tasks)]
        return rows

    def _state(self, name: str) -> list[str]:
        """Health, replicas and model of a deployment. Where several share replicas, the application is named."""
        deployment = self.deployments[name]
        application = (self.applications or {}).get(deployment.application or "")
        health = "healthy" if deployment.healthy else "UNHEALTHY"
        model = deployment.model if deployment.parent is None else f"{deployment.model} (adapts {deployment.parent})"
        if application is None:
            return [health, "-", model]
        if application.status != "RUNNING":
            health = application.status
        replicas = f"{application.running}/{application.wanted}"
        if [deployment.application for deployment in self.deployments.values()].count(deployment.application) > 1:
            replicas += f" of {deployment.application}"
        return [health, replicas, model]


def of_local_run(client: RouterClient, instance: Instance) -> Status:
    """This installation's run: configuration from Serve, health from the router."""
    config = instance.router_config or {}
    readiness = client.readiness()
    healthy, ready = readiness.get("deployments") or {}, readiness.get("endpoints") or {}
    return Status(
        url=client.url,
        ready=readiness.get("status") == "ready",
        endpoints={
            name: EndpointStatus(list(section["tasks"]), bool(ready.get(name)), dict(section["traffic"]))
            for name, section in (config.get("endpoints") or {}).items()
        },
        deployments={
            name: DeploymentStatus(section["model"], bool(healthy.get(name)), section.get("app"), section.get("parent"))
            for name, section in (config.get("deployments") or {}).items()
        },
        applications={
            name: ApplicationStatus(
                application.status, application.running, application.wanted, list(application.messages)
            )
            for name, application in instance.applications.items()
        },
    )


def of_server(client: RouterClient) -> Status:
    """A router elsewhere, through the management API: limited to what the caller's key may see."""
    endpoints: dict[str, EndpointStatus] = {}
    deployments: dict[str, DeploymentStatus] = {}
    for name in client.endpoints():
        item = client.endpoint(name)
        config: Mapping[str, Any] = item["config"]
        shares = {
            route["served_entity_name"]: route["traffic_percentage"] for route in config["traffic_config"]["routes"]
        }
        endpoints[name] = EndpointStatus([item["task"]], item["state"]["ready"] == "READY", shares)
        for entity in config["served_entities"]:
            healthy = entity["state"]["deployment"] == "DEPLOYMENT_READY"
            deployments[entity["name"]] = DeploymentStatus(entity["entity_name"], healthy)
    return Status(client.url, all(endpoint.ready for endpoint in endpoints.values()), endpoints, deployments, None)
