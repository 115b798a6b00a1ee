"""The state of a router that decides on the turns of conversations: the real rules, pins and exchange of pins."""

from collections.abc import Callable, Sequence
from random import Random

from msgspec.structs import replace

from app.config.schema import Config, Deployment, Endpoint
from app.exchange.snapshot import SnapshotBuilder
from app.experiments.controller import PinExchange
from app.exposures.log import ExposureLog
from app.exposures.uploader import ControllerSync
from app.exposures.wire import Acknowledgement, Replaced, TrafficBlock
from app.routing.conversations import PinnedConversations
from app.routing.rules import ConversationTurn
from app.routing.traffic import Decision, rendezvous

SETTLE_S = 3.0
DEPLOYMENTS = {name: Deployment(url=f"http://{name}", model="m") for name in ("a", "b", "c")}


class OneRouter:
    """A router's state of the endpoint `chat`; all routers share `clock`, in Unix seconds."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name, self.clock = name, clock
        self.pins = PinnedConversations(lambda endpoint, cause: None, clock)
        self.builder = SnapshotBuilder(ExposureLog(lambda url: b"s" * 32), self.pins, clock, settle_s=SETTLE_S)
        self.sync = ControllerSync(
            self.pins, lambda: True, self._stop, self._follow, self._catch_up, lambda sizes: None
        )

    def configure(self, endpoint: Endpoint) -> None:
        self.snapshot = self.builder.configured(Config(endpoints={"chat": endpoint}, deployments=DEPLOYMENTS), {})

    def _stop(self, stops: Sequence[TrafficBlock]) -> None:
        self.snapshot = self.builder.stopped(stops) or self.snapshot

    def _follow(self, replaced: Sequence[Replaced]) -> None:
        self.snapshot = self.builder.replaced(replaced) or self.snapshot

    def _catch_up(self) -> None:
        self.snapshot = self.builder.behind() or self.snapshot

    def exchange(
        self,
        controller: PinExchange,
        stops: Sequence[TrafficBlock] = (),
        former: Sequence[Replaced] = (),
        routers: int = 1,
    ) -> None:
        """One batch and its acknowledgement, without exposures. `routers`: those that the controller knows."""
        pins, seen = self.sync.outgoing()
        controller.take(self.name, pins, self.clock())
        answer, end = controller.after(seen, self.name)
        said = Acknowledgement(0, 0, controller.id, stops=list(stops), pins=answer, pins_end=end, replaced=list(former))
        self.sync.apply(replace(said, windows=controller.windows(self.clock()), routers=routers))
        self.sync.tidy()

    def decides(self, key: str, turn: ConversationTurn) -> Decision:
        """The deployment of a request with this sticky key."""
        if (rules := self.snapshot.rules.get("chat")) is None:
            weights = self.snapshot.config.endpoints["chat"].traffic
            return Decision(rendezvous(key, weights), "sticky", weights)
        return rules.decide(key, Random(1), lambda name: False, lambda: turn)
