"""Runs a client's script against a gateway and reads its reports."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.clients.catalogue import Client
from tests.clients.environments import ensure

SCRIPTS = Path(__file__).with_name("scripts")
KEPT = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE")


class Report(msgspec.Struct, frozen=True):
    """What a script says of one scenario."""

    scenario: str
    ok: bool
    why: str
    seconds: float


@dataclass(frozen=True)
class Run:
    """All reports of one run, and what else the script wrote."""

    reports: Mapping[str, Report]
    log: str


def run_client(
    client: Client, base: str, home: Path, scenarios: Sequence[str] = (), *, seconds: float = 120, **environ: str
) -> Run:
    """Run the client's scenarios against ``base`` (``http://host:port``), with ``home`` for whatever it writes.

    Raises environments.Unavailable or InstallFailed; a scenario without a report is missing from the result.
    """
    directory = ensure(client.environment)
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env |= {"HOME": str(home), "BASE": f"{base}/v1", "NO_PROXY": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1", **environ}
    script = SCRIPTS / client.script
    if client.environment.kind == "node":  # node looks for packages beside the script
        for file in (script, SCRIPTS / "common.mjs"):
            shutil.copy(file, home)
        modules = home / "node_modules"
        if not modules.exists():
            modules.symlink_to(directory / "node_modules")
        script = home / script.name
    command = [str(client.environment.interpreter), str(script), *scenarios]
    try:
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        output, log = done.stdout, done.stderr
    except subprocess.TimeoutExpired as exc:
        output, log = (part.decode() if isinstance(part, bytes) else part or "" for part in (exc.stdout, exc.stderr))
        log += f"\nended after {seconds:g} s"
    reports = [msgspec.json.decode(line, type=Report) for line in output.splitlines() if line.startswith('{"scenario"')]
    return Run({report.scenario: report for report in reports}, f"{output}\n{log}")
