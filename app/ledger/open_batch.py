"""The batch that is being filled."""

from collections import Counter

from app.ledger.wire import FeedbackItem, Late, Plan, Row, Sealed, Start, seal

Arm = tuple[str, str]
"""An endpoint and the assigned deployment."""


class OpenBatch:
    """Collects entries, and the names and plans that they index. `arms` counts its rows."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._plans: dict[str, int] = {}
        self._plan_list: list[Plan] = []
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
        """The index of a plan. Its id is that of one endpoint: the endpoint's name is part of what is hashed."""
        if (index := self._plans.get(plan.id)) is None:
            index = self._plans[plan.id] = len(self._plans)
            self._plan_list.append(plan)
        return index

    def sealed(self, number: int) -> Sealed:
        """As it is sent and kept."""
        return seal(number, list(self._names), self._plan_list, self.starts, self.rows, self.late, self.feedback)
