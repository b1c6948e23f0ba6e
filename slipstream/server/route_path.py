"""The path of a request as routes know it, behind a proxy that serves this server under a prefix of its own."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


def route_path(scope: Scope) -> str:
    """Without the root path."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


class RootPathMiddleware:
    """Sets the root path, and puts it before paths that a proxy has taken it off, as ASGI wants it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path: str = scope["path"]
            if not path.startswith(self._root + "/"):
                path = self._root + path
            scope = {**scope, "root_path": self._root, "path": path}
        await self._app(scope, receive, send)
