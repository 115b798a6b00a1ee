"""The batch that is being filled. Entries are encoded as they come: as objects they would take ten times the memory."""

from collections import Counter

import msgspec

from app.ledger.wire import FeedbackItem, Plan, SealedBatch, encoder

Arm = tuple[str, str]
"""An endpoint and the assigned deployment."""

_MOST_IN_SHORT_HEADER = 0xFFFF


class _Names(dict[str, int]):
    """The index of each name; a new name gets the next."""

    def __missing__(self, name: str) -> int:
        index = self[name] = len(self)
        return index


class _Entries:
    """An array of MessagePack that grows."""

    def __init__(self) -> None:
        self.count = 0
        self._encoded = bytearray()

    def add(self, entry: tuple[object, ...] | FeedbackItem) -> None:
        """Adds an entry: feedback, or the fields of a `wire.Start`, `Row`, `Late` or `Pair`."""
        self.count += 1
        encoder.encode_into(entry, self._encoded, -1)

    def array(self) -> msgspec.Raw:
        """The whole array: its header (array 16 or 32), and the entries."""
        short = self.count <= _MOST_IN_SHORT_HEADER
        header = b"\xdc" + self.count.to_bytes(2) if short else b"\xdd" + self.count.to_bytes(4)
        return msgspec.Raw(header + self._encoded)


class OpenBatch:
    """Collects entries, and the names and plans that they index: `names[…]`, `plan(…)`. `arms` counts its rows."""

    def __init__(self) -> None:
        self.names = _Names()
        self.starts, self.rows, self.late = _Entries(), _Entries(), _Entries()
        self.feedback, self.pairs = _Entries(), _Entries()
        self.arms: Counter[Arm] = Counter()
        self._plans: dict[str, int] = {}
        self._plan_list: list[Plan] = []

    def __len__(self) -> int:
        return sum(entries.count for entries in self._parts)

    @property
    def _parts(self) -> tuple[_Entries, ...]:
        return self.starts, self.rows, self.late, self.feedback, self.pairs

    def plan(self, plan: Plan) -> int:
        """The index of a plan. Its id is that of one endpoint: the endpoint's name is part of the hashed content."""
        if (index := self._plans.get(plan.id)) is None:
            index = self._plans[plan.id] = len(self._plans)
            self._plan_list.append(plan)
        return index

    def sealed(self, number: int) -> SealedBatch:
        """The batch in the form in which it is stored and sent."""
        names, plans = msgspec.Raw(encoder.encode(list(self.names))), msgspec.Raw(encoder.encode(self._plan_list))
        return SealedBatch(number, names, plans, *(entries.array() for entries in self._parts))
