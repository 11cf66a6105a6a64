"""Installs the clients under test: ``python -m tests.clients.install [environment ...]``."""

from __future__ import annotations

import sys

from tests.clients.environments import ENVIRONMENTS, InstallFailed, Unavailable, ensure


def main() -> int:
    failed = 0
    for name in sys.argv[1:] or ENVIRONMENTS:
        try:
            print(f"{name}: {ensure(ENVIRONMENTS[name])}", flush=True)
        except (InstallFailed, Unavailable) as exc:
            failed += 1
            print(f"{name}: {exc}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
