"""`/docs`: Swagger UI on `/openapi.json`. Its files come from an installed package; the page needs no other host.

- The headers of every page and of its files.
- `/ui`: the console. Its files hold no data: the scripts read `/api` with the rights of the visitor's key.
- `GET /`: a browser gets the console, every other client the names of the routes, with status 200.
"""

import gzip
import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.access.guard import Access
from app.access.oidc import policy_source
from app.dialects.base import JSON


def page_headers(*connect: str) -> Mapping[str, str]:
    """Headers that allow scripts, styles and requests of this server only, and requests to the sources `connect`.

    `data:` is for Swagger UI's icons, which are data URLs in its style sheet, and for images that a visitor of the
    console has chosen to send.
    """
    sources = " ".join(("'self'", *connect))
    return {
        "content-security-policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
            f"connect-src {sources}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }


PAGE_HEADERS = page_headers()


_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

_TEMPLATE = "index.html"
_CONSOLE = {
    "title": "Switchyard",
    "head": """<link rel="stylesheet" href="/ui/static/css/console.css">
<link rel="stylesheet" href="/ui/static/css/playground.css">
<link rel="modulepreload" href="/ui/static/js/main.js">""",
    "scripts": '<script src="/ui/static/js/main.js" type="module"></script>',
}
_API = {
    "title": "Switchyard: API",
    "head": """<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="stylesheet" href="/docs/readable.css">""",
    "scripts": """<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js" type="module"></script>""",
}


async def api_page(request: Request) -> Response:
    """The page. It needs no credential, like the document that it shows."""
    # The frame's links name pages of the console.
    page = _page(**_API).replace('href="#/', f'href="{ROUTES["console"]}#/')
    return HTMLResponse(page, headers=PAGE_HEADERS)


async def api_file(request: Request) -> Response:
    """A script or style sheet of the page."""
    name = request.path_params["file"]
    headers = {**PAGE_HEADERS, "cache-control": "public, max-age=3600"}
    if (own := _files().get(f"docs/{name}")) is not None:
        return Response(own.content, headers=headers, media_type=own.media_type)
    if name not in _FILES:
        raise HTTPException(404)
    return Response(_content(name), headers=headers, media_type=_FILES[name])


@cache
def _content(name: str) -> bytes:
    # Located, not imported: only the package's files are used, not its subclass of FastAPI.
    package = find_spec("fastapi_offline")
    assert package is not None
    assert package.origin is not None
    return (Path(package.origin).parent / "static" / name).read_bytes()


_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_UPLOT = ("uPlot.iife.js", "uPlot.min.css")

_CONSOLE_FILES = {
    "cross-origin-opener-policy": "same-origin",
    # A new version of the server has a new console: browsers revalidate each time, and mostly get a 304.
    "cache-control": "no-cache",
}
_HEADERS = {**PAGE_HEADERS, **_CONSOLE_FILES}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str

    def variant(self, key: str) -> "_File":
        """The same content with a different etag, for other headers."""
        return self._replace(etag=_etag((self.etag + key).encode()))


class Console:
    """The routes of the page and of its sign-in."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def page(self, request: Request) -> Response:
        """The console's page. It needs no credential, as it holds no data."""
        oidc = (await self._access.sign_in()).oidc
        endpoint = oidc["token_endpoint"] if oidc is not None else None
        # The only request to another host that the page may make: it exchanges the issuer's code for a token.
        policy = page_headers(policy_source(endpoint)) if endpoint is not None else PAGE_HEADERS
        shell = _console()
        # Browsers cache a page with its policy: a page with another policy needs another etag.
        return _answer(request, shell if endpoint is None else shell.variant(endpoint), {**policy, **_CONSOLE_FILES})

    async def sign_in(self, request: Request) -> Response:
        """The ways to sign in to the console. It needs no credential: a page that has none reads it."""
        found = await self._access.sign_in()
        document = {"credentials": found.credentials, "required": found.required, "oidc": found.oidc}
        return JSONResponse(document, headers={"cache-control": "no-store"})


async def file(request: Request) -> Response:
    """A script, style sheet or picture of the console."""
    found = _files().get(request.path_params["file"])
    if found is None:
        raise HTTPException(404)
    return _answer(request, found, _HEADERS)


def _answer(request: Request, file: _File, headers: Mapping[str, str]) -> Response:
    coding = {}
    if _qualities(request.headers.get("accept-encoding", "")).get("gzip", 0.0) > 0:
        file = file.variant("gzip")._replace(content=_gzipped(file.content))
        coding = {"content-encoding": "gzip"}
    headers = {**headers, "etag": file.etag, "vary": "accept-encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, **coding}, media_type=file.media_type)


@cache
def _gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@cache
def _files() -> dict[str, _File]:
    """Every file by its path below `/ui/static/`. No path reaches any other file."""
    own = Path(__file__).parent / "static"
    found = {path.relative_to(own).as_posix(): path for path in own.rglob("*") if path.suffix in _MEDIA_TYPES}
    # Located, not imported: the package is a desktop plotter, and only its browser files are used.
    package = find_spec("uplot")
    assert package is not None
    assert package.origin is not None
    found |= {name: Path(package.origin).parent / "static" / name for name in _UPLOT}
    return {name: _file(path.read_bytes(), path.suffix) for name, path in found.items()}


@cache
def _console() -> _File:
    content = _page(**_CONSOLE).encode()
    return _File(content, "text/html; charset=utf-8", _etag(content))


@cache
def _page(title: str, head: str, scripts: str) -> str:
    """A page, in the frame that all pages share."""
    template = (Path(__file__).parent / "static" / _TEMPLATE).read_text(encoding="utf-8")
    return template.format(title=title, head=head, scripts=scripts)


def _file(content: bytes, suffix: str) -> _File:
    return _File(content, _MEDIA_TYPES[suffix], _etag(content))


def _etag(content: bytes) -> str:
    return f'"{blake2b(content, digest_size=12).hexdigest()}"'


# The status matters more than the body: TGI's clients and load balancers probe this path, and Anthropic's command line
# sends it a HEAD. Neither asks for HTML.

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


def index() -> Response:
    """The way to the console."""
    return RedirectResponse(ROUTES["console"], headers=_VARY)


def routes() -> Response:
    """The routes, as JSON that people can read."""
    return Response(_DOCUMENT, media_type=JSON, headers=_VARY)


def _qualities(accept: str) -> dict[str, float]:
    """The media types of an Accept header, or the codings of Accept-Encoding (RFC 9110, 12.4.2), with their weights, 0
    to 1. A malformed weight is 0."""
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in item.split(";"))
        weights = [
            value.strip()
            for name, _, value in (parameter.partition("=") for parameter in parameters)
            if name.strip() == "q"
        ]
        try:
            qualities[media_type] = float(weights[0]) if weights else 1.0
        except ValueError:
            qualities[media_type] = 0.0
    return qualities
