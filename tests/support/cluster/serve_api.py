"""Serve's REST API on the head's dashboard, as KubeRay uses it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.cluster.network import OPERATOR_ADDRESS

PUTS = 3
"""The most attempts to deliver a configuration."""


@dataclass(frozen=True)
class Replica:
    """A replica as Serve lists it. `pid` counts within its pod."""

    application: str
    id: str
    state: str
    address: str
    pid: int | None


class ServeApi:
    """`address`: the head's. `token`: Ray's, if it requires one."""

    def __init__(self, address: str, token: str | None) -> None:
        self._url = f"http://{address}:8265/api/serve/applications/"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def put(self, document: Mapping[str, Any]) -> None:
        """Delivers a configuration. A busy head that does not answer in time is asked again, as KubeRay does."""
        for _ in range(PUTS - 1):
            with suppress(httpx.TimeoutException):
                self._request("PUT", json=document)
                return
        self._request("PUT", json=document)

    def statuses(self) -> dict[str, str]:
        """The applications' statuses by name; empty while Serve does not answer."""
        return {name: application_status["status"] for name, application_status in self._applications().items()}

    def replicas(self, application: str, state: str = "RUNNING") -> list[Replica]:
        """The application's replicas in that state."""
        found = []
        for deployment in self._applications().get(application, {}).get("deployments", {}).values():
            for entry in deployment["replicas"]:
                replica = Replica(
                    application, entry["replica_id"], entry["state"], entry.get("node_ip") or "", entry.get("pid")
                )
                if replica.state == state:
                    found.append(replica)
        return found

    def messages(self) -> object:
        """Serve's statuses and messages, for an assertion."""
        return {
            name: [
                application_status["status"],
                application_status.get("message"),
                [(d["status"], d.get("message")) for d in application_status["deployments"].values()],
            ]
            for name, application_status in self._applications().items()
        }

    def _applications(self) -> Mapping[str, Any]:
        try:
            applications: Mapping[str, Any] = self._request("GET").json()["applications"]
        except httpx.HTTPError:
            return {}
        return applications

    def _request(self, method: str, **content: Any) -> httpx.Response:
        operator = httpx.HTTPTransport(verify=False, local_address=OPERATOR_ADDRESS)
        with httpx.Client(transport=operator, headers=self._headers, timeout=120) as client:
            response = client.request(method, self._url, **content)
        assert response.status_code < 400 or response.status_code >= 500, response.text
        return response.raise_for_status()
