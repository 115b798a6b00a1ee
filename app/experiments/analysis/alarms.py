"""Alarms of one experiment: each is journalled once, with the time at which it was raised."""

from collections.abc import Iterator
from typing import Any

import msgspec

from app.experiments.report import Alarm, Occurrence


class Alarms:
    """Alarms that stay, and alarms that hold only while their cause lasts."""

    def __init__(self) -> None:
        self._alarms: dict[str, Alarm] = {}

    def __iter__(self) -> Iterator[Alarm]:
        return iter(sorted(self._alarms.values(), key=lambda alarm: (alarm.at, alarm.text)))

    def raised_at(self, key: str) -> float | None:
        """The time at which it was raised, in Unix seconds; None if it was not."""
        alarm = self._alarms.get(key)
        return None if alarm is None else alarm.at

    def text(self, key: str) -> str:
        """What it says; empty if it was not raised."""
        alarm = self._alarms.get(key)
        return "" if alarm is None else alarm.text

    def hold(self, key: str, alarm: Alarm) -> Occurrence | None:
        """Raises an alarm. New facts about it go into the journal."""
        if key in self._alarms:
            return None
        self._alarms[key] = alarm
        return Occurrence(at=alarm.at, kind="alarm", text=alarm.text, detail=msgspec.to_builtins(alarm) | {"key": key})

    def drop(self, key: str) -> None:
        """Ends an alarm whose cause no longer exists."""
        self._alarms.pop(key, None)

    def state(self) -> dict[str, Any]:
        """The state as plain data."""
        return {key: msgspec.to_builtins(alarm) for key, alarm in self._alarms.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`."""
        self._alarms |= {key: msgspec.convert(alarm, Alarm) for key, alarm in state.items()}
