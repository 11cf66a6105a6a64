"""What Ollama's clients ask about models: which there are, what they can do, whether they are loaded."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from server.fill_in import can_fill_in
from server.services import Services

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is; clients refuse to talk to one that is too old."""
_NEVER = "2318-01-01T00:00:00Z"
"""What Ollama, too, says of models that stay loaded."""


def list_models(services: Services) -> dict[str, Any]:
    """GET /api/tags."""
    return {"models": [_model(services, name) for name in services.model_names]}


def running_models(services: Services) -> dict[str, Any]:
    """GET /api/ps: what is served is loaded, and stays so."""
    info = services.engine.model_info
    more = {"expires_at": _NEVER, "size_vram": 0, "context_length": info.context_length}
    return {"models": [{**_model(services, name), **more} for name in services.model_names]}


def show_model(services: Services, name: str) -> dict[str, Any]:
    """POST /api/show. Raises ModelNotFound."""
    info = services.engine.model_info
    own = services.model(name)
    family = info.architecture
    return {
        "modelfile": "",
        "parameters": "",
        "template": _template(services),
        "details": _details(services),
        "model_info": {
            "general.architecture": family,
            "general.basename": own,
            f"{family}.context_length": info.context_length,
            f"{family}.embedding_length": info.embedding_size,
        },
        "capabilities": _capabilities(services),
        "modified_at": _modified(services),
    }


def _model(services: Services, name: str) -> dict[str, Any]:
    """Every name has a tag there, and some clients read it."""
    tagged = name if ":" in name else f"{name}:latest"
    digest = hashlib.sha256(f"{name} {services.engine.model_info.created}".encode()).hexdigest()
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": _modified(services),
        "size": 0,
        "digest": digest,
        "details": _details(services),
        "capabilities": _capabilities(services),
    }


def _capabilities(services: Services) -> list[str]:
    """In the list, too: some clients (Cline) offer no tools to models that do not say there that they can call."""
    found = ["completion", "tools"]
    found += ["thinking"] if services.planner.dialect.reasoning is not None else []
    return found + (["insert"] if can_fill_in(services.engine.tokenizer) else [])


def _template(services: Services) -> str:
    """Not the real one, which is no Go template: the names in it by which clients know what a model can do. LiteLLM
    looks for tools in it, Continue for a suffix."""
    names = ["{{ .System }}", "{{ .Tools }}", "{{ .Messages }}", "{{ .Prompt }}"]
    return " ".join([*names, "{{ .Suffix }}"] if can_fill_in(services.engine.tokenizer) else names)


def _details(services: Services) -> dict[str, Any]:
    info = services.engine.model_info
    return {
        "parent_model": "",
        "format": "gguf" if info.model_path.endswith(".gguf") else "safetensors",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": "",
        "quantization_level": info.quantization,
    }


def _modified(services: Services) -> str:
    return datetime.fromtimestamp(services.engine.model_info.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
