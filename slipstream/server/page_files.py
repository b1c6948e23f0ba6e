"""The page at `/`: static files made from `page/` (`make page`), the same for everybody; data comes from the API."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

FOLDER = files("slipstream") / "server" / "page"
MEDIA_TYPES = {"index.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
PAGE_PATHS = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css"}
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

    async def answer(self, request: Request) -> Response:
        """The file, or 304 for who has it."""
        headers = {**SECURITY_HEADERS, "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=f"{self.media_type}; charset=utf-8")


def page_routes() -> APIRouter:
    """Serves the files of the package; read once."""
    router = APIRouter(include_in_schema=False)
    for path, name in PAGE_PATHS.items():
        router.add_api_route(path, _read(name).answer, methods=["GET"])
    return router


def _read(name: str) -> _PageFile:
    content = (FOLDER / name).read_bytes()
    return _PageFile(content, MEDIA_TYPES[name], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
