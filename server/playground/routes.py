"""GET /: a page to try the server in a browser, with tools. One file; no word of the server is in it."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from fastapi import APIRouter
from starlette.responses import HTMLResponse


def playground_router() -> APIRouter:
    page = resources.files(__package__).joinpath("index.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": _policy(page), "cache-control": "no-cache"}
    router = APIRouter(tags=["playground"])

    @router.get("/", summary="A page to try the server", response_class=HTMLResponse)
    async def playground() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    return router


def _policy(page: str) -> str:
    """The page may run its own script and ask this server; nothing else, whatever a model writes."""
    found = {tag: re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style")}
    allowed = [f"{tag}-src 'sha256-{_digest(match[1])}'" for tag, match in found.items() if match]
    closed = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return "; ".join([closed, "connect-src 'self'", *allowed])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
