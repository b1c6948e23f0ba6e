"""The page at `/`: static files made from `page/` (`make page`), the same for everybody; data comes from the API."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

FOLDER = files("slipstream") / "server" / "page"
MEDIA_TYPES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
PAGE_PATHS = frozenset("/" if name == "index.html" else f"/page/{name}" for name in MEDIA_TYPES)
# Nothing is loaded from elsewhere, nothing is written into the page as code, and nobody frames it.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class _PageFile:
    content: bytes
    media_type: str
    etag: str


def page_routes() -> APIRouter:
    """Serves the files of the package; read once."""
    router = APIRouter(include_in_schema=False)
    found = {name: _read(name, media_type) for name, media_type in MEDIA_TYPES.items()}

    def answer(request: Request, name: str) -> Response:
        file = found.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {**SECURITY_HEADERS, "ETag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=f"{file.media_type}; charset=utf-8")

    @router.get("/")
    async def index(request: Request) -> Response:
        return answer(request, "index.html")

    @router.get("/page/{name}")
    async def asset(request: Request, name: str) -> Response:
        return answer(request, name)

    return router


def _read(name: str, media_type: str) -> _PageFile:
    content = (FOLDER / name).read_bytes()
    return _PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
