"""POST /tokenize and /detokenize in vLLM's shapes and in llama.cpp's; lists of prompts as SGLang has them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from chat_templates.guard import Guard, pick_unused
from server import limits
from server.body import convert
from server.errors import BadRequest, invalid
from server.json_response import json_response, off_loop
from server.native.types import DetokenizeRequest, TokenizeRequest
from server.openai.chat import ChatHandler
from server.prompts import INLINE_CHARS, encode, encode_prompt, parse_prompts, token_ids
from server.services import Services

_INLINE_TOKENS = 8_000


async def tokenize(services: Services, request: Request) -> Response:
    """Ids of ``prompt`` (special spellings are special, as on /v1/completions) or of rendered ``messages``."""
    body = await services.read_json(request.scope, request.receive)
    wanted = convert(body, TokenizeRequest)
    services.require_ready()
    services.model(wanted.model)
    tokenizer = services.engine.tokenizer
    if wanted.content is not None and wanted.prompt is None and wanted.messages is None:
        return json_response({"tokens": await _content_tokens(services, wanted)})
    if (wanted.prompt is None) == (wanted.messages is None):
        raise BadRequest("Exactly one of 'prompt' and 'messages' is needed.", param="prompt")
    many = isinstance(wanted.prompt, list)
    if wanted.messages is not None:
        _, conversation = ChatHandler(services).read(body, request)
        prompt = await services.planner.render(conversation)
        found = [await encode(tokenizer, prompt.text, guard=prompt.guard)]
    else:
        prompts = parse_prompts(wanted.prompt, "prompt", services.engine.model_info, limits.MAX_PROMPTS)
        special = wanted.add_special_tokens is not False
        found = [await encode_prompt(tokenizer, prompt, add_special_tokens=special) for prompt in prompts]
    counts = [len(ids) for ids in found]
    strings = None
    if wanted.return_token_strs:
        written = [[tokenizer.id_to_bytes(token).decode("utf-8", "replace") for token in ids] for ids in found]
        strings = written if many else written[0]
    return json_response(
        {
            "count": counts if many else counts[0],
            "max_model_len": services.engine.model_info.context_length,
            "tokens": found if many else found[0],
            "token_strs": strings,
        }
    )


async def detokenize(services: Services, request: Request) -> Response:
    """Text of token ids. Special tokens are written unless ``skip_special_tokens`` is true."""
    body = await services.read_json(request.scope, request.receive)
    wanted = convert(body, DetokenizeRequest)
    services.require_ready()
    services.model(wanted.model)
    info = services.engine.model_info
    many = bool(wanted.tokens) and isinstance(wanted.tokens[0], list)
    rows = [_row(row, f"tokens[{place}]") for place, row in enumerate(wanted.tokens)] if many else [wanted.tokens]
    checked = [token_ids(row, "tokens", info) if row else () for row in rows]
    skip = bool(wanted.skip_special_tokens)

    def decode() -> list[str]:
        return [services.engine.tokenizer.decode(row, skip_special_tokens=skip) for row in checked]

    texts = await off_loop(sum(map(len, checked)) > _INLINE_TOKENS, decode)
    text = texts if many else texts[0]
    return json_response({"prompt": text, "text": text, "content": text})


async def _content_tokens(services: Services, wanted: TokenizeRequest) -> list[Any]:
    """llama.cpp's form: ``content``, whose special spellings are text with ``parse_special: false``."""
    tokenizer, text = services.engine.tokenizer, wanted.content or ""
    parse_prompts(text, "content", services.engine.model_info, 1)

    def work() -> list[Any]:
        guard = Guard(pick_unused([text]), tokenizer.special_tokens) if wanted.parse_special is False else None
        shown, char = (guard.apply(text), guard.char) if guard is not None else (text, "")
        ids = tokenizer.encode(shown, guard=char, add_special_tokens=bool(wanted.add_special))
        if not wanted.with_pieces:
            return ids
        return [{"id": token, "piece": _piece(tokenizer.id_to_bytes(token))} for token in ids]

    return await off_loop(len(text) > INLINE_CHARS, work)


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


def _row(row: Any, param: str) -> list[Any]:
    if not isinstance(row, list):
        raise invalid(param, "a list of token ids is expected")
    return row
