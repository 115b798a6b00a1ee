"""`/ui`: the console. Its files hold no data: the scripts read `/api` with the rights of the visitor's key."""

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.access.guard import Access
from app.access.oidc import policy_source
from app.pages.headers import PAGE_HEADERS, page_headers

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_UPLOT = ("uPlot.iife.js", "uPlot.min.css")
_SHELL = "index.html"

_OWN = {
    "cross-origin-opener-policy": "same-origin",
    # A new version of the server has a new console: browsers revalidate each time, and mostly get a 304.
    "cache-control": "no-cache",
}
_HEADERS = {**PAGE_HEADERS, **_OWN}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str

    def variant(self, key: str) -> "_File":
        """The same content with a different etag, for other headers."""
        return self._replace(etag=f'"{blake2b((self.etag + key).encode(), digest_size=12).hexdigest()}"')


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
        shell = _files()[_SHELL]
        # Browsers cache a page with its policy: a page with another policy needs another etag.
        return _answer(request, shell if endpoint is None else shell.variant(endpoint), {**policy, **_OWN})

    async def sign_in(self, request: Request) -> Response:
        """The ways to sign in to the console. It needs no credential: a page that has none reads it."""
        found = await self._access.sign_in()
        document = {"credentials": found.credentials, "oidc": found.oidc}
        return JSONResponse(document, headers={"cache-control": "no-store"})


async def file(request: Request) -> Response:
    """A script, style sheet or picture of the console."""
    found = _files().get(request.path_params["file"])
    if found is None:
        raise HTTPException(404)
    return _answer(request, found, _HEADERS)


def _answer(request: Request, file: _File, headers: Mapping[str, str]) -> Response:
    headers = {**headers, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


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
    return {name: _read(path) for name, path in found.items()}


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _MEDIA_TYPES[path.suffix], f'"{blake2b(content, digest_size=12).hexdigest()}"')
