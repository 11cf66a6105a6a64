"""Installing clients: no registry is a skip with a reason, broken pins are a failure, half an environment is none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.environments import ENVIRONMENTS, Environment, InstallFailed, Unavailable, ensure

WHEEL = "idna-1.0-py3-none-any.whl"
INFO = "idna-1.0.dist-info"


def index(directory: Path) -> str:
    """A package index of one package, as a URL."""
    package = directory / "simple" / "idna"
    package.mkdir(parents=True)
    with zipfile.ZipFile(package / WHEEL, "w") as wheel:
        wheel.writestr("idna.py", "")
        wheel.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: idna\nVersion: 1.0\n")
        wheel.writestr(
            f"{INFO}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{INFO}/RECORD", "")
    (package / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>', "utf-8")
    return package.parent.as_uri()


@pytest.fixture
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``pinned(index_url, *lines)``: an environment of those pins, in a cache of its own."""
    monkeypatch.setenv("CALLGATE_CLIENTS_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")

    def make(index_url: str, *lines: str) -> Environment:
        monkeypatch.setenv("PIP_INDEX_URL", index_url)
        pins = tmp_path / "pins.txt"
        pins.write_text("\n".join(lines), "utf-8")
        return Environment("some", "python", pins)

    return make


def test_no_registry_is_no_failure(pinned) -> None:
    environment = pinned("http://127.0.0.1:9/simple", "idna==1.0")
    with pytest.raises(Unavailable, match="the Python package registry does not answer"):
        ensure(environment)
    assert not (environment.path / ".complete").exists()


def test_pins_that_do_not_exist_are_a_failure(pinned, tmp_path: Path) -> None:
    with pytest.raises(InstallFailed, match="missing-package"):
        ensure(pinned(index(tmp_path), "idna==1.0", "missing-package==1.0"))


def test_half_an_environment_is_made_anew_and_a_whole_one_kept(pinned, tmp_path: Path) -> None:
    environment = pinned(index(tmp_path), "idna==1.0")
    half = environment.path / "half"
    half.mkdir(parents=True)
    assert ensure(environment) == environment.path
    assert not half.exists()
    half.touch()
    ensure(environment)
    assert half.exists()


def test_without_npm_there_are_no_node_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGATE_CLIENTS_DIR", str(tmp_path))
    monkeypatch.setattr(environments.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="npm is not installed"):
        ensure(ENVIRONMENTS["node"])
