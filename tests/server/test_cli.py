"""Flags as users of SGLang and vLLM type them, and one line for every mistake."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.config import EngineConfig
from engine.model_store import DEFAULT_MODEL
from server.args import Secret, ServerArgs
from server.cli import make_parser, with_verb
from server.commands import chat, doctor
from server.commands.serve import StartRefused, make_settings
from server.flags import FLAGS
from server.run import PortInUse, bind, curl


def settings(line: str):
    return make_settings(make_parser().parse_args(with_verb(shlex.split(line))))


def test_defaults_are_those_of_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALLGATE_API_KEY", raising=False)
    made = settings("serve")
    assert made.engine == EngineConfig(model=DEFAULT_MODEL)
    assert made.server == ServerArgs()


SET_OTHERWISE = {"log_level", "served_model_names", "api_keys", "admin_keys", "graceful_shutdown_timeout"}
WITHOUT_FLAG = {
    *("max_body_bytes", "header_timeout", "body_timeout", "body_stall_timeout", "keep_alive_timeout", "write_timeout"),
    *("sse_comment_interval", "sse_chunk_interval", "stream_start_timeout"),
}
"""Ceilings and paces of the edge: for tests."""


def test_every_setting_of_the_front_end_has_a_flag() -> None:
    reached = {flag.target.removeprefix("server.") for flag in FLAGS if flag.target.startswith("server.")}
    names = {field.name for field in msgspec.structs.fields(ServerArgs)}
    assert names - reached == SET_OTHERWISE | WITHOUT_FLAG


def test_settings_of_the_response_store() -> None:
    made = settings("serve --response-store-bytes 0 --response-store-seconds 60 --trust-request-chat-template")
    assert (made.server.response_store_bytes, made.server.response_store_seconds) == (0, 60.0)
    assert made.server.trust_request_chat_template


def test_as_sglang_users_type_it() -> None:
    line = "--model-path M --port 30000 --mem-fraction-static 0.8 --tp 1 --context-length 4096 --disable-radix-cache"
    made = settings(line)
    assert made.engine == EngineConfig(
        model="M", mem_fraction_static=0.8, tp_size=1, max_model_len=4096, enable_prefix_cache=False
    )
    assert made.server.port == 30000


def test_as_vllm_users_type_it() -> None:
    line = (
        "serve M --gpu-memory-utilization 0.5 --tensor-parallel-size 2 --max-num-seqs 8 --dtype half --block-size 32 "
        "--enable-auto-tool-choice --tool-call-parser hermes --served-model-name a b --api-key k1 --api-key k2,k3"
    )
    made = settings(line)
    assert made.engine == EngineConfig(
        model="M",
        served_model_name="a",
        mem_fraction_static=0.5,
        tp_size=2,
        max_running_requests=8,
        dtype="float16",
        page_size=32,
    )
    assert made.server.served_model_names == ("a", "b")
    assert made.server.tool_call_parser == "hermes"
    assert made.server.api_keys == (Secret("k1"), Secret("k2"), Secret("k3"))


def test_every_row_names_a_field_that_exists() -> None:
    owners = {"engine": EngineConfig.__struct_fields__, "server": ServerArgs.__struct_fields__}
    for flag in FLAGS:
        owner, _, field = flag.target.partition(".")
        assert owner in ("", "run") or field in owners[owner], flag.names


def test_every_engine_setting_has_a_flag() -> None:
    set_by_flags = {flag.target.partition(".")[2] for flag in FLAGS if flag.target.startswith("engine.")}
    assert set(EngineConfig.__struct_fields__) - set_by_flags == {"served_model_name", "max_queued_tokens", "log_level"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("serve --tool-call-parsr hermes", "did you mean --tool-call-parser?"),
        ("serve --port 99999", "not a port"),
        ("serve --port x", "invalid port value"),
        ("serve --mem-fraction-static 1.5", "not between 0 and 1"),
        ("serve --tp 0", "not a positive number"),
        ("serve --device tpu", "invalid choice"),
        ("serve --dtype int3", "invalid choice"),
        ("serve --model", "expected one argument"),
        ("pull --nope", "unrecognized"),
        ("--frobnicate", "unrecognized"),
    ],
)
def test_a_bad_flag_is_one_line_and_status_2(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        make_parser().parse_args(with_verb(shlex.split(line)))
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("doctro", "did you mean doctor?"),
        ("bench", "benchmarks.serving"),
        ("pull2", "did you mean pull?"),
        ("org/name", "callgate serve org/name"),
    ],
)
def test_a_word_that_is_no_command_is_no_model_either(
    word: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        with_verb([word])
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert words in error
    assert error.count("\n") == 1


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for file in (tmp_path / "missing", tmp_path, binary):
        with pytest.raises(ValueError, match=f"keys cannot be read from {file}"):
            settings(f"serve --api-key-file {file}")


def test_names_are_checked_before_anything_is_loaded() -> None:
    for line in ("--chat-template nonsense", "--tool-call-parser nonsense", "--reasoning-parser nonsense"):
        with pytest.raises(ValueError, match="nonsense"):
            settings(f"serve {line}")
    with pytest.raises(StartRefused, match="twice"):
        settings("serve A --model B")


def test_a_port_in_use_is_found_at_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(PortInUse, match=r"cannot listen on 127\.0\.0\.1:\d+: .*; --port N takes another"),
    ):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(PortInUse):
        bind("no.such.host.invalid", 0)


def test_the_curl_of_the_banner_is_a_request_with_tools() -> None:
    words = shlex.split(curl("http://127.0.0.1:8000", "o'brien's \"mödel\"", with_key=True))
    body = json.loads(words[-1])
    assert body["model"] == "o'brien's \"mödel\""
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert body["tools"][0]["function"]["name"] == "get_weather"
    assert "authorization: Bearer $CALLGATE_API_KEY" in words


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['callgate', '--help']\n"
        "from server.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'fastapi', 'uvicorn', 'httpx', 'rich', 'zmq', 'msgspec', 'jinja2'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout


def test_demo_tools_run_and_explain_what_is_wrong() -> None:
    assert chat.run_tool("calculate", '{"a": 17, "operation": "multiply", "b": 23}') == "391.0"
    assert "UTC" in chat.run_tool("get_time", '{"timezone": "UTC"}')
    for name, arguments in [
        ("calculate", '{"a": 1, "operation": "divide", "b": 0}'),
        ("calculate", '{"a": "x"}'),
        ("calculate", "{"),
        ("calculate", "[]"),
        ("get_time", '{"timezone": "Mars/Base"}'),
        ("get_time", '{"timezone": "../../etc/passwd"}'),
        ("nope", "{}"),
    ]:
        assert chat.run_tool(name, arguments).startswith("error: ")


def test_doctor_says_something_of_every_topic() -> None:
    topics = {finding.topic for finding in doctor.examine()}
    assert topics >= {"callgate", "cpu", "memory", "disk", "cpu kernels", "cuda", "model", "optional"}
