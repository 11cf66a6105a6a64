"""Paths of other servers that mean one of ours, so that their clients work with nothing but another host.

Azure's, for its SDK and for clients that know OpenAI's models only as its deployments: ``/openai/v1/…`` and
``/openai/…`` are ``/v1/…``; of ``/openai/deployments/NAME/chat/completions`` NAME is the model, whatever the body says.
``api-version`` may say anything. The key travels as ``api-key`` (server/auth.py). LM Studio's: what is asked below
``/api/v0`` is the same as below ``/v1``, but for models (server/lm_studio.py). llama.cpp's: chat and models without
``/v1``, which is how Continue asks for them.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from server.context import context_of

_ROOT = "/openai/"
_DEPLOYMENTS = "/openai/deployments/"
_LM_STUDIO = "/api/v0"
_LLAMA_CPP = ("/chat/completions", "/models")
_OF_DEPLOYMENTS = ("/chat/completions", "/completions", "/embeddings")


def of_llama_cpp(path: str) -> bool:
    """Whether a path is llama.cpp's own, or LM Studio's, which serves with it: there -1 tokens are no limit."""
    return path in _LLAMA_CPP or path.startswith(_LM_STUDIO)


def plain_path(path: str) -> tuple[str, str]:
    """(OpenAI's own path, the deployment that it names or ""); another path as it is."""
    if path.startswith(_DEPLOYMENTS):
        for tail in _OF_DEPLOYMENTS:
            name = path[len(_DEPLOYMENTS) : -len(tail)]
            if path.endswith(tail) and name and not name.startswith("/"):
                return f"/v1{tail}", name
    elif path in _LLAMA_CPP:
        return "/v1" + path, ""
    elif path.startswith(_LM_STUDIO) and path.removeprefix(_LM_STUDIO) in _OF_DEPLOYMENTS:
        return "/v1" + path.removeprefix(_LM_STUDIO), ""
    elif path.startswith(_ROOT):
        return "/v1/" + path.removeprefix(_ROOT).removeprefix("v1/"), ""
    return path, ""


class OtherPaths:
    """Pure ASGI, inside the check of keys: that one sees the path as the client wrote it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        written = scope.get("path", "")
        path, deployment = plain_path(written)
        if path == written:
            await self.app(scope, receive, send)
            return
        context = context_of(scope)
        context.deployment, context.unlimited = deployment, of_llama_cpp(written)
        scope["path"] = path
        try:
            await self.app(scope, receive, send)
        finally:
            scope["path"] = written  # the access log says what was asked for
