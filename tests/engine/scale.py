"""How much a property test does: CALLGATE_TEST_SCALE multiplies counts; the count reached is printed."""

from __future__ import annotations

import os


def scaled(count: int) -> int:
    return max(1, int(count * float(os.environ.get("CALLGATE_TEST_SCALE", "1"))))
