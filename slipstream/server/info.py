"""What the server says of itself: models, health, metrics, settings, version."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response

from slipstream.config import ResolvedSetting
from slipstream.engine.async_engine import AsyncEngine, EngineHealth
from slipstream.server.errors import SERVER_ERROR, ApiError
from slipstream.server.served_model import ServedModel
from slipstream.version import __version__


def info_routes(
    engine: AsyncEngine, model: ServedModel, report: Sequence[ResolvedSetting], registry: CollectorRegistry
) -> APIRouter:
    router = APIRouter()
    card: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "slipstream",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_request_tokens,
        "speculation": model.speculation,
    }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        model.check_name(name)
        return card

    @router.get("/health")
    async def health() -> JSONResponse:
        """Live: 503 when the engine is dead or stuck and only a restart helps."""
        return _status(engine.health())

    @router.get("/ready")
    async def ready() -> JSONResponse:
        """Whether requests sent now would be served; 503 too while the server drains."""
        return _status(engine.readiness())

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/config")
    async def config() -> dict[str, Any]:
        """The resolution report: every setting, its value, where it came from, and why it was changed if it was."""
        return {"version": __version__, "settings": [dataclasses.asdict(setting) for setting in report]}

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    def _status(state: EngineHealth) -> JSONResponse:
        if not state.ok:
            raise ApiError(503, state.reason, kind=SERVER_ERROR, code="engine_unavailable")
        load = engine.load
        return JSONResponse({"status": "ok", "running": load.num_running, "waiting": load.num_waiting})

    return router
