"""GET /v1/models and /v1/models/{id}; ids may hold slashes, plain or as %2F."""

from __future__ import annotations

from typing import Any

from server.services import Services


def model_card(services: Services, name: str) -> dict[str, Any]:
    info = services.engine.model_info
    return {
        "id": name,
        "object": "model",
        "created": info.created,
        "owned_by": "callgate",
        "root": services.model_names[0],
        "parent": None,
        "max_model_len": info.context_length,
    }


def list_models(services: Services) -> dict[str, Any]:
    return {"object": "list", "data": [model_card(services, name) for name in services.model_names]}


def retrieve_model(services: Services, name: str) -> dict[str, Any]:
    """Raises ModelNotFound."""
    return model_card(services, services.model(name))
