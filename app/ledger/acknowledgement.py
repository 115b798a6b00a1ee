"""The controller's answer to a router's batch, as MessagePack: the batches that it has, and state for routers."""

import msgspec

from app.ledger.wire import Pins, encoder


class Stop(msgspec.Struct, frozen=True):
    """A treatment that gets no traffic any more: its weight is control's, until a plan has the same effect."""

    id: str
    endpoint: str
    deployment: str
    control: str


class Replaced(msgspec.Struct, frozen=True):
    """Percentages of an endpoint that running conversations still follow under the present plan, whose `id` as
    `plans.plan_of` has it is `plan`. `until`: Unix seconds. `withdrawn`: deployments that they have left since, each
    with the one that got them."""

    endpoint: str
    plan: str
    weights: dict[str, int]
    until: float
    withdrawn: dict[str, str] = {}


class Acknowledgement(msgspec.Struct, frozen=True):
    """The controller's answer to a batch.

    `received` and `durable`: every batch of this router up to that number has arrived, or is durably in the ledger's
    directory (dropped ones apart: see `Batch.oldest`). A router keeps batches that are not durable, and sends the kept
    batches above `received` in order. `received` goes back where a controller restarted, or recovered from a failed
    directory.
    """

    received: int
    durable: int
    controller: str = ""
    """A random id of the controller's process. Another process has no pins: routers send theirs again, and read
    from 0."""
    stops: list[Stop] = []
    """All stops that are in force."""
    pins: list[Pins] = []
    """Pins of other routers, after `Batch.pins_seen`; not necessarily all of them at once."""
    pins_end: int = 0
    windows: dict[str, float] = {}
    """Endpoints that have changed on any router, each with the end of the time in which running conversations keep
    their deployment, in Unix seconds."""
    routers: int = 1
    """Routers that report to the controller now."""
    replaced: list[Replaced] = []
    """Weights replaced by plans that do not list them, an endpoint's oldest first: for routers that have started
    since."""


_acknowledgements = msgspec.msgpack.Decoder(Acknowledgement)


def encode_acknowledgement(acknowledgement: Acknowledgement) -> bytes:
    """The acknowledgement as MessagePack."""
    return encoder.encode(acknowledgement)


def decode_acknowledgement(data: bytes) -> Acknowledgement:
    """Raises msgspec.DecodeError on anything else."""
    return _acknowledgements.decode(data)
