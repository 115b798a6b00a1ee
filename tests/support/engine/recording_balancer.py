"""A balancer that keeps what it was asked for: keys are no part of what an engine receives."""

from dataclasses import replace

from app.upstream.balancer import Balancer, Placement, Visit


class RecordingBalancer(Balancer):
    """Keeps the placements of requests, as they were when a replica was chosen. Nobody tells it of replicas, unless
    `update` does."""

    def __init__(self) -> None:
        super().__init__()
        self.placements: list[tuple[str, Placement]] = []
        """The application and the placement of every request."""

    def visit(self, application: str, placement: Placement) -> Visit | None:
        self.placements.append((application, replace(placement)))
        return super().visit(application, placement)

    @property
    def keys(self) -> list[int | None]:
        """The keys of the requests, in their order."""
        return [placement.key for _, placement in self.placements]
