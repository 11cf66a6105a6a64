"""Keys never share cached prefixes, and one key does, through every layer."""

from __future__ import annotations

import random
import string
from pathlib import Path

import httpx
import pytest

from engine.config import EngineConfig
from engine.launch import launch
from server.app import build_app
from server.args import Secret, ServerArgs
from tests.engine.scale import scaled

pytestmark = pytest.mark.e2e
PAGE = 16
VICTIM, OTHER = "sk-victim-0123456789", "sk-other-0123456789"


async def cached(client: httpx.AsyncClient, key: str, prompt: str, **fields: str) -> int:
    """Prompt tokens that came from the cache."""
    body = {"prompt": prompt, "max_tokens": 1, **fields}
    response = await client.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def test_a_prefix_is_found_by_its_own_key_alone(run_dir: Path) -> None:
    rng = random.Random(5)
    prompts = ["".join(rng.choices(string.ascii_letters, k=rng.randrange(PAGE + 1, 400))) for _ in range(scaled(100))]
    args = ServerArgs(api_keys=(Secret(VICTIM), Secret(OTHER)))
    async with launch(EngineConfig(model="hash-lm", page_size=PAGE, run_dir=str(run_dir))) as engine:
        transport = httpx.ASGITransport(app=build_app(engine, args))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for prompt in prompts:
                whole_pages = (len(prompt) - 1) // PAGE * PAGE
                assert await cached(client, VICTIM, prompt) == 0
                assert await cached(client, VICTIM, prompt) == whole_pages
                assert await cached(client, OTHER, prompt) == 0
                assert await cached(client, VICTIM, prompt, cache_salt="a") == 0
                assert await cached(client, OTHER, prompt, cache_salt="a") == 0
                assert await cached(client, VICTIM, prompt, cache_salt="a") == whole_pages
                assert await cached(client, OTHER, prompt) == whole_pages
    print(f"prompts: {len(prompts)}")
