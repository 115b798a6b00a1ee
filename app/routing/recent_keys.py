"""The sticky keys that this router saw last, in memory only: a dry run reports which share of them would move."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping

from app.config.schema import Endpoint, Sticky

MOST_KEYS = 4096
"""Keys per endpoint."""

_MOST_CHARACTERS = 1024
"""Longer keys are left out: clients choose them, and they cost memory."""


class RecentKeys:
    """The distinct keys of each endpoint, the latest last."""

    def __init__(self) -> None:
        # A dict would search for its oldest key among those that were removed.
        self._keys: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._sticky: Mapping[str, Sticky | None] = {}

    def configure(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Forgets the keys of endpoints that no longer exist or whose `sticky` has changed."""
        sticky = {name: endpoint.sticky for name, endpoint in endpoints.items()}
        for name in list(self._keys):
            if sticky.get(name) != self._sticky.get(name):
                del self._keys[name]
        self._sticky = sticky

    def saw(self, endpoint: str, key: str) -> None:
        """Notes the key of a request."""
        if len(key) > _MOST_CHARACTERS:
            return
        keys = self._keys[endpoint]
        keys[key] = None
        keys.move_to_end(key)
        if len(keys) > MOST_KEYS:
            keys.popitem(last=False)

    def of(self, endpoint: str) -> list[str]:
        """The endpoint's keys."""
        return list(self._keys.get(endpoint, ()))
