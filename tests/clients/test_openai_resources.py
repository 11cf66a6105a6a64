"""openai-python's own API-resource tests against this gateway.

The sdist of the installed version is fetched once, with pip, into the clients' cache; its tests run in a process of
their own against a live gateway with a scripted engine. They were written against a mock that answers anything, so two
lists say what cannot pass here: what this server does not have at all, and what it has but refuses in that form.
A test that is on a list and passes fails this test: the lists can only shrink.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import openai
import pytest

from server.app import build_app
from server.args import ServerArgs
from tests.clients.environments import cache_dir
from tests.fakes import Reply, ScriptedEngine
from tests.live import live

FILES = (
    "chat/test_completions.py",
    "test_completions.py",
    "test_models.py",
    "test_embeddings.py",
    "test_responses.py",
    "responses/test_input_items.py",
    "responses/test_input_tokens.py",
)
ABSENT = {
    r"chat\.test_completions .*_(retrieve|update|list|delete)(_with_all_params)?": "chat answers are not stored",
    r"test_models .*_delete": "models are not deleted over HTTP",
    r"test_responses .*_compact(_with_all_params)?": "no compaction endpoint",
    r"test_responses .*_create_overload_[12]": "the test sends no input at all; here input is required",
    r"responses\.test_input_items .*_list_with_all_params": "pages after an item that only the mock has",
    r"responses\.test_input_tokens .*_count": "the test sends no input at all; here input is required",
    r"test_responses .*_create_with_all_params_overload_[12]": "a hosted prompt, moderation",
    r"responses\.test_input_tokens .*_count_with_all_params": "names a conversation that only the mock has",
}
"""``file test`` -> why this server has no such thing."""
REFUSED = {
    r"chat\.test_completions .*_create_with_all_params_overload_[12]": "asks for audio output, logit_bias of 'foo', "
    "max_tokens 0",
    r"test_completions .*_create_with_all_params_overload_[12]": "suffix, logit_bias of 'foo'",
}
"""Applicable, and refused because those very values are refused: at most a tenth of the applicable tests."""


@pytest.fixture(scope="module")
def sdist() -> Path:
    """The unpacked sdist of the installed version."""
    version = openai.__version__
    home = cache_dir() / f"openai-sdist-{version}"
    root = home / f"openai-{version}"
    if not (root / "tests" / "conftest.py").is_file():
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "-d", str(home)]
        subprocess.run([*command, f"openai=={version}"], capture_output=True, timeout=240, check=False)
        archive = home / f"openai-{version}.tar.gz"
        if not archive.is_file():
            pytest.skip("the openai sdist cannot be downloaded here")
        with tarfile.open(archive) as tar:
            tar.extractall(home, filter="data")
    return root


class WithStoredResponses:
    """The application, where the ids that the tests ask for stand for responses that exist, made in the background as a
    stream, which all of the tests can do something with."""

    KNOWN = re.compile(r"/v1/responses/(resp_677efb5139a88190b512bc3fef8e535d|response_id)(?=/|$)")

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (found := self.KNOWN.search(scope["path"])):
            path = scope["path"].replace(found[1], await self._create())
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self.app(scope, receive, send)

    async def _create(self) -> str:
        import httpx

        transport = httpx.ASGITransport(app=self.app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = {"input": "hi", "background": True, "stream": True}
            lines = (await client.post("/v1/responses", json=body)).text.splitlines()
        first = next(line for line in lines if line.startswith("data: "))
        return str(json.loads(first.removeprefix("data: "))["response"]["id"])


def listed(name: str, patterns: dict[str, str]) -> str | None:
    """The pattern that names this test; tests of path parameters send nothing and always count."""
    if "test_path_params" in name:
        return None
    return next((pattern for pattern in patterns if re.fullmatch(pattern, name)), None)


def names_in(root: Path) -> set[str]:
    """Every model that the tests ask for."""
    text = "".join((root / "tests" / "api_resources" / file).read_text("utf-8") for file in FILES)
    return set(re.findall(r'model="([^"]+)"', text)) | {"model"}


@pytest.mark.clients
@pytest.mark.timeout(400)
def test_openai_pythons_own_tests(sdist: Path, tmp_path: Path) -> None:
    args = ServerArgs(served_model_names=tuple(sorted(names_in(sdist))))
    engine = ScriptedEngine(Reply("A scripted answer.", chunk=3))
    report = tmp_path / "report.xml"
    with live(WithStoredResponses(build_app(engine, args)), args) as url:
        environment = {**os.environ, "TEST_API_BASE_URL": f"{url}/v1"}
        environment.pop("PYTHONPATH", None)
        # Strict clients validate every answer. Embeddings are asked for as base64, which the strict client itself
        # takes for a mistake before it decodes it: there the other variant counts.
        chosen = "(strict or (test_embeddings and loose)) and not (test_embeddings and strict) and not aiohttp"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-k", chosen]
        files = [f"tests/api_resources/{file}" for file in FILES]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *files],
            cwd=sdist,
            env=environment,
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )
    assert report.is_file(), done.stdout[-3000:] + done.stderr[-2000:]
    passed, failed = outcomes(report)
    unexpected = {name: why for name, why in failed.items() if not listed(name, ABSENT) and not listed(name, REFUSED)}
    assert not unexpected, "\n".join(f"{name}: {why}" for name, why in unexpected.items())
    stale = [name for name in passed if listed(name, ABSENT) or listed(name, REFUSED)]
    assert not stale, f"these pass now and may leave the lists: {stale}"
    used = {listed(name, ABSENT) or listed(name, REFUSED) for name in failed}
    assert used == ABSENT.keys() | REFUSED.keys(), "an entry of the lists matches nothing"
    applicable = len(passed) + sum(1 for name in failed if not listed(name, ABSENT))
    skipped = applicable - len(passed)
    print(f"{len(passed)} passed, {skipped} of {applicable} applicable refused, {len(failed) - skipped} not applicable")
    assert len(passed) >= 80
    assert skipped <= applicable / 10


def outcomes(report: Path) -> tuple[list[str], dict[str, str]]:
    """(passed, failed with the reason), each as ``file Class.test``."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        module, _, kind = case.get("classname", "").removeprefix("tests.api_resources.").rpartition(".")
        name = f"{module} {kind}.{case.get('name', '').partition('[')[0]}"
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        if wrong is None:
            passed.append(name)
        else:
            failed[name] = (wrong.get("message") or "")[:300]
    return passed, failed
