"""POST /v1/chat/completions/render and /input_tokens: what a chat request's prompt is, without generating."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from server.json_response import json_response
from server.openai.chat import ChatHandler
from server.prompts import encode
from server.services import Services


async def render_chat(services: Services, request: Request) -> Response:
    """The prompt as the model sees it, as text and as token ids."""
    body = await services.read_json(request.scope, request.receive)
    chat, conversation = ChatHandler(services).read(body, request)
    prompt = await services.planner.render(conversation)
    ids = await encode(services.engine.tokenizer, prompt.text, guard=prompt.guard)
    return json_response(
        {
            "object": "chat.completion.prompt",
            "model": services.model(chat.model),
            "prompt": prompt.plain,
            "token_ids": ids,
            "prompt_tokens": len(ids),
            "max_model_len": services.engine.model_info.context_length,
        }
    )


async def count_chat_tokens(services: Services, request: Request) -> Response:
    body = await services.read_json(request.scope, request.receive)
    _, conversation = ChatHandler(services).read(body, request)
    count = await services.planner.count_tokens(conversation)
    return json_response({"object": "chat.completion.input_tokens", "input_tokens": count})
