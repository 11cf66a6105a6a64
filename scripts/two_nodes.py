"""Tensor parallelism over two machines, shown with two network namespaces: ``sudo python scripts/two_nodes.py``.

Two namespaces with a veth pair between them, one node of one rank in each, on CPUs with gloo. The answers must be
those of one process. Then node 1's rank is killed while node 0 streams: how long until the client is told, and until
the group answers again, and with the same text. Needs root and ``ip``; leaves no namespace behind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
NETWORK = "10.77.0"
PROMPTS = [f"Node {index} says to node {index + 1}: " + "hear me " * (1 + 7 * index) for index in range(6)]


class Failed(RuntimeError):
    """What was to be shown is not so."""


@contextmanager
def namespaces(names: tuple[str, str], links: tuple[str, str]) -> Iterator[None]:
    """Two namespaces that reach each other as 10.77.0.1 and 10.77.0.2, and nothing else."""
    created: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            created.append(name)
        _ip("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for number, (name, link) in enumerate(zip(names, links, strict=True), 1):
            _ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in created:
            _ip("netns", "del", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def node(arguments: list[str], link: str, *, inside: str = "", log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``callgate serve`` with its output in ``log``; ended with SIGTERM."""
    prefix = ["ip", "netns", "exec", inside] if inside else []
    command = [*prefix, sys.executable, "-m", "server", "serve", *arguments]
    with log.open("ab") as output:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": link}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def post(port: int, body: dict[str, Any], timeout: float = 60) -> bytes:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        data: bytes = answer.read()
        return data


def texts(port: int) -> list[str]:
    body = {"max_tokens": 16, "temperature": 0}
    return [json.loads(post(port, {**body, "prompt": prompt}))["choices"][0]["text"] for prompt in PROMPTS]


def until_ready(port: int, seconds: float, log: Path) -> float:
    """Wait for an answer; the seconds that it took."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        try:
            post(port, {"prompt": "x", "max_tokens": 1})
            return time.monotonic() - start
        except OSError:  # refused, reset, or 503
            time.sleep(0.05)
    raise Failed(f"no answer within {seconds:.0f} s:\n{log.read_text('utf-8', 'replace')[-3000:]}")


def rank_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """The model process below a node."""
    for child in psutil.Process(process.pid).children(recursive=True):
        if "engine.model_process" in child.cmdline():
            return child
    raise Failed("node 1 has no rank")


def kill_rank(port: int, other: subprocess.Popen[bytes], log: Path) -> tuple[float, float]:
    """SIGKILL under a stream: seconds until the stream ended, and until a new request was answered."""
    ended: list[float] = []

    def stream() -> None:
        body = {"prompt": "on and on", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with suppress(OSError):
            post(port, body, timeout=120)
        ended.append(time.monotonic())

    listener = threading.Thread(target=stream)
    listener.start()
    time.sleep(1.0)
    if ended:
        raise Failed("the stream ended before a rank was killed")
    rank = rank_of(other)
    killed = time.monotonic()
    rank.kill()
    listener.join(60)
    if not ended:
        raise Failed("the stream was not told within a minute")
    until_ready(port, 90, log)
    return ended[0] - killed, time.monotonic() - killed


def show(model: str, other_namespace: str, links: tuple[str, str], port: int, directory: Path) -> None:
    """What happens inside the first namespace."""
    common = ["--model", model, "--runner", "torch", "--device", "cpu", "--dtype", "float32", "--threads", "1"]
    common += ["--kv-pages", "512", "--max-model-len", "8192", "--port", str(port), "--host", "127.0.0.1"]
    log = directory / "node0.log"
    with node(common, links[0], log=log):
        until_ready(port, 120, log)
        expected = texts(port)
    if len(set(expected)) < len(PROMPTS) // 2:
        raise Failed("the model answers everything alike: that would show nothing")
    pair = [*common, "--tp", "2", "--nnodes", "2", "--dist-init-addr", f"{NETWORK}.1:29500"]
    near, far = [*pair, "--node-rank", "0"], [*pair, "--node-rank", "1"]
    other_log = directory / "node1.log"
    with node(near, links[0], log=log), node(far, links[1], inside=other_namespace, log=other_log) as two:
        print(f"two nodes are ready after {until_ready(port, 120, log):.1f} s", flush=True)
        equal = sum(one == other for one, other in zip(texts(port), expected, strict=True))
        print(f"answers like those of one process: {equal} of {len(PROMPTS)}", flush=True)
        told, ready = kill_rank(port, two, log)
        print(f"SIGKILL of node 1's rank: the client was told after {told:.2f} s, ready again after {ready:.1f} s")
        again = sum(one == other for one, other in zip(texts(port), expected, strict=True))
        print(f"answers after that: {again} of {len(PROMPTS)}", flush=True)
    if equal != len(PROMPTS) or again != len(PROMPTS):
        raise Failed("two nodes answer otherwise than one process")


def tiny(directory: Path) -> str:
    """A random model of the tests, where none is given."""
    sys.path.insert(0, str(ROOT))
    from tests.e2e.tiny_model import tiny_model

    return str(tiny_model(directory / "model", max_position_embeddings=8192))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="", help="a directory or file; by default a tiny random model")
    parser.add_argument("--port", type=int, default=8000, help="of node 0's API, inside its namespace")
    parser.add_argument("--inside", nargs=3, metavar=("NAMESPACE", "LINK", "LINK"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("Network namespaces need root.")
    names = (f"callgate-{os.getpid()}-a", f"callgate-{os.getpid()}-b")
    links = (f"cg{os.getpid()}a", f"cg{os.getpid()}b")
    try:
        with tempfile.TemporaryDirectory() as name:
            if args.inside:
                show(args.model, args.inside[0], (args.inside[1], args.inside[2]), args.port, Path(name))
                return
            with namespaces(names, links):
                model = args.model or tiny(Path(name))
                own = [
                    sys.executable,
                    __file__,
                    "--model",
                    model,
                    "--port",
                    str(args.port),
                    "--inside",
                    names[1],
                    *links,
                ]
                sys.exit(subprocess.run(["ip", "netns", "exec", names[0], *own], check=False).returncode)
    except (Failed, subprocess.CalledProcessError, urllib.error.URLError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
