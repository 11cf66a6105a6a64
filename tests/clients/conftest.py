"""A real gateway on a real socket in front of the scripted model, and one run of each client against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from server.app import build_app
from server.args import ServerArgs
from tests.clients.catalogue import Client
from tests.clients.environments import Unavailable
from tests.clients.running import Run, run_client
from tests.clients.scripted_model import scripted_engine
from tests.live import live

MODEL = "test-model"
SLASHED = "org/stub-model"


@pytest.fixture(scope="session")
def gateway_url() -> Iterator[str]:
    args = ServerArgs(served_model_names=(MODEL, SLASHED))
    with live(build_app(scripted_engine(), args), args) as url:
        yield url


@pytest.fixture(scope="session")
def client_run(gateway_url: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Client], Run]:
    """The client's one run of all its scenarios; skips where its environment cannot be installed."""
    runs: dict[str, Run | Unavailable] = {}

    def run(client: Client) -> Run:
        if client.name not in runs:
            home = tmp_path_factory.mktemp("client")
            try:
                runs[client.name] = run_client(client, gateway_url, home, MODEL=MODEL, SLASHED_MODEL=SLASHED)
            except Unavailable as exc:
                runs[client.name] = exc
        found = runs[client.name]
        if isinstance(found, Unavailable):
            pytest.skip(f"{client.environment_name} clients: {found}")
        return found

    return run
