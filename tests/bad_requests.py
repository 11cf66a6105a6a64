"""Send a file of bad requests to a running server and check that each is refused cleanly.

    python -m tests.bad_requests FILE.jsonl --base-url http://127.0.0.1:8000 [--model M] [--api-key K] [--group G] [--id I]

Each line of the file is one request (``body``, ``body_text`` or ``raw``, with size macros) and what may come back.
Never acceptable: a 5xx, a hang, an error that is no OpenAI error object, internals in an answer, or a server that is
not ready afterwards. With --api-key every line is run, the key going with those that are not about keys; without it
the lines of config ``api_key`` count as not run. The last line reads ``N passed, M failed, K not run``.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HANG_SECONDS = 10.0
LEAKS = re.compile(r"Traceback|0x[0-9a-fA-F]{6,}|site-packages|/usr/|/home/|/root/|\.py\b")
PROMPT_MACRO = "$PROMPT_90PCT_OF_KV"


@dataclass(frozen=True)
class Target:
    """The server under test. kv_prompt: a prompt that fills 90 % of its KV pool, "" where unknown."""

    host: str
    port: int
    model: str
    key: str = ""
    kv_prompt: str = ""

    def fill(self, text: str) -> str:
        for name, value in (
            ("{HOST}", self.host),
            ("{PORT}", str(self.port)),
            ("{KEY_PREFIX}", self.key[: len(self.key) // 2]),
            ("{KEY}", self.key),
            ("$MODEL", self.model),
            (PROMPT_MACRO, self.kv_prompt),
        ):
            text = text.replace(name, value)
        return text


@dataclass
class Answer:
    """What came back. status 0: the connection was closed without a response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    closed: bool = False
    seconds: float = 0.0


# ---------------------------------------------------------------- from a line to bytes


def expand(value: Any) -> Any:
    """Size macros: $rep, $list, $map, $nest."""
    if isinstance(value, list):
        return [expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (name, given), *_ = value.items()
        if name == "$rep":
            return given[0] * given[1]
        if name == "$list":
            return [expand(given[0])] * given[1]
        if name == "$map":
            return {f"{given[0]}{i}": expand(given[2]) for i in range(given[1])}
        if name == "$nest":
            leaf = expand(given[2])
            for _ in range(given[1]):
                leaf = {given[0]: leaf}
            return leaf
    return {key: expand(item) for key, item in value.items()}


def join_parts(parts: Iterable[Any], encoding: str, target: Target) -> bytes:
    out = bytearray()
    for part in parts:
        if isinstance(part, str):
            text = target.fill(part)
            out += text.encode(encoding, "surrogatepass") if encoding.startswith("utf") else text.encode(encoding)
        elif "$rep" in part:
            out += part["$rep"][0].encode(encoding) * part["$rep"][1]
        else:
            out += bytes.fromhex(part["$hex"])
    return bytes(out)


def substitute(value: Any, target: Target) -> Any:
    if isinstance(value, str):
        return target.fill(value) if "$" in value else value
    if isinstance(value, list):
        return [substitute(item, target) for item in value] if len(value) < 5000 else value
    if isinstance(value, dict):
        return {key: substitute(item, target) for key, item in value.items()} if len(value) < 5000 else value
    return value


def wire(entry: Mapping[str, Any], target: Target) -> bytes:
    """The bytes of the whole connection."""
    own_key = entry["config"] != "api_key" and target.key
    if "raw" in entry:
        raw = list(entry["raw"])
        if own_key:
            line = "Host: {HOST}:{PORT}\r\n"
            raw = [
                part.replace(line, line + "Authorization: Bearer {KEY}\r\n") if isinstance(part, str) else part
                for part in raw
            ]
        return join_parts(raw, "latin-1", target)
    headers = {name: target.fill(value) for name, value in (entry.get("headers") or {}).items()}
    body: bytes | None = None
    if "body" in entry:
        body = json.dumps(expand(substitute(entry["body"], target)), ensure_ascii=True).encode()
    elif "body_text" in entry:
        body = join_parts(entry["body_text"], entry.get("enc", "utf-8"), target)
    if body is not None:
        headers.setdefault("Content-Type", "application/json")
    if own_key:
        headers.setdefault("Authorization", f"Bearer {target.key}")
    head = f"{entry['method']} {target.fill(entry['path'])} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if body is not None or entry["method"] == "POST":
        head += f"Content-Length: {len(body or b'')}\r\n"
    return head.encode("latin-1", "replace") + b"Connection: close\r\n\r\n" + (body or b"")


# ---------------------------------------------------------------- one exchange


def exchange(target: Target, payload: bytes, behaviour: Mapping[str, Any]) -> Answer:
    """Send and read to the end of the response or of the connection."""
    limit = float(behaviour.get("max_s") or behaviour.get("hold_s") or HANG_SECONDS) + 2
    answer, start = Answer(), time.monotonic()
    with socket.create_connection((target.host, target.port), timeout=limit) as sock:
        sender = threading.Thread(target=_send, args=(sock, payload, behaviour, start + limit), daemon=True)
        sender.start()
        received = bytearray()
        while time.monotonic() - start < limit:
            sock.settimeout(max(0.1, start + limit - time.monotonic()))
            try:
                data = sock.recv(65536)
            except TimeoutError:
                break
            except OSError:
                data = b""
            if not data:
                answer.closed = True
                break
            received += data
            if _complete(received):
                break
    answer.seconds = time.monotonic() - start
    _parse(bytes(received), answer)
    return answer


def _send(sock: socket.socket, payload: bytes, behaviour: Mapping[str, Any], deadline: float) -> None:
    try:
        pause = behaviour.get("dribble_ms", 0) / 1000
        head = payload.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in payload and pause else 0
        if pause:
            sock.sendall(payload[:head])
            for byte in payload[head:]:
                if time.monotonic() > deadline:
                    return
                sock.sendall(bytes([byte]))
                time.sleep(pause)
        else:
            sock.sendall(payload)
        if behaviour.get("half_close"):
            sock.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _complete(data: bytes | bytearray) -> bool:
    head, found, body = bytes(data).partition(b"\r\n\r\n")
    if not found or head.startswith(b"HTTP/1.1 100"):
        return False
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    if length:
        return len(body) >= int(length[1])
    return body.endswith(b"0\r\n\r\n")


def _parse(data: bytes, answer: Answer) -> None:
    while data.startswith(b"HTTP/1.1 100"):
        data = data.partition(b"\r\n\r\n")[2]
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    match = re.match(r"HTTP/1\.[01] (\d{3})", lines[0])
    if not match:
        return
    answer.status = int(match[1])
    answer.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    answer.body = body if answer.headers.get("transfer-encoding") != "chunked" else _dechunk(body)


def _dechunk(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size or b"0", 16)
        out += rest[:count]
        body = rest[count + 2 :] if count else b""
    return out


# ---------------------------------------------------------------- judging


def judge(entry: Mapping[str, Any], answer: Answer, target: Target) -> str:
    """What is wrong with the answer, "" for nothing."""
    expect = entry["expect"]
    kind, statuses = expect["class"], expect.get("status") or []
    if answer.seconds > HANG_SECONDS and not entry.get("behaviour"):
        return f"took {answer.seconds:.1f} s"
    if not answer.status:
        if kind in ("close", "4xx|close") and answer.closed:
            return ""
        return "connection closed without an answer" if answer.closed else "no answer"
    if answer.status >= 500:
        return f"status {answer.status}"
    if kind == "close":
        return "" if answer.closed else "connection stayed open"
    if kind in ("4xx", "4xx|close") and not 400 <= answer.status < 500:
        return f"status {answer.status}, an error was expected"
    if kind == "2xx" and not 200 <= answer.status < 300:
        return f"status {answer.status}, success was expected: {answer.body[:200]!r}"
    if statuses and answer.status not in statuses:
        return f"status {answer.status} is none of {statuses}"
    return _judge_body(entry, answer, target)


def _judge_body(entry: Mapping[str, Any], answer: Answer, target: Target) -> str:
    try:
        text = answer.body.decode("utf-8")
    except UnicodeDecodeError:
        return "the answer is not UTF-8"
    if LEAKS.search(text) or (target.key and target.key in text):
        return f"the answer shows internals: {text[:300]}"
    if "access-control-allow-origin" in answer.headers and "Access-Control-Allow-Origin" in entry["expect"].get(
        "also", ""
    ):
        return "Access-Control-Allow-Origin without configuration"
    if answer.status < 400:
        return ""
    if not answer.headers.get("content-type", "").startswith("application/json"):
        return f"content type {answer.headers.get('content-type')!r}"
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        return f"no error object: {text[:200]!r}"
    return _judge_error(entry, answer, error)


def _judge_error(entry: Mapping[str, Any], answer: Answer, error: Any) -> str:
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
        return f"incomplete error object: {error!r}"
    if not isinstance(error["message"], str) or not isinstance(error["type"], str):
        return "message and type must be strings"
    also = entry["expect"].get("also", "")
    if also.startswith("error.param names the field"):
        root = re.split(r"[.\[]", error["param"] or "")[0]
        if root not in entry["body"]:
            return f"error.param is {error['param']!r}"
    if "model_not_found when 404" in also and answer.status == 404 and error["code"] != "model_not_found":
        return f"error.code is {error['code']!r}"
    if "code context_length_exceeded" in also and error["code"] != "context_length_exceeded" and answer.status == 400:
        return f"error.code is {error['code']!r}"
    return ""


def healthy(target: Target) -> str:
    """ "" where /health/ready answers 200."""
    request = f"GET /health/ready HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nConnection: close\r\n\r\n"
    try:
        answer = exchange(target, request.encode(), {})
    except OSError as exc:
        return f"/health/ready does not answer: {exc}"
    return "" if answer.status == 200 else f"/health/ready answers {answer.status}"


# ---------------------------------------------------------------- the run


@dataclass
class Report:
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        return f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.not_run)} not run"


def skip_reason(entry: Mapping[str, Any], target: Target) -> str:
    if entry["config"] == "api_key" and not target.key:
        return "needs --api-key"
    if not target.kv_prompt and PROMPT_MACRO in json.dumps(entry):
        return "needs the size of the KV pool"
    return ""


def run(entries: Iterable[Mapping[str, Any]], target: Target) -> Report:
    """Slow connections run beside the others; after each of the others the server must be ready."""
    report, quick, slow = Report(), [], []
    for entry in entries:
        reason = skip_reason(entry, target)
        if reason:
            report.not_run[entry["id"]] = reason
        else:
            (slow if entry.get("behaviour") else quick).append(entry)
    with ThreadPoolExecutor(max_workers=max(1, len(slow))) as pool:
        waiting = [(entry, pool.submit(_verdict, entry, target)) for entry in slow]
        for entry in quick:
            _note(report, entry, _verdict(entry, target) or healthy(target))
        for entry, verdict in waiting:
            _note(report, entry, verdict.result() or healthy(target))
    return report


def _verdict(entry: Mapping[str, Any], target: Target) -> str:
    try:
        answer = exchange(target, wire(entry, target), entry.get("behaviour") or {})
    except OSError as exc:
        return f"cannot connect: {exc}"
    return judge(entry, answer, target)


def _note(report: Report, entry: Mapping[str, Any], problem: str) -> None:
    if problem:
        report.failed[entry["id"]] = problem
    else:
        report.passed.append(entry["id"])


def load(path: str | Path) -> list[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def make_target(base_url: str, model: str = "", key: str = "") -> Target:
    """Asks the server for its model where none is given."""
    parts = urlsplit(base_url)
    target = Target(parts.hostname or "127.0.0.1", parts.port or 80, model, key)
    if model:
        return target
    auth = f"Authorization: Bearer {key}\r\n" if key else ""
    request = f"GET /v1/models HTTP/1.1\r\nHost: {target.host}:{target.port}\r\n{auth}Connection: close\r\n\r\n"
    card = json.loads(exchange(target, request.encode(), {}).body)["data"][0]
    return Target(target.host, target.port, card["id"], key)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--group", action="append", help="only this group (may be repeated)")
    parser.add_argument("--id", action="append", help="only this line (may be repeated)")
    options = parser.parse_args(argv)
    entries = [
        entry
        for entry in load(options.file)
        if (not options.group or entry["group"] in options.group) and (not options.id or entry["id"] in options.id)
    ]
    report = run(entries, make_target(options.base_url, options.model, options.api_key))
    for name, problem in report.failed.items():
        print(f"FAIL {name}: {problem}")
    for reason in sorted(set(report.not_run.values())):
        names = [name for name, why in report.not_run.items() if why == reason]
        print(f"not run ({reason}): {', '.join(names)}")
    print(report.summary())
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
