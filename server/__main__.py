"""``python -m server`` is ``callgate serve``; other verbs work too."""

from __future__ import annotations

import sys

from server.cli import main

if __name__ == "__main__":
    sys.exit(main())
