"""``callgate``, the one field of our own in answers of every dialect, which clients ignore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def extension(rescued: Sequence[Mapping[str, int]], relaxations: Sequence[str]) -> dict[str, Any]:
    """The field, {} where there is nothing to say. rescued: where in the answer those calls stand that the model
    wrote outside its own format. relaxations: what of the request's schemas is not enforced."""
    said: dict[str, Any] = {}
    if rescued:
        said["rescued_calls"] = list(rescued)
    if relaxations:
        said["relaxed_schemas"] = list(relaxations)
    return {"callgate": said} if said else {}
