"""The API of experiments for tests: on a controller in memory, with keys of a manager and of two teams."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.access.caller import ConfigViews
from app.access.guard import Access
from app.access.keys import append, create
from app.config.schema import parse
from app.exchange.snapshot import LiveRouting
from app.exposures.audit import AuditRecord
from app.exposures.identity import Hashes
from app.exposures.log import ExposureLog
from app.exposures.wire import FeedbackItem
from app.routing.traffic import RecentKeys
from app.server.audit_log import AuditLog
from app.server.events import EventFeed, EventsApi
from app.server.experiments_api import ExperimentsApi
from app.server.operations import Services
from app.telemetry.metrics import Telemetry
from tests.support.experiments.fake_controller import FakeController
from tests.support.experiments.reader import GREEN_FLOAT32

BLUE, GREEN = "smollm2-blue", "smollm2-green"
SECRET = b"secret"
HASHES = Hashes(SECRET)


class Notebook(ExposureLog):
    """A ledger that keeps feedback."""

    def __init__(self) -> None:
        super().__init__(lambda url: SECRET)
        self.hashes = HASHES
        self.items: list[FeedbackItem] = []

    def feedback(self, items: Sequence[FeedbackItem]) -> None:
        self.items += items


class Rig:
    """The API on a controller in memory, with a manager's key and those of two teams."""

    def __init__(self, directory: Path) -> None:
        self.keys: dict[str, tuple[str, str]] = {}
        file = directory / "keys.yaml"
        for name, endpoints in (("boss", []), ("chat team", ["chat"]), ("embed team", ["embed"])):
            key, record = create(name, endpoints=endpoints)
            append(file, record.line)
            self.keys[name] = key, record.id
        self.plain: dict[str, Any] = {
            "endpoints": {
                "chat": {"tasks": ["chat"], "traffic": {BLUE: 50, GREEN: 50}, "sticky": {"by": "conversation"}},
                "embed": {"tasks": ["embeddings"], "traffic": {"mini": 100}},
                "keyed": {"tasks": ["chat"], "traffic": {BLUE: 50, GREEN: 50}, "sticky": {"by": "api_key"}},
            },
            "deployments": {
                **{name: {"url": f"http://127.0.0.1:1/{name}", "model": name} for name in (BLUE, GREEN)},
                "mini": {"url": "http://127.0.0.1:1/mini", "model": "mini", "tasks": ["embeddings"]},
            },
            "experiments": {"green-float32": GREEN_FLOAT32},
            "access": {"keys_file": str(file), "managers": ["boss"]},
        }
        self.controller: FakeController | None = FakeController()
        self.ledger = Notebook()
        self.recent_keys = RecentKeys()
        self.telemetry = Telemetry()
        self.access = Access(self.telemetry, loopback=True, several_routers=False)
        self.views: ConfigViews | None = None
        self.stream_s = 0.0
        """The duration of a stream of events: with 0 it has only the missed ones."""
        self.configure(self.plain)

    def configure(self, plain: Mapping[str, Any]) -> None:
        config = parse(plain)
        self.access.reconfigure(config)
        self.views = ConfigViews(config)

    def id_of(self, key: str) -> str:
        """The caller's id."""
        return f"key-{self.keys[key][1]}"

    @property
    def services(self) -> Services:
        return Services(
            views_or_none=lambda: self.views,
            telemetry=self.telemetry,
            access=self.access,
            audit=AuditLog(_kept, lambda: 0.0),
            control=None,
            controller=self.controller,
            ledger=self.ledger,
            recent_keys=self.recent_keys,
            live_routing=lambda endpoint: LiveRouting(),
            open_breakers=lambda: [GREEN],
        )

    @property
    def client(self) -> TestClient:
        feed = EventFeed(self.controller)
        events = EventsApi(self.services, feed=feed, stream_s=self.stream_s)
        api = ExperimentsApi(self.services)
        return TestClient(Starlette(routes=[*api.routes(), *events.routes()]))

    def call(self, method: str, path: str, key: str = "boss", **more: Any) -> Any:
        headers = {"authorization": f"Bearer {self.keys[key][0]}"} if key else {}
        return self.client.request(method, path, headers=headers, **more)

    def get(self, path: str, key: str = "boss", /, **query: str) -> Any:
        return self.call("GET", path, key, params=query)


def refusal(answer: Any) -> tuple[int, str, str | None]:
    """Status, message and param of an error in OpenAI's form."""
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["message"], error["param"]


async def _kept(records: Sequence[AuditRecord]) -> None:
    """Keeps no record."""
