"""Two signals, read from state only; no probe ever starts a generation.

``/health/live``: this process answers. ``/health/ready`` and ``/health``: the engine takes requests.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from engine.client import EngineClient
from server.json_response import json_response


def health_router(engine: EngineClient) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health/live", summary="The process is alive")
    async def live() -> Response:
        return json_response({"status": "live"})

    async def ready() -> Response:
        state = engine.state
        if state == "ready":
            return json_response({"status": "ready"})
        return json_response({"status": state}, status=503, headers={"Retry-After": "1"})

    router.get("/health/ready", summary="The engine takes requests")(ready)
    router.get("/health", summary="Same as /health/ready")(ready)
    return router
