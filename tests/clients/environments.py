"""Environments of their own for the clients under test: two virtual environments and one node directory.

Versions are pinned in ``pins/``. Each environment is installed once, under a name that holds the hash of its pins, in
``CALLGATE_CLIENTS_DIR`` (default: the user's cache directory), and shared by every checkout and every run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

PINS = Path(__file__).with_name("pins")
INSTALL_SECONDS = 900


class Unavailable(Exception):
    """An environment that cannot be had here: no npm, or a registry that does not answer."""


class InstallFailed(Exception):
    """The registry answers and still the pinned versions did not install."""


@dataclass(frozen=True)
class Environment:
    """``kind``: "python" or "node"; ``pins``: the file, or for node the directory, that lists the versions."""

    name: str
    kind: str
    pins: Path

    @property
    def pin_files(self) -> tuple[Path, ...]:
        if self.kind == "node":
            return (self.pins / "package.json", self.pins / "package-lock.json")
        return (self.pins,)

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in self.pin_files))
        if self.kind == "python":
            digest.update(sys.version.encode())
        return cache_dir() / f"{self.name}-{digest.hexdigest()[:12]}"

    @property
    def interpreter(self) -> Path:
        """The python, or the pinned node, that runs scripts in this environment."""
        return self.path / ("bin/python" if self.kind == "python" else "node_modules/.bin/node")

    def version(self, package: str) -> str:
        """The pinned version of a package."""
        text = self.pin_files[0].read_text("utf-8")
        pattern = rf'"{re.escape(package)}": "([^"]+)"' if self.kind == "node" else rf"(?m)^{re.escape(package)}==(\S+)"
        found = re.search(pattern, text)
        if found is None:
            raise LookupError(f"{package} is not pinned in {self.pins}")
        return found.group(1)


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("python", "python", PINS / "python.txt"),
        Environment("openai-1.1", "python", PINS / "openai-1.1.txt"),
        Environment("node", "node", PINS / "node"),
    )
}


def cache_dir() -> Path:
    override = os.environ.get("CALLGATE_CLIENTS_DIR")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("callgate") / "clients"


def ensure(environment: Environment) -> Path:
    """The environment's directory, installed now if it is not there. Raises Unavailable or InstallFailed."""
    stamp = environment.path / ".complete"
    if stamp.exists():
        return environment.path
    with _lock(environment):
        if not stamp.exists():
            shutil.rmtree(environment.path, ignore_errors=True)
            environment.path.mkdir(parents=True)
            (_install_node if environment.kind == "node" else _install_python)(environment)
            stamp.touch()
    return environment.path


@contextmanager
def _lock(environment: Environment) -> Iterator[None]:
    """One installer at a time; a killed one leaves no stamp and the next starts afresh."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / f".{environment.path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _install_python(environment: Environment) -> None:
    _run([sys.executable, "-m", "venv", str(environment.path)], "venv")
    pip = [str(environment.interpreter), "-m", "pip", "--disable-pip-version-check"]
    done = _attempt([*pip, "install", "--quiet", "--no-deps", "--requirement", str(environment.pins)])
    if done.returncode:
        smallest = f"idna=={environment.version('idna')}"
        probe = ["--retries", "0", "--timeout", "10", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        reachable = _attempt([*pip, *probe, "--dest", str(environment.path / "probe"), smallest]).returncode == 0
        raise _failure(done, reachable, "the Python package registry")


def _install_node(environment: Environment) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    for file in environment.pin_files:
        shutil.copy(file, environment.path)
    # Not ``npm ci``: it refuses a lock file that lacks other platforms' optional packages.
    done = _attempt([npm, "install", "--no-audit", "--no-fund", "--loglevel=error"], cwd=environment.path)
    if done.returncode:
        probe = [npm, "view", "zod", "version", "--fetch-retries=0", "--fetch-timeout=10000"]
        raise _failure(done, _attempt(probe, cwd=environment.path).returncode == 0, "the npm registry")
    if not environment.interpreter.exists():
        raise InstallFailed("npm installed no node binary: its install scripts may be turned off")


def _failure(done: subprocess.CompletedProcess[str], reachable: bool, registry: str) -> Exception:
    tail = (done.stderr or done.stdout).strip()[-600:]
    return InstallFailed(tail) if reachable else Unavailable(f"{registry} does not answer: {tail[-160:]}")


def _attempt(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)


def _run(command: Sequence[str], what: str, cwd: Path | None = None) -> None:
    done = _attempt(command, cwd)
    if done.returncode:
        raise InstallFailed(f"{what}: {(done.stderr or done.stdout).strip()[-600:]}")
