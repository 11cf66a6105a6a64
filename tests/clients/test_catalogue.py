"""docs/clients.md says what the tests do."""

from __future__ import annotations

from tests.clients.catalogue import CLIENTS, table
from tests.clients.running import SCRIPTS
from tests.source_tree import ROOT


def test_the_table_in_the_docs_is_the_catalogue() -> None:
    assert table() in (ROOT / "docs" / "clients.md").read_text("utf-8")


def test_every_script_has_its_clients_and_every_real_scenario_exists() -> None:
    scripts = {path.name for path in SCRIPTS.iterdir() if path.suffix in (".py", ".mjs")}
    assert scripts == {client.script for client in CLIENTS} | {"common.py", "common.mjs"}
    for client in CLIENTS:
        assert set(client.real) <= set(client.scenarios), client.name
