"""`/docs`: Swagger UI on `/openapi.json`. Its files come from an installed package; the page needs no other host."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from app.pages.headers import PAGE_HEADERS

_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

_START = b"""// An operation's line is a button: keyboards cannot reach the link that Swagger UI puts inside it.
const plainPaths = ({ React }) => ({
  wrapComponents: {
    DeepLink: (Original) => (props) =>
      props.path.includes("/") ? React.createElement("span", null, props.text) : React.createElement(Original, props),
  },
});
SwaggerUIBundle({
  url: document.currentScript.dataset.document,
  plugins: [plainPaths],
  onComplete: () => document.getElementById("servers")?.setAttribute("aria-label", "Server"),
  dom_id: "#page",
  deepLinking: true,
  docExpansion: "none",
  validatorUrl: null,
});
"""

_READABLE = b"""/* Swagger UI's colours, with enough contrast. */
.swagger-ui .info .title small.version-stamp { background-color: #4a6a00; }
.swagger-ui .info .title small { background-color: #525c69; }
.swagger-ui .info .url, .swagger-ui a.link, .swagger-ui .info a { color: #1f5fbf; }
.swagger-ui .btn.authorize { border-color: #17693b; color: #17693b; }
.swagger-ui .btn.authorize svg { fill: #17693b; }
.swagger-ui .opblock.opblock-get .opblock-summary-method { background: #1f5fbf; }
.swagger-ui .opblock.opblock-post .opblock-summary-method { background: #17693b; }
.swagger-ui .opblock.opblock-put .opblock-summary-method { background: #8a5300; }
.swagger-ui .opblock.opblock-delete .opblock-summary-method { background: #b3261e; }
.swagger-ui .opblock.opblock-patch .opblock-summary-method { background: #00707a; }
@media (forced-colors: active) {
  .swagger-ui .scheme-container { background: Canvas; }
  .swagger-ui .servers-title, .swagger-ui .btn.authorize span { color: CanvasText; }
}
"""

_OWN = {"start.js": (_START, "text/javascript"), "readable.css": (_READABLE, "text/css")}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Switchyard: API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="stylesheet" href="/docs/readable.css">
</head>
<body>
<div id="page"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js" data-document="/openapi.json"></script>
</body>
</html>
"""


async def page(request: Request) -> Response:
    """The page. It needs no credential, like the document that it shows."""
    return HTMLResponse(_PAGE, headers=PAGE_HEADERS)


async def file(request: Request) -> Response:
    """A script or style sheet of the page."""
    name = request.path_params["file"]
    headers = {**PAGE_HEADERS, "cache-control": "public, max-age=3600"}
    if name in _OWN:
        content, media_type = _OWN[name]
        return Response(content, headers=headers, media_type=media_type)
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
