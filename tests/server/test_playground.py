"""GET /: one page that needs nothing from elsewhere and may do nothing else, open to a browser that has no key."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from starlette.testclient import TestClient

from server.app import build_app
from server.args import Secret, ServerArgs
from tests.fakes import ScriptedEngine


@pytest.mark.parametrize("keys", [(), (Secret("k"),)])
def test_the_page_is_open_and_tells_nothing_of_the_server(keys: tuple[Secret, ...]) -> None:
    client = TestClient(build_app(ScriptedEngine("ok"), ServerArgs(api_keys=keys)))
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "test-model" not in answer.text
    assert client.head("/").status_code == 200
    assert client.post("/", json={}).status_code == 405


def test_its_policy_allows_its_own_script_and_style_and_this_server() -> None:
    answer = TestClient(build_app(ScriptedEngine("ok"), ServerArgs())).get("/")
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://|innerHTML|style=|onclick=", answer.text), "the policy would not allow it"
    assert not re.search(r"""(?:fetch|href=|src=)\(?["']/""", answer.text), "paths are relative, for --root-path"


def test_what_is_hidden_is_not_shown() -> None:
    """A rule that gives an element a ``display`` beats the browser's own for ``hidden``."""
    page = TestClient(build_app(ScriptedEngine("ok"), ServerArgs())).get("/").text
    styled = set(re.findall(r"^(\w+) \{ display:", page, re.MULTILINE))
    hidden = set(re.findall(r"<(\w+)[^>]* hidden", page))
    assert hidden & styled, "else nothing is tested here"
    assert re.search(r"^\[hidden\] \{ display: none !important; \}", page, re.MULTILINE)
