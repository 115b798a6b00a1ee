"""Requests for paths and methods that this server has not: counted in groups, so that no scanner fills a list.

A group is a route of this server, or of a vendor's, that was probably meant, with the first path that was asked for;
all other paths are one. So there are no more groups than routes.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable

from app.dialects.base import Request
from app.errors import MethodNotAllowed, SwitchyardError, UnsupportedRoute
from app.misspellings import Names
from app.telemetry.logs import event

OTHERS = "other paths"
_log = logging.getLogger("switchyard")


class UnknownRoutes:
    """The requests of one router since it started. `counted` is called with the status of each."""

    def __init__(self, paths: Iterable[str], counted: Callable[[int], None]) -> None:
        self.groups: Counter[str] = Counter()
        self._known = frozenset(path for path in paths if "{" not in path)
        self._names, self._counted = Names(self._known), counted
        self._meant: dict[str, str] = {}

    def count(self, request: Request, error: SwitchyardError) -> None:
        """Counts a request that got this error, and logs the first one of each group."""
        self._counted(error.status)
        group = self._group(request, error)
        if group not in self.groups:
            unknown = event("unknown_route", route=group, status=error.status, request_id=request.id)
            _log.warning("A request came for a route that this server has not", extra=unknown)
        self.groups[group] += 1

    def _group(self, request: Request, error: SwitchyardError) -> str:
        if isinstance(error, UnsupportedRoute):
            return error.missing
        if isinstance(error, MethodNotAllowed):
            return error.message if request.path in self._known else "a method that the path does not take"
        if not (meant := self._names.meant(request.path)):
            return OTHERS
        return self._meant.setdefault(meant[0], f"{request.path} (did you mean {meant[0]}?)")
