"""A model hub with the adapters of one directory, as `huggingface_hub` reads it: `HF_ENDPOINT` is its URL."""

import hashlib
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

OWNER = "acme"
REVISION = "a" * 40
"""The commit of every repository, to which `main` leads."""


def hub(models: Path) -> Starlette:
    """Every folder in `models` is a repository `acme/<name>` with one revision."""

    def files(request: Request) -> list[Path]:
        return sorted(path for path in (models / request.path_params["name"]).rglob("*") if path.is_file())

    def name_of(path: Path) -> str:
        return "/".join(path.relative_to(models).parts[1:])

    async def repository(request: Request) -> Response:
        siblings = [{"rfilename": name_of(file), "size": file.stat().st_size} for file in files(request)]
        return JSONResponse({"id": f"{OWNER}/{request.path_params['name']}", "sha": REVISION, "siblings": siblings})

    async def tree(request: Request) -> Response:
        return JSONResponse([_entry(name_of(file), file) for file in files(request)])

    async def content(request: Request) -> Response:
        path = models / request.path_params["name"] / request.path_params["file"]
        if not path.exists():
            return Response(status_code=404, headers={"x-error-code": "EntryNotFound"})
        return FileResponse(path, headers={"etag": f'"{_digest(path)}"', "x-repo-commit": REVISION})

    return Starlette(
        routes=[
            Route(f"/api/models/{OWNER}/{{name}}/revision/main", repository),
            Route(f"/api/models/{OWNER}/{{name}}/revision/{REVISION}", repository),
            Route(f"/api/models/{OWNER}/{{name}}/tree/{REVISION}", tree),
            Route(f"/{OWNER}/{{name}}/resolve/main/{{file:path}}", content),
            Route(f"/{OWNER}/{{name}}/resolve/{REVISION}/{{file:path}}", content),
        ]
    )


def _entry(name: str, path: Path) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": _digest(path)}


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()
