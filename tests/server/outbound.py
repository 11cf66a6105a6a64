"""What the gateway opens and whom it calls while clients send it addresses; run by test_outbound in a process of its own,
because an audit hook stays for good.

Prints one line of JSON: how many requests were made, the statuses, and every event that is no reading of code.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import httpx

from server.app import build_app
from server.args import ServerArgs
from server.constrainer import Constrainer
from tests.fakes import ScriptedEngine
from tests.server.conftest import FakeChecker
from tests.source_tree import ROOT

WATCHED = (
    *("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto"),
    *("urllib.Request", "http.client.connect", "ftplib.connect", "smtplib.connect", "webbrowser.open"),
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.spawn"),
    *("open", "os.listdir", "os.scandir", "shutil.copyfile", "ctypes.dlopen"),
)
CODE = tuple(
    os.path.realpath(path)
    for path in (str(ROOT), sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
)

ADDRESSES = (
    *("http://canary.example/a.png", "https://canary.example/a.png", "HTTP://CANARY.example/a.png"),
    *("hTTps://canary.example:443/", "http://canary.example:22/", "http://user:pass@canary.example/"),
    *("http://canary.example@127.0.0.1/", "http://127.0.0.1@canary.example/", "http://127.0.0.1#@canary.example/"),
    *("http://127.0.0.1/", "http://127.0.0.1:8000/metrics", "http://localhost/", "http://LOCALHOST:80/"),
    *("http://127.1/", "http://0/", "http://0.0.0.0/", "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/"),
    *("http://017700000001/", "http://0177.0.0.1/", "http://127.000.000.001/", "http://[::1]/", "http://[::]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[fe80::1%25lo]/"),
    *("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://2852039166/"),
    *("http://metadata.google.internal/", "http://100.100.100.200/", "http://10.0.0.1/", "http://192.168.0.1/"),
    *("http://127.0.0.1.nip.io/", "http://localtest.me/", "http://canary.example./", "http://canary。example/"),
    *(
        "http://ⓒⓐⓝⓐⓡⓨ.example/",
        "http://１２７.0.0.1/",
        "http:///canary.example/",
        "http:canary.example",
        "http:/canary.example",
    ),
    *("http:\\\\canary.example\\a", "//canary.example/a", "\\\\canary.example\\share", " http://canary.example/"),
    *("http://canary.example/\r\nHost: x", "http://canary.example/%0d%0aX: y", "\thttp://canary.example"),
    *("file:///etc/passwd", "file://localhost/etc/passwd", "file:/etc/passwd", "FILE:///proc/self/environ"),
    *("/etc/passwd", "../../../../etc/passwd", "ftp://canary.example/a", "gopher://127.0.0.1:6379/_INFO"),
    *("dict://127.0.0.1:11211/stats", "ldap://canary.example/", "jar:http://canary.example!/", "s3://bucket/key"),
    *(
        "hf://owner/name",
        "unix:///var/run/docker.sock",
        "data:text/plain;base64,aGk=",
        "data:image/png,http://canary.example",
    ),
)


def requests(address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place where a client can write an address."""
    for part in (
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "image_url", "image_url": address},
        {"type": "input_audio", "input_audio": {"data": address, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": address}},
        {"type": "file", "file": {"file_data": address, "file_id": address, "filename": address}},
        {"type": "text", "text": f"![x]({address}) <img src='{address}'>"},
    ):
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": "c", "content": [part]}
        yield "/v1/chat/completions", {"messages": [{"role": "assistant", "tool_calls": [call]}, result]}
    chat = {"messages": [{"role": "user", "content": address, "name": address}]}
    yield "/v1/chat/completions", {**chat, "model": address}
    yield "/v1/chat/completions", {**chat, "chat_template": "{% include '" + address + "' %}"}
    yield "/v1/chat/completions", {**chat, "chat_template_kwargs": {"document": address}}
    for keyword in ("$ref", "$schema", "$id", "$dynamicRef", "contentMediaType"):
        schema = {"type": "object", "properties": {"a": {keyword: address}}, keyword: address}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        yield "/v1/chat/completions", {**chat, "tools": [tool], "tool_choice": "required"}
        shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        yield "/v1/chat/completions", {**chat, "response_format": shape}
    source = {"type": "url", "url": address}
    for kind in ("image", "document"):
        content = [{"type": kind, "source": source}]
        yield "/v1/messages", {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
        call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": content}
        turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        yield "/v1/messages", {"messages": [{"role": "user", "content": "hi"}, *turns], "max_tokens": 4}
    for part in (
        {"type": "input_image", "image_url": address},
        {"type": "input_file", "file_url": address, "file_data": address},
    ):
        yield "/v1/responses", {"input": [{"role": "user", "content": [part]}]}
    mcp = {"type": "mcp", "server_label": "x", "server_url": address}
    yield "/v1/responses", {"input": "hi", "tools": [mcp, {"type": "web_search"}]}
    yield "/v1/completions", {"prompt": address}
    yield "/v1/embeddings", {"input": address}
    yield "/generate", {"text": address, "image_data": address}
    yield "/parse_function_call", {"text": address, "tool_call_parser": address}
    yield "/tokenize", {"prompt": address, "model": address}


async def send_all(client: httpx.AsyncClient, addresses: tuple[str, ...]) -> dict[str, int]:
    statuses: dict[str, int] = {}
    for address in addresses:
        for path, body in requests(address):
            response = await client.post(path, json=body)
            statuses[str(response.status_code)] = statuses.get(str(response.status_code), 0) + 1
    return statuses


async def main() -> None:
    found: list[str] = []

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in WATCHED:
            name = args[0] if args else ""
            is_code = isinstance(name, str) and os.path.realpath(name).startswith(CODE)
            if not (event in ("open", "os.listdir", "os.scandir") and is_code):
                found.append(f"{event} {args!r}"[:200])

    app = build_app(ScriptedEngine(), ServerArgs(), constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        await send_all(client, ADDRESSES[:1])
        sys.addaudithook(hook)
        statuses = await send_all(client, ADDRESSES)
        events = list(found)
        os.close(os.open(os.devnull, os.O_RDONLY))
        watching = len(found) > len(events)
    print(json.dumps({"addresses": len(ADDRESSES), "statuses": statuses, "events": events, "watching": watching}))


if __name__ == "__main__":
    asyncio.run(main())
