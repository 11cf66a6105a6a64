"""What a client learns from times about other clients' secrets.

    python -m benchmarks.isolation [--prompts 300] [--samples 20000]

Cached prefixes: a victim sends half of the prompts with its key; then a prober sends all of them, once each, in random
order, and tells from the time to the first token which were the victim's. Printed is the area under the ROC curve, 0.5
for a guess, 1 for certainty; once for a prober with a key of its own, once for one with the victim's, which must tell.

Keys: how long the check of a wrong key takes whose first byte is wrong, and of one whose last byte is. Printed is the
two-sided p-value of the Mann-Whitney test that both take the same time; a plain comparison is there to show that the
test would notice.
"""

from __future__ import annotations

import argparse
import math
import random
import string
import time
from collections.abc import Callable, Sequence

import httpx
import numpy as np
import uvloop

from engine.config import EngineConfig
from engine.launch import launch
from server.app import build_app
from server.args import Secret, ServerArgs
from server.auth import KeyRing

VICTIM, PROBER = "sk-victim-0123456789", "sk-prober-0123456789"
PROMPT_TOKENS = 1500


def ranks_above(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """(share of pairs in which the one of ``first`` is larger, two-sided p-value of Mann-Whitney's U)."""
    values = np.concatenate([np.asarray(first), np.asarray(second)])
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n, m = len(first), len(second)
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / ((n + m) * (n + m - 1))
    deviation = math.sqrt(n * m / 12 * ((n + m + 1) - ties))
    z = abs(u - n * m / 2) / deviation if deviation else 0.0
    return u / (n * m), math.erfc(z / math.sqrt(2))


async def first_token(client: httpx.AsyncClient, key: str, prompt: str) -> float:
    begun = time.perf_counter()
    body = {"prompt": prompt, "max_tokens": 1}
    response = await client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    response.raise_for_status()
    return time.perf_counter() - begun


async def probe(client: httpx.AsyncClient, prober: str, count: int) -> float:
    """The area under the prober's ROC curve."""
    rng = random.Random()
    prompts = ["".join(rng.choices(string.ascii_letters, k=PROMPT_TOKENS)) for _ in range(count)]
    stored = set(prompts[::2])
    for prompt in stored:
        await first_token(client, VICTIM, prompt)
    rng.shuffle(prompts)
    times = [(prompt in stored, await first_token(client, prober, prompt)) for prompt in prompts]
    return ranks_above([t for hit, t in times if not hit], [t for hit, t in times if hit])[0]


async def prefixes(count: int) -> None:
    config = EngineConfig(model="hash-lm", hash_lm_delay=0.005, kv_pages=2 * count * PROMPT_TOKENS // 16 + 4096)
    args = ServerArgs(api_keys=(Secret(VICTIM), Secret(PROBER)))
    async with launch(config) as engine:
        transport = httpx.ASGITransport(app=build_app(engine, args))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            other, own = await probe(client, PROBER, count), await probe(client, VICTIM, count)
    print(f"{count} prompts: area {other:.3f} for a prober with another key, {own:.3f} with the victim's")


def key_times(check: Callable[[bytes], object], samples: int) -> tuple[float, float, float]:
    """(median ns where the first byte is wrong, median ns where the last one is, p-value)."""
    key = VICTIM.encode() * 4
    wrong = (b"X" + key[1:], key[:-1] + b"X")
    times: tuple[list[int], list[int]] = ([], [])
    order = random.Random(4).choices((0, 1), k=2 * samples)
    for which in order:
        candidate = wrong[which]
        begun = time.perf_counter_ns()
        check(candidate)
        times[which].append(time.perf_counter_ns() - begun)
    return float(np.median(times[0])), float(np.median(times[1])), ranks_above(*times)[1]


def keys(samples: int) -> None:
    key = VICTIM.encode() * 4
    ring = KeyRing([Secret(key.decode()), Secret(PROBER)])

    def plain(candidate: bytes) -> bool:
        """Byte by byte, as comparisons are that stop at the first difference."""
        return all(a == b for a, b in zip(key, candidate, strict=True))

    for label, check in (("ours", ring.match), ("byte by byte", plain)):
        first, last, p = key_times(check, samples)
        print(f"key check, {label}: {first:.0f} ns with the first byte wrong, {last:.0f} with the last; p = {p:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--samples", type=int, default=20_000)
    options = parser.parse_args()
    keys(options.samples)
    uvloop.run(prefixes(options.prompts))


if __name__ == "__main__":
    main()
