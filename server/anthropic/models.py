"""GET /v1/models in Anthropic's shape, for clients that send the ``anthropic-version`` header."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from server.services import Services


def model_info(services: Services, name: str) -> dict[str, Any]:
    info = services.engine.model_info
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(info.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": info.context_length,
        "max_tokens": info.context_length,
    }


def list_models(services: Services) -> dict[str, Any]:
    """All of them on one page."""
    names = services.model_names
    return {
        "data": [model_info(services, name) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }
