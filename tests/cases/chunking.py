"""Ways to cut a text into the pieces in which it might arrive."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

MAX_EVERY_SPLIT = 3_000
SAMPLED_SPLITS = 60


def pieces_of(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def chunkings(text: str, given: Sequence[str] | None = None) -> Iterator[tuple[str, list[str]]]:
    """(name, pieces): whole, as given, one and seven characters, and every cut in two (a sample for long texts)."""
    yield "whole", [text]
    if given and "".join(given) == text:
        yield "the case's chunks", list(given)
    yield "char by char", list(text)
    yield "7 characters", pieces_of(text, 7)
    cuts: Sequence[int] = range(1, len(text))
    if len(text) > MAX_EVERY_SPLIT:
        cuts = sorted(random.Random(0).sample(cuts, SAMPLED_SPLITS if len(text) < 100_000 else 3))
    for cut in cuts:
        yield f"cut at {cut}", [text[:cut], text[cut:]]
