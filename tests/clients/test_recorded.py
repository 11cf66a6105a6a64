"""Requests that real clients sent, recorded from the wire: each is answered 2xx, or refused for a known reason.

``recorded/NAME.jsonl`` holds one request a line (``tag`` is the scenario, authorisation left out). Refused are what
needs a server-side state that this server has never seen, and a picture for a model that reads text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

RECORDED = Path(__file__).with_name("recorded")
LEFT_OUT = {"host", "content-length", "connection", "accept-encoding", "expect", "authorization"}
COUNT = 419
REFUSED = {"previous_response_id": 5, "thread": 2, "image_url": 1}


def recorded() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in sorted(RECORDED.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            yield file.stem, json.loads(line)


def refusal(body: Any) -> str:
    """The part of a body for which it is refused; empty where it must be answered."""
    if not isinstance(body, dict):
        return ""
    if stateful := [name for name in ("previous_response_id", "thread") if body.get(name)]:
        return stateful[0]
    return "image_url" if '"type": "image_url"' in json.dumps(body) else ""


def send(client: httpx.Client, request: Mapping[str, Any]) -> httpx.Response:
    body = request["body"]
    if isinstance(body, dict) and "model" in body:
        body = {**body, "model": "test-model"}
    headers = {name: value for name, value in request["headers"] if name.lower() not in LEFT_OUT}
    content = None if body is None else json.dumps(body)
    return client.request(request["method"], request["path"], content=content, headers=headers)


def fault(request: Mapping[str, Any], response: httpx.Response) -> str:
    """What is wrong with an answer; empty where nothing is."""
    reason = refusal(request["body"])
    if reason:
        error = response.json().get("error", {}) if response.status_code == 400 else {}
        named = reason in json.dumps(error)
        return "" if named else f"{response.status_code}, expected a 400 that names {reason}: {response.text[:300]}"
    if response.status_code >= 300:
        return f"{response.status_code}: {response.text[:300]}"
    if not (isinstance(request["body"], dict) and request["body"].get("stream")):
        return "" if isinstance(response.json(), dict) else "no JSON object"
    if not response.headers["content-type"].startswith("text/event-stream"):
        return f"content-type {response.headers['content-type']}"
    for part, end in (("/responses", "response.completed"), ("/messages", "message_stop"), ("completions", "[DONE]")):
        if part in request["path"]:
            return "" if end in response.text else f"the stream has no {end}"
    return "a stream of an unknown kind"


def test_every_recorded_request_is_answered_as_expected(gateway_url: str) -> None:
    faults, count, refused = [], 0, dict.fromkeys(REFUSED, 0)
    with httpx.Client(base_url=gateway_url, timeout=60) as client:
        for name, request in recorded():
            count += 1
            if reason := refusal(request["body"]):
                refused[reason] += 1
            if wrong := fault(request, send(client, request)):
                faults.append(f"{name} {request['tag']} {request['method']} {request['path']}: {wrong}")
    print(f"{count - len(faults)} of {count} recorded requests answered as expected")
    assert not faults, "\n".join(faults)
    assert (count, refused) == (COUNT, REFUSED)
