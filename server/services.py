"""What every endpoint of one application shares. Built once by build_app, passed to the routers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UnsetType
from starlette.types import Receive, Scope

from engine.client import EngineClient, EngineUnavailable
from engine.messages import GenerateReqInput
from server import body, limits
from server.args import ServerArgs
from server.auth import Tenants
from server.context import RequestContext, context_of
from server.errors import ModelNotFound
from server.logs import log_prompts
from server.metrics import Metrics
from server.planner import Planner
from server.rate_limit import RateLimiter
from server.running_requests import RunningRequests
from server.streaming import Pace


@dataclass(frozen=True, slots=True)
class Services:
    engine: EngineClient
    args: ServerArgs
    metrics: Metrics
    limiter: RateLimiter
    tenants: Tenants
    planner: Planner
    running: RunningRequests

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names a request may use; the first is the one we list. Raises EngineUnavailable before the handshake."""
        own = self.engine.model_info.served_name
        return tuple(dict.fromkeys((*self.args.served_model_names, own)))

    def model(self, requested: str | UnsetType) -> str:
        """The name to echo. An omitted model is the served one; ``:latest`` goes without saying, as Ollama's clients
        know it. Raises ModelNotFound."""
        names = self.model_names
        if isinstance(requested, UnsetType):
            return names[0]
        if requested in names:
            return requested
        if requested.removesuffix(":latest") in names:
            return requested.removesuffix(":latest")
        raise ModelNotFound(requested)

    async def read_json(self, scope: Scope, receive: Receive) -> dict[str, object]:
        """The body as a JSON object. Raises ApiError."""
        found = await body.read_json(
            scope,
            receive,
            max_bytes=self.args.max_body_bytes,
            seconds=self.args.body_timeout,
            stall=self.args.body_stall_timeout,
        )
        context = context_of(scope)
        if context.deployment:
            found["model"] = context.deployment
        if context.unlimited and found.get("max_tokens") == -1:
            found["max_tokens"] = limits.MAX_OUTPUT_TOKENS
        return found

    def require_ready(self) -> None:
        """Refuse early what the engine would refuse later, before anything is rendered."""
        state = self.engine.state
        if state != "ready":
            raise EngineUnavailable(f"The engine is {state}; try again shortly.")

    def tenant(self, context: RequestContext, cache_salt: str | None) -> str:
        return self.tenants.name(context.key_digest, cache_salt) if cache_salt else context.tenant

    def log_prompts(self, context: RequestContext, requests: Sequence[GenerateReqInput]) -> None:
        """What is about to be generated from, where the operator asked for it."""
        if self.args.log_prompts:
            log_prompts(context.request_id, requests)

    @property
    def pace(self) -> Pace:
        args = self.args
        return Pace(args.stream_start_timeout, args.sse_comment_interval, args.sse_chunk_interval)


def body_size(scope: Scope) -> int:
    """Bytes the body was declared to have; a chunked or packed body counts as large."""
    declared = b"" if body.header(scope, b"content-encoding") else body.header(scope, b"content-length")
    return int(declared) if declared.isdigit() and len(declared) < 12 else 1 << 30
