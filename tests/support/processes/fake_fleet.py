"""A fleet in memory: replicas are functions that return their metrics."""

from collections.abc import Callable, Collection

from app.engine.card import EngineCard, encode
from app.errors import NotFound, SwitchyardError
from app.server.fleet import STOPPING, Fleet, Replica

Metrics = Callable[[Collection[str] | None], bytes]


class MemoryFleet:
    """A `FleetSource`. `failure` is raised by every call while it is set; `calls` lists them."""

    def __init__(self, listed: Fleet | None = None) -> None:
        self.listed = listed or Fleet()
        self.failure: SwitchyardError | None = None
        self.calls: list[str] = []
        self.cards: dict[str, EngineCard] = {}
        """What engines say, by the replica's id."""
        self._metrics: dict[str, Metrics] = {}

    def start(self, replica: Replica, metrics: Metrics) -> None:
        self.listed = self.listed._replace(replicas=[*self.listed.replicas, replica])
        self._metrics[replica.id] = metrics

    def drain(self, id: str) -> None:
        replicas = [
            replica._replace(state=STOPPING) if replica.id == id else replica for replica in self.listed.replicas
        ]
        self.listed = self.listed._replace(replicas=replicas)

    def end(self, id: str) -> None:
        self.listed = self.listed._replace(replicas=[replica for replica in self.listed.replicas if replica.id != id])
        del self._metrics[id]

    async def fleet(self) -> Fleet:
        self._note("fleet")
        return self.listed

    async def replica_metrics(self, replica: str, endpoints: Collection[str] | None) -> bytes:
        self._note(replica)
        if replica not in self._metrics:
            raise NotFound(f"The replica {replica} has ended")
        return self._metrics[replica](endpoints)

    async def engine_card(self, replica: str) -> bytes:
        self._note(f"card {replica}")
        if replica not in self.cards:
            raise NotFound(f"The replica {replica} has ended")
        return encode(self.cards[replica])

    async def proxy_metrics(self, node: str) -> bytes:
        self._note(f"proxy {node}")
        return f'haproxy_frontend_sessions_total{{proxy="http_frontend"}} {len(node)}\n'.encode()

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.failure is not None:
            raise self.failure
