"""The ingress' answers while no router runs: at the start, at the end, and while the router's application is replaced.

A client cannot know that, and must not hear that its route or model does not exist. It gets the error that the router
itself gives before it is configured: in its dialect's form, with the time after which to try again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.errors import Unavailable

RETRY_S = 2
"""Seconds. A start takes longer, and clients that wait twice as long with each attempt get over it."""

ERROR = Unavailable("The server is starting or stopping, and no router takes requests. Repeat the request in a moment")
"""Without `retry_after`, with which an engine is alive and busy: TGI's health checks would succeed."""

VERSIONED = "?api-version"
"""The end of a call whose query has that parameter: Azure's clients send it to paths that others have, too."""

ID = "REQUEST-ID"
"""Stands for the request's id in answers."""


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<noscript><meta http-equiv="refresh" content="2"></noscript>
<script>setTimeout(() => location.reload(), 2000);</script>
<title>Switchyard is starting</title>
<style>
:root { color-scheme: light dark; font: 14px/1.45 system-ui, sans-serif; }
body { margin: 0; color: light-dark(#1a1f27, #e8ebf0); background: light-dark(#fff, #14171c); }
header { display: flex; gap: 7px; padding: 10px 18px; font-weight: 650; }
header { border-bottom: 1px solid light-dark(#d9dde3, #323944); }
main { max-width: 40rem; padding: 10px 18px; }
h1 { font-size: 1.5rem; margin: 10px 0; }
</style>
<header>
<svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true"><rect width="20" height="20" rx="4" fill="#1f5fbf"/>
<path d="M3 10h5c3 0 3-5 6-5h3M8 10c3 0 3 5 6 5h3" fill="none" stroke="#fff" stroke-width="2"/></svg>
Switchyard
</header>
<main>
<h1>Switchyard is starting or stopping</h1>
<p>No router takes requests at the moment. This page tries again by itself.</p>
</main>
</html>
"""
"""For people who open the console or the API's reference. A browser does not refresh an address with a fragment, as
the console's pages have, so a script reloads it. HAProxy has it between single quotes, in a format: so it has
none of these, and no percent sign."""

PAGES = r"^GET:/(?:ui|docs)/?$"


@dataclass(frozen=True)
class Form:
    """One answer. `calls`: expressions for ``METHOD:path``, with `VERSIONED` at its end or not; empty for the answer to
    all other calls."""

    status: int
    media_type: str
    body: str
    headers: Sequence[tuple[str, str]]
    calls: Sequence[str] = ()


def forms() -> list[Form]:
    """The answers in all forms, OpenAI's last. An expression of a path without parameters comes before all others that
    match it, if they are tried in their order."""
    from app.dialects.base import (
        Dialect,
        Request,
        Route,  # here: it takes a moment, and only a start needs it
    )
    from app.dialects.openai.dialect import OpenAI
    from app.dialects.registry import DIALECTS
    from app.dialects.unserved import path_pattern

    def answer(dialect: Dialect, operation: str, request: Request) -> Form:
        reply = dialect.render_error(ERROR, operation, request)
        return Form(reply.status, reply.media_type, reply.body.decode(), tuple(reply.headers.items()))

    def claimed(candidates: Sequence[tuple[Dialect, Route]], request: Request) -> Form:
        """As the router does: the first that claims it, else the last one."""
        dialect, route = next(
            (candidate for candidate in candidates if candidate[0].claims(candidate[1], request)), candidates[-1]
        )
        return answer(dialect, route.operation, request)

    shared: dict[tuple[str, str], list[tuple[Dialect, Route]]] = {}
    for dialect in DIALECTS:
        for route in dialect.routes:
            shared.setdefault((route.method, route.path), []).append((dialect, route))
    calls: dict[Form, list[str]] = {}
    for (method, path), candidates in sorted(shared.items(), key=lambda item: item[0][1].count("{")):
        bare = claimed(candidates, Request(method, path, id=ID))
        versioned = claimed(candidates, Request(method, path, query={"api-version": "v"}, id=ID))
        call, end = f"^{method}:{path_pattern(path)}/?", re.escape(VERSIONED)
        if bare == versioned:
            calls.setdefault(bare, []).append(f"{call}(?:{end})?$")
        else:
            calls.setdefault(bare, []).append(f"{call}$")
            calls.setdefault(versioned, []).append(f"{call}{end}$")
    other = answer(OpenAI(), "none", Request("GET", "/", id=ID))
    calls.setdefault(other, [])
    page = Form(ERROR.status, "text/html; charset=utf-8", PAGE, (("cache-control", "no-store"),))
    calls[page] = [PAGES]
    return [
        replace(form, calls=tuple(served_calls))
        for form, served_calls in sorted(calls.items(), key=lambda pair: pair[0] == other)
    ]
