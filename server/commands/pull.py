"""``callgate pull``: a model into the cache."""

from __future__ import annotations

import argparse
import sys

from engine.model_store import DEFAULT_MODEL, ModelStoreError, resolve
from server.commands.progress import PullDisplay


def run(arguments: argparse.Namespace) -> int:
    name = arguments.model or DEFAULT_MODEL
    try:
        with PullDisplay(name) as display:
            found = resolve(name, observer=display)
    except ModelStoreError as error:
        print(f"callgate pull: {error}", file=sys.stderr)
        return 1
    print(f"{found.name}: {found.path}")
    return 0
