"""The error catalogue: each error raises the right exception class of the openai SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from engine.client import EngineError, EngineUnavailable
from engine.sampling_params import InvalidParam
from server.app import build_app
from server.args import Secret, ServerArgs
from server.constrainer import Constrainer
from server.errors import ApiError, BadRequest, clean, from_http_exception, from_status, quote, translate
from tests.fakes import Reply, ScriptedEngine
from tests.live import live
from tests.server.conftest import FakeChecker, Gateway

KEY = "sk-user-0123456789"
SCRIPT: dict[str, Any] = {
    "overloaded": Reply(error=EngineUnavailable("The queue is full.", retry_after=2.0)),
    "too many": Reply(error=EngineError("Too many requests.", status=429)),
    "broken": Reply(error=RuntimeError("boom")),
    "refused": Reply(error=EngineError("bad grammar", status=400, param="tools")),
    "dies": Reply("Hello world", chunk=2, fail_after=2),
    "": "Hello!",
}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    args = ServerArgs(api_keys=(Secret(KEY),), max_body_bytes=100_000, admin_keys=(Secret("sk-admin"),))
    app = build_app(ScriptedEngine(SCRIPT), args, constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    with live(app, args) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, text: str = "hi", **fields: Any) -> Any:
    return client.chat.completions.create(
        model=fields.pop("model", "test-model"), messages=[{"role": "user", "content": text}], **fields
    )


@pytest.mark.parametrize(
    ("call", "kind", "code", "error_type", "param"),
    [
        (lambda c: ask(c, temperature=5), openai.BadRequestError, None, "invalid_request_error", "temperature"),
        (lambda c: ask(c, extra_body={"n": "x"}), openai.BadRequestError, None, "invalid_request_error", "n"),
        (lambda c: ask(c, extra_body={"bad_words": ["x"]}), openai.BadRequestError, "unsupported_parameter", "invalid_request_error", "bad_words"),
        (lambda c: ask(c, "word " * 5000), openai.BadRequestError, "context_length_exceeded", "invalid_request_error", "messages"),
        (lambda c: ask(c, "refused"), openai.BadRequestError, None, "invalid_request_error", "tools"),
        (lambda c: ask(c.with_options(api_key="sk-wrong")), openai.AuthenticationError, "invalid_api_key", "invalid_request_error", None),
        (lambda c: c.post("/../flush_cache", cast_to=object), openai.PermissionDeniedError, "permission_denied", "permission_error", None),
        (lambda c: ask(c, model="gpt-nope"), openai.NotFoundError, "model_not_found", "invalid_request_error", "model"),
        (lambda c: c.models.retrieve("org/nope"), openai.NotFoundError, "model_not_found", "invalid_request_error", "model"),
        (lambda c: c.get("/nothing", cast_to=object), openai.NotFoundError, "not_found", "invalid_request_error", None),
        (lambda c: c.get("/chat/completions", cast_to=object), openai.APIStatusError, "method_not_allowed", "invalid_request_error", None),
        (lambda c: ask(c, "x" * 200_000), openai.APIStatusError, "request_too_large", "invalid_request_error", None),
        (lambda c: ask(c, extra_headers={"Content-Encoding": "br"}), openai.APIStatusError, "unsupported_media_type", "invalid_request_error", None),
        (lambda c: ask(c, "too many"), openai.RateLimitError, "rate_limit_exceeded", "rate_limit_error", None),
        (lambda c: ask(c, "broken"), openai.InternalServerError, "internal_error", "server_error", None),
        (lambda c: ask(c, "overloaded"), openai.InternalServerError, "service_unavailable", "server_error", None),
        (lambda c: ask(c, "overloaded", stream=True), openai.InternalServerError, "service_unavailable", "server_error", None),
    ],
)  # fmt: skip
def test_catalogue(
    client: openai.OpenAI,
    call: Any,
    kind: type[openai.APIStatusError],
    code: str | None,
    error_type: str,
    param: str | None,
) -> None:
    with pytest.raises(openai.APIStatusError) as info:
        call(client)
    error = info.value
    assert type(error) is kind
    assert (error.code, error.type, error.param) == (code, error_type, param)
    assert error.response.headers["content-type"] == "application/json"
    assert error.request_id.startswith("req_")
    if error.status_code in (429, 503):
        assert int(error.response.headers["retry-after"]) == (2 if error.status_code == 503 else 1)
    if error.status_code == 405:
        assert error.response.headers["allow"] == "POST"


def test_in_a_stream(client: openai.OpenAI) -> None:
    seen: list[str] = []

    def read() -> None:
        seen.extend(chunk.choices[0].delta.content or "" for chunk in ask(client, "dies", stream=True))

    with pytest.raises(openai.APIError, match="The engine process died") as info:
        read()
    assert "".join(seen) == "Hell"
    assert info.value.code == "service_unavailable"


def test_the_sdk_reads_answers(client: openai.OpenAI) -> None:
    assert ask(client).choices[0].message.content == "Hello!"
    with client.chat.completions.stream(model="test-model", messages=[{"role": "user", "content": "hi"}]) as stream:
        assert stream.get_final_completion().choices[0].message.content == "Hello!"
    assert [model.id for model in client.models.list()] == ["test-model"]


@pytest.mark.parametrize(
    ("exc", "status", "param"),
    [
        (InvalidParam("n", "no"), 400, "n"),
        (EngineUnavailable("x"), 503, None),
        (EngineError("x", status=429), 429, None),
        (EngineError("x", status=400, param="p"), 400, "p"),
        (EngineError("x"), 500, None),
        (EngineError("x", status=422), 400, None),
        (EngineError("x", status=504), 503, None),
        (KeyError("x"), 500, None),
    ],
)
def test_translate(exc: Exception, status: int, param: str | None) -> None:
    error = translate(exc)
    assert (error.status, error.param) == (status, param)


class Inner(msgspec.Struct):
    a: int


class Outer(msgspec.Struct):
    inner: list[Inner]
    bias: dict[str, float] = {}


def test_validation_errors_name_the_path() -> None:
    for value, param in (
        ({"inner": [{"a": "x"}]}, "inner[0].a"),
        ({"inner": 5}, "inner"),
        ({"inner": [], "bias": {"k": "v"}}, "bias"),
        ({}, "inner"),
        (5, None),
    ):
        with pytest.raises(msgspec.ValidationError) as info:
            msgspec.convert(value, Outer)
        error = translate(info.value)
        assert isinstance(error, BadRequest)
        assert error.param == param
        assert "`" not in error.message


def test_every_status_gives_a_whole_error_object() -> None:
    for status in (*range(400, 432), *range(500, 512)):
        error = from_status(status, "x")
        assert error.body()["error"].keys() == {"message", "type", "param", "code"}
        assert error.status != 422
        assert from_http_exception(status).body()["error"]["message"]


def test_client_text_cannot_break_out_of_a_message() -> None:
    assert "\x1b" not in clean("\x1b[31mred\r", 100)
    assert clean("\ud800", 10).encode()
    assert quote('a\r\n"\x1b') == '"a\\r\\n\\"\\u001b"'
    assert len(quote("x" * 1000)) < 220
    assert len(ApiError("y" * 5000).body()["error"]["message"]) == 2000


REQUIRED = (
    ("/v1/chat/completions", "messages"),
    ("/v1/completions", "prompt"),
    ("/v1/embeddings", "input"),
    ("/v1/responses", "input"),
    ("/v1/messages", "messages"),
    ("/v1/messages/count_tokens", "messages"),
    ("/detokenize", "tokens"),
    ("/abort_request", "rid"),
    ("/parse_function_call", "text"),
    ("/separate_reasoning", "text"),
)


@pytest.mark.parametrize(("path", "name"), REQUIRED)
def test_a_missing_field_is_named(client: openai.OpenAI, path: str, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.post(f"/..{path}", cast_to=object, body={"model": "test-model"})
    assert (raised.value.param, raised.value.code) == (name, "missing_required_parameter")
    assert name in raised.value.message


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/responses", "/v1/responses"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions"),
        ("POST", "/v1/v1/chat/completions", "/v1/chat/completions"),
        ("POST", "//v1//chat//completions", "/v1/chat/completions"),
        ("POST", "/v1/messages/v1/messages", "/v1/messages"),
        ("POST", "/api/v1/responses", "/v1/responses"),
        ("GET", "/v2/models", "/v1/models"),
        ("GET", "/api/v2/models", "/v1/models"),
        ("GET", "/v1/metrics", "/metrics"),
        ("GET", "/v1", ""),
        ("POST", "/v1/api/chat", "/api/chat"),
        ("POST", "/v1/images/generations", ""),
        ("GET", "/" + "models/" * 1000 + "x", ""),
    ],
)
async def test_a_wrong_base_url_is_answered_with_the_right_route(
    gateway: Gateway, method: str, path: str, route: str
) -> None:
    answer = await gateway.client.request(method, f"http://localhost{path}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "not_found")
    named = error["message"].partition("The route is ")[2].partition(":")[0]
    assert named == route
    assert gateway.engine.requests == []
