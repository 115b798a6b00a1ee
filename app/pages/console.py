"""`/ui`: the console. Its files hold no data: the scripts read `/api`, with the rights of the key that was typed."""

from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from app.pages.headers import PAGE_HEADERS

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_UPLOT = ("uPlot.iife.js", "uPlot.min.css")
_SHELL = "index.html"

_HEADERS = {
    **PAGE_HEADERS,
    "cross-origin-opener-policy": "same-origin",
    # A new version of the server serves a new console: browsers ask each time, and mostly get a 304.
    "cache-control": "no-cache",
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


async def page(request: Request) -> Response:
    """The console's page. It is open, as it holds no data."""
    return _answer(request, _files()[_SHELL])


async def file(request: Request) -> Response:
    """A script, style sheet or picture of the console."""
    found = _files().get(request.path_params["file"])
    if found is None:
        raise HTTPException(404)
    return _answer(request, found)


def _answer(request: Request, file: _File) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


@cache
def _files() -> dict[str, _File]:
    """Every file by its path below `/ui/static/`. What is not in this table is not served, whatever a path says."""
    own = Path(__file__).parent / "static"
    found = {path.relative_to(own).as_posix(): path for path in own.rglob("*") if path.suffix in _MEDIA_TYPES}
    # Found, not imported: the package is a desktop plotter, and only its browser files are used.
    package = find_spec("uplot")
    assert package is not None
    assert package.origin is not None
    found |= {name: Path(package.origin).parent / "static" / name for name in _UPLOT}
    return {name: _read(path) for name, path in found.items()}


def _read(path: Path) -> _File:
    content = path.read_bytes()
    return _File(content, _MEDIA_TYPES[path.suffix], f'"{blake2b(content, digest_size=12).hexdigest()}"')
