"""Each caller's usage, as one router counts it."""

from app.activity.caller_use import CallerUse, Use
from app.engine.output import Usage
from app.telemetry.logs import Record


def record(caller: str, endpoint: str = "chat", **fields: object) -> Record:
    made = Record("openai", "chat", "r", caller, endpoint, status=200)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_requests_failures_and_tokens_are_counted_by_caller_and_endpoint() -> None:
    now = 100.0
    use = CallerUse(lambda: now)
    use.count(record("ann", usage=Usage(9, 3)))
    now = 160.0
    use.count(record("ann", usage=Usage(1, 1)))
    use.count(record("ann", "embed", status=429, error="limit"))
    use.count(record("bob", error="broken"))
    use.count(record("cid", "", status=404, error="not_found"))
    use.count(record("cid", status=499, error="client_gone", sent_tokens=5, prompt_estimate=7))
    assert use.since == 100.0
    assert list(use.items()) == [
        ("ann", "chat", Use(2, 0, 10, 4, 160.0)),
        ("ann", "embed", Use(1, 1, 0, 0, 160.0)),
        ("bob", "chat", Use(1, 1, 0, 0, 160.0)),
        ("cid", "", Use(1, 1, 0, 0, 160.0)),
        ("cid", "chat", Use(1, 1, 7, 5, 160.0)),
    ]


def test_callers_beyond_the_bound_are_counted_together() -> None:
    use = CallerUse(lambda: 1.0, most=2)
    for name in ("ann", "bob", "cid", "dan", "ann"):
        use.count(record(name))
    assert [(caller, use_of_endpoint.requests) for caller, _, use_of_endpoint in use.items()] == [
        ("", 2),
        ("ann", 2),
        ("bob", 1),
    ]
