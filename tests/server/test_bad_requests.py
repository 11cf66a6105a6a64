"""Every handed bad request against a real uvicorn, keys on; good requests before and after are the same bytes."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from server.app import build_app
from server.args import Secret, ServerArgs
from server.constrainer import Constrainer
from tests.bad_requests import Answer, judge, load, make_target, run
from tests.fakes import Reply, ScriptedEngine
from tests.live import live
from tests.server.conftest import FakeChecker

FILE = Path(__file__).parent.parent / "data" / "bad_requests.jsonl"
KEY = "sk-test-0123456789abcdef0123456789abcdef"


def probe(url: str) -> Any:
    body = json.dumps({"messages": [{"role": "user", "content": "golden"}]}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", data=body, headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        answer = json.load(response)
    return answer["choices"], answer["usage"]


@pytest.mark.timeout(120)
def test_all_bad_requests_are_refused_cleanly(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(Reply("A scripted answer.", chunk=3))
    args = ServerArgs(api_keys=(Secret(KEY),), header_timeout=2.0, body_timeout=4.0, body_stall_timeout=1.0)
    app = build_app(engine, args, constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    entries = load(FILE)
    with live(app, args) as url:
        before = probe(url)
        report = run(entries, make_target(url, "test-model", KEY))
        assert probe(url) == before
    assert not report.failed
    assert not report.not_run
    assert len(report.passed) == len(entries) == 407
    assert engine.running == 0
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Answer(500), "status 500"),
        (Answer(200, body=b"{}"), "an error was expected"),
        (Answer(418, body=b"{}"), "none of"),
        (Answer(400, {"content-type": "text/plain"}, b"x"), "content type"),
        (Answer(400, {"content-type": "application/json"}, b'{"detail":"x"}'), "no error object"),
        (Answer(400, {"content-type": "application/json"}, b'{"error":{"message":"x"}}'), "incomplete"),
        (Answer(400, {"content-type": "application/json"}, b"Traceback"), "internals"),
        (Answer(0, closed=True), "closed"),
        (Answer(400, {}, b"", seconds=11), "took"),
    ],
)
def test_the_runner_notices(answer: Answer, problem: str) -> None:
    entry = {"id": "x", "group": "json", "config": "default", "expect": {"class": "4xx", "status": [400]}, "body": {}}
    target = make_target("http://127.0.0.1:1", "m")
    assert problem in judge(entry, answer, target)
