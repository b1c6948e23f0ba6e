"""The path of a request as routes know it."""

from __future__ import annotations

from starlette.types import Scope


def route_path(scope: Scope) -> str:
    """Without the root path, whether or not the proxy in front has taken it off."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path
