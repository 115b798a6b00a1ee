"""The application is recognised as ASGI 3 before it is called."""

import inspect

from app.server.application import Router
from app.upstream.target import RuntimeEnvironment


def test_the_application_is_recognised_as_asgi_3() -> None:
    """uvicorn takes an application whose `__call__` is no coroutine function for ASGI 2, and answers 500."""
    assert inspect.iscoroutinefunction(type(Router(RuntimeEnvironment()).app).__call__)
