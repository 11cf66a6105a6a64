from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.kernels.cpu.linear import Context
from tests.engine.kernels.cpu.linear_cases import LEVELS


@pytest.fixture(params=LEVELS, ids=lambda isa: isa.name.lower())
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """Two threads at each instruction-set level that this machine has; none where the kernels cannot be built."""
    made = Context(2, request.param)
    yield made
    made.close()
