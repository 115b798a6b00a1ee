"""The batch that is being filled."""

from collections import Counter

from app.ledger.wire import FeedbackItem, Late, Plan, Row, Sealed, Start, seal

Arm = tuple[str, str]
"""An endpoint and the assigned deployment."""


class OpenBatch:
    """Collects entries, and the names and plans that they index. `arms` counts its rows."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._plans: dict[tuple[str, str], tuple[int, Plan]] = {}
        self.starts: list[Start] = []
        self.rows: list[Row] = []
        self.late: list[Late] = []
        self.feedback: list[FeedbackItem] = []
        self.arms: Counter[Arm] = Counter()

    def __len__(self) -> int:
        return len(self.starts) + len(self.rows) + len(self.late) + len(self.feedback)

    def name(self, name: str) -> int:
        """The index of a name."""
        if (index := self._names.get(name)) is None:
            index = self._names[name] = len(self._names)
        return index

    def plan(self, plan: Plan) -> int:
        """The index of a plan."""
        key = (plan.endpoint, plan.id)
        if (known := self._plans.get(key)) is None:
            known = self._plans[key] = (len(self._plans), plan)
        return known[0]

    def sealed(self, number: int) -> Sealed:
        """As it is sent and kept."""
        plans = [plan for _, plan in self._plans.values()]
        return seal(number, list(self._names), plans, self.starts, self.rows, self.late, self.feedback)
