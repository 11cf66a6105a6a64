"""No address that a client writes anywhere is ever called or opened."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.source_tree import ROOT


def test_addresses_in_requests_are_never_followed() -> None:
    command = [sys.executable, "-m", "tests.server.outbound"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print({key: result[key] for key in ("addresses", "statuses")})
    assert result["addresses"] >= 60
    assert result["watching"]
    assert result["events"] == []
    assert not [status for status in result["statuses"] if status >= "500"]
    assert result["statuses"]["200"] >= 60
    assert result["statuses"]["400"] >= 60
