"""`GET /`: a browser gets the console, every other client the names of the routes, with status 200.

The status matters more than the body: TGI's clients and load balancers probe this path, and Anthropic's command line
sends it a HEAD. Neither asks for HTML.
"""

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.dialects.base import JSON

BASE_URLS: Mapping[str, str] = {
    "OpenAI": "/v1",
    "Azure OpenAI": "/",
    "Anthropic": "/",
    "Azure AI Model Inference": "/",
    "Databricks Foundation Model APIs": "/",
    "Text Generation Inference, MindIE": "/",
    "Friendli": "/",
}
"""The base URL for each provider's clients. Paths, not whole URLs: behind a proxy the router does not know its own."""

ROUTES: Mapping[str, str] = {
    "console": "/ui",
    "documentation": "/docs",
    "openapi": "/openapi.json",
    "models": "/v1/models",
    "health": "/health",
    "ready": "/ready",
    "metrics": "/metrics",
}

_DOCUMENT = json.dumps({"name": "Switchyard", "base_urls": BASE_URLS, "routes": ROUTES}, indent=2) + "\n"
_VARY = {"vary": "accept"}


def asks_for_page(request: Request) -> bool:
    """Whether the client is a browser that shows a page: it names `text/html`, and prefers it to JSON."""
    qualities = _qualities(",".join(request.headers.getlist("accept")))
    return qualities.get("text/html", 0.0) > qualities.get("application/json", 0.0)


def page() -> Response:
    """The way to the console."""
    return RedirectResponse(ROUTES["console"], headers=_VARY)


def routes() -> Response:
    """The routes, as JSON that people can read."""
    return Response(_DOCUMENT, media_type=JSON, headers=_VARY)


def _qualities(accept: str) -> dict[str, float]:
    """The media types of an Accept header (RFC 9110, 12.5.1) with their weights, 0 to 1. A malformed weight is 0."""
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        weights = [value.strip() for name, _, value in (it.partition("=") for it in parameters) if name.strip() == "q"]
        try:
            qualities[media_type] = float(weights[0]) if weights else 1.0
        except ValueError:
            qualities[media_type] = 0.0
    return qualities
