"""Every client passes every scenario against the gateway in front of a scripted model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.environments import INSTALL_SECONDS
from tests.clients.running import Run

pytestmark = [pytest.mark.clients, pytest.mark.timeout(INSTALL_SECONDS)]


@pytest.mark.parametrize(
    ("client", "scenario"),
    [
        pytest.param(client, scenario, id=f"{client.script}-{scenario}")
        for client in CLIENTS
        for scenario in client.scenarios
    ],
)
def test_client(client: Client, scenario: str, client_run: Callable[[Client], Run]) -> None:
    run = client_run(client)
    assert scenario in run.reports, run.log[-4000:]
    report = run.reports[scenario]
    assert report.ok, f"{report.why}\n{run.log[-4000:]}"


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.script)
def test_the_catalogue_names_every_scenario(client: Client, client_run: Callable[[Client], Run]) -> None:
    assert set(client_run(client).reports) == set(client.scenarios)
