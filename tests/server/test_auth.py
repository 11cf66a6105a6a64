"""The auth matrix: every route, every kind of key, odd spellings of Host and path."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from server.app import build_app
from server.args import Secret, ServerArgs, load_keys
from server.auth import ADMIN_PATHS, PUBLIC_PATHS, USER_ROUTES, KeyRing, Tenants, host_name, level_of, presented_key
from server.constrainer import Constrainer
from tests.fakes import ScriptedEngine
from tests.server.conftest import FakeChecker

USER, OTHER, ADMIN = "sk-user-0123456789", "sk-other-0123456789", "sk-admin-0123456789"
KEYS = {"api_keys": (Secret(USER), Secret(OTHER)), "admin_keys": (Secret(ADMIN),)}


def application(**args: Any) -> FastAPI:
    return build_app(ScriptedEngine(), ServerArgs(**args), constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """(method, template) of everything that the application answers."""
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            yield method.upper(), path
    yield "GET", "/openapi.json"


def client_of(app: FastAPI, host: str = "localhost", address: str = "127.0.0.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(address, 5)), base_url=f"http://{host}")


def test_every_route_has_a_declared_level() -> None:
    app = application()
    found = {path for _, path in routes(app)}
    assert len(found) > 6
    templates = {path.replace("{model_id}", "{model_id:path}") for path in found}
    undeclared = [path for path in templates if path not in PUBLIC_PATHS | ADMIN_PATHS | USER_ROUTES]
    assert not undeclared, "declare the level of these routes in server/auth.py"


async def test_only_health_is_open() -> None:
    app = application(**KEYS)
    async with client_of(app) as client:
        for method, path in routes(app):
            real = path.replace("{model_id}", "test-model")
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Bearer {USER}x"},
                {"Authorization": f"Bearer {USER[:-1]}"},
                {"Authorization": USER},
                {"Authorization": f"Basic {USER}"},
                {"x-api-key": "wrong"},
                {"Cookie": f"api_key={USER}"},
            ):
                response = await client.request(method, real, headers=headers)
                if level_of(path) == "public":
                    assert response.status_code == 200
                else:
                    assert response.status_code == 401, (method, path, headers)
                    assert response.json()["error"]["code"] == "invalid_api_key"
                    assert response.headers["www-authenticate"] == "Bearer"


async def test_right_keys_open_user_routes() -> None:
    app = application(**KEYS)
    async with client_of(app) as client:
        for headers in (
            {"Authorization": f"Bearer {USER}"},
            {"Authorization": f"bearer {OTHER}"},
            {"x-api-key": USER},
            {"Authorization": f"Bearer {ADMIN}"},
            {"Authorization": f"Bearer {USER}", "x-api-key": USER},
        ):
            assert (await client.get("/v1/models", headers=headers)).status_code == 200
        both = {"Authorization": f"Bearer {USER}", "x-api-key": OTHER}
        assert (await client.get("/v1/models", headers=both)).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models", "/V1/models", "/v1//models", "/v1/models/", "/./v1/models", "/v1/../v1/models", "/%76%31/models",
        "/health/../v1/models", "/health/live/../../v1/models", "/health%2f..%2fv1/models", "/health/", "/health/x",
        "/HEALTH", "/health;/v1/models", "/health/live%00", "/health/live?x=/v1/models#", "/metrics", "/metrics/",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "host",
    ["localhost", "a/?x=", "localhost/#", "evil.example", "localhost:80", "[::1]", "/health", "a@b", "a b", ""],
)
async def test_odd_spellings_open_nothing(path: str, host: str) -> None:
    app = application(**KEYS)
    status = 0

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": httpx.URL("http://x" + plain).path if "%" in plain else plain,
        "raw_path": plain.encode(), "query_string": query.encode(), "headers": [(b"host", host.encode())],
        "http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    if plain == "/health/live" and host in ("localhost", "localhost:80", "evil.example", "[::1]"):
        assert status == 200
    else:
        assert status in (400, 401, 404)


async def test_admin_routes() -> None:
    app = application(**KEYS)

    @app.post("/flush_cache")
    async def flush() -> dict[str, bool]:
        return {"ok": True}

    async with client_of(app) as client:
        assert (await client.post("/flush_cache")).status_code == 401
        user = await client.post("/flush_cache", headers={"Authorization": f"Bearer {USER}"})
        assert user.status_code == 403
        assert user.json()["error"]["code"] == "permission_denied"
        admin = await client.post("/flush_cache", headers={"Authorization": f"Bearer {ADMIN}"})
        assert admin.status_code == 200


@pytest.mark.parametrize(
    ("host", "address", "origin", "status"),
    [
        ("localhost", "127.0.0.1", "", 200),
        ("127.0.0.1:8000", "127.0.0.1", "", 200),
        ("[::1]:8000", "::1", "", 200),
        ("evil.example", "127.0.0.1", "", 403),
        ("localhost", "127.0.0.1", "https://evil.example", 403),
        ("localhost", "10.0.0.5", "", 403),
    ],
)
async def test_admin_routes_without_keys_answer_to_this_machine_only(
    host: str, address: str, origin: str, status: int
) -> None:
    app = application()

    @app.post("/flush_cache")
    async def flush() -> dict[str, bool]:
        return {"ok": True}

    async with client_of(app, host, address) as client:
        headers = {"Origin": origin} if origin else {}
        assert (await client.post("/flush_cache", headers=headers)).status_code == status


async def test_allowed_hosts() -> None:
    app = application(allowed_hosts=("api.example",))
    async with client_of(app, "api.example") as client:
        assert (await client.get("/v1/models")).status_code == 200
    async with client_of(app, "evil.example") as client:
        assert (await client.get("/v1/models")).status_code == 403


async def test_cors_only_where_configured() -> None:
    headers = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with client_of(application()) as client:
        response = await client.options("/v1/chat/completions", headers=headers)
        assert "access-control-allow-origin" not in response.headers
    async with client_of(application(allowed_origins=("https://app.example",), **KEYS)) as client:
        response = await client.options("/v1/chat/completions", headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "https://app.example"


async def test_tenants_are_apart(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(**KEYS) as gateway:
        for key, salt in ((USER, None), (USER, None), (OTHER, None), (USER, "a"), (USER, "b"), (OTHER, "a")):
            body = {"messages": [{"role": "user", "content": "hi"}], "cache_salt": salt}
            headers = {"Authorization": f"Bearer {key}"}
            response = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == 200
        tenants = [request.tenant for request in gateway.engine.requests]
    assert tenants[0] == tenants[1] != ""
    assert len(set(tenants)) == 5
    assert not any(key in tenant for tenant in tenants for key in (USER, OTHER))


def test_tenant_names_do_not_collide() -> None:
    tenants = Tenants(b"secret")
    assert tenants.name(None) == ""
    assert tenants.name(b"a", "b") != tenants.name(b"ab", "")
    assert tenants.name(None, "x") != tenants.name(b"x")
    assert Tenants(b"other").name(b"a") != tenants.name(b"a")


def test_secrets_do_not_show() -> None:
    args = ServerArgs(**KEYS)
    assert USER not in f"{args!r} {args} {args.api_keys[0]} {args.api_keys[0]!r}"


def test_load_keys(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\nfile-key\n\n")
    monkeypatch.setenv("KEYS", "env-key,")
    keys = load_keys(["a,b", "a"], file=str(file), variable="KEYS")
    assert [key.reveal() for key in keys] == ["a", "b", "file-key", "env-key"]
    for bad in ("kéy", "two words", "tab\tkey"):
        with pytest.raises(ValueError, match="printable"):
            load_keys([bad])


@pytest.mark.parametrize("candidate", [b"a" * 40, b"b" * 40, b"c" * 40, b"", b"a" * 39 + b"x", b"x" + b"a" * 39])
def test_a_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, candidate: bytes) -> None:
    """Digests of one length, with hmac.compare_digest, all of them, whichever it is or none."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1])
    ring = KeyRing([Secret("a" * 40), Secret("b" * 40), Secret("short")])
    ring.match(candidate)
    assert len(compared) == 3
    assert {len(digest) for pair in compared for digest in pair} == {32}


def test_key_ring() -> None:
    ring = KeyRing([Secret("a"), Secret("b")])
    assert ring.match(b"a") is not None
    assert ring.match(b"a") != ring.match(b"b")
    for wrong in (b"", b"c", b"a ", "kéy".encode("latin-1")):
        assert ring.match(wrong) is None
    assert not KeyRing([])


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"k")], None),
        ([(b"authorization", b"Bearer k"), (b"authorization", b"Bearer l")], None),
        ([(b"x-api-key", b" k ")], b"k"),
    ],
)
def test_presented_key(headers: Any, key: bytes | None) -> None:
    assert presented_key({"headers": headers}) == key


@pytest.mark.parametrize(
    ("value", "name"), [(b"a:80", "a"), (b"a", "a"), (b"[::1]:80", "::1"), (b"[::1]", "::1"), (b"", "")]
)
def test_host_name(value: bytes, name: str) -> None:
    assert host_name({"headers": [(b"host", value)]}) == name
