"""`/docs`: Swagger UI on `/openapi.json`. Its files come from an installed package; the page needs no other host."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.pages.headers import PAGE_HEADERS

_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

_START = b"""SwaggerUIBundle({
  url: document.currentScript.dataset.document,
  dom_id: "#page",
  deepLinking: true,
  docExpansion: "none",
  validatorUrl: null,
});
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Switchyard: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js" data-document="/openapi.json"></script>
</body>
</html>
"""


async def page(request: Request) -> Response:
    """The page itself. It is open, as the document that it shows is."""
    return HTMLResponse(_PAGE, headers=PAGE_HEADERS)


async def file(request: Request) -> Response:
    """A script or style sheet of the page."""
    name = request.path_params["file"]
    headers = {**PAGE_HEADERS, "cache-control": "public, max-age=3600"}
    if name == "start.js":
        return Response(_START, headers=headers, media_type="text/javascript")
    if name not in _FILES:
        raise HTTPException(404)
    return Response(_content(name), headers=headers, media_type=_FILES[name])


@cache
def _content(name: str) -> bytes:
    # Found, not imported: the package is FastAPI with these files, and only the files are used.
    package = find_spec("fastapi_offline")
    assert package is not None
    assert package.origin is not None
    return (Path(package.origin).parent / "static" / name).read_bytes()
