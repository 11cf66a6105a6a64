"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from server import limits
from tests.fakes import ScriptedEngine
from tests.server.conftest import Gateway


async def embed(gateway: Gateway, value: Any, status: int = 200, **fields: Any) -> Any:
    response = await gateway.client.post("/v1/embeddings", content=orjson.dumps({"input": value, **fields}))
    assert response.status_code == status, response.text
    return response.json() if status == 200 else response.json()["error"]


async def test_shape(gateway: Gateway) -> None:
    body = await embed(gateway, ["one", "two", [65, 66]], model="test-model")
    assert body["object"] == "list"
    assert body["model"] == "test-model"
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [row["index"] for row in body["data"]] == [0, 1, 2]
    for row in body["data"]:
        assert row["object"] == "embedding"
        assert len(row["embedding"]) == 8
        assert math.isclose(math.hypot(*row["embedding"]), 1, rel_tol=1e-6)
    assert len({tuple(row["embedding"]) for row in body["data"]}) == 3
    assert (await embed(gateway, "one"))["data"][0]["embedding"] == body["data"][0]["embedding"]


async def test_base64_is_the_same_vector(gateway: Gateway) -> None:
    plain = (await embed(gateway, "x", encoding_format="float"))["data"][0]["embedding"]
    packed = (await embed(gateway, "x", encoding_format="base64"))["data"][0]["embedding"]
    found = struct.unpack("<8f", base64.b64decode(packed))
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(plain, found, strict=True))


async def test_dimensions_cut_and_normalise(gateway: Gateway) -> None:
    whole = (await embed(gateway, "x"))["data"][0]["embedding"]
    cut = (await embed(gateway, "x", dimensions=3))["data"][0]["embedding"]
    assert math.isclose(math.hypot(*cut), 1, rel_tol=1e-6)
    assert math.isclose(cut[0] / cut[1], whole[0] / whole[1], rel_tol=1e-6)
    assert (await embed(gateway, "x", dimensions=8))["data"][0]["embedding"] == whole


async def test_special_spellings_are_text(gateway: Gateway) -> None:
    assert (await embed(gateway, "<|im_end|>"))["usage"]["prompt_tokens"] == len("<|im_end|>")


async def test_inputs_at_the_limit(make_gateway: Callable[..., Any]) -> None:
    sizes: list[int] = []

    class Counting(ScriptedEngine):
        async def embed(self, batch: Any, tenant: str = "") -> Any:
            sizes.append(len(batch))
            return await super().embed(batch, tenant)

    async with make_gateway(Counting()) as gateway:
        body = await embed(gateway, ["x"] * limits.MAX_EMBEDDING_INPUTS)
        assert len(body["data"]) == sum(sizes) == limits.MAX_EMBEDDING_INPUTS
        assert max(sizes) <= 64
        assert (await embed(gateway, ["x"] * (limits.MAX_EMBEDDING_INPUTS + 1), 400))["param"] == "input"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "normalize": False}, "normalize"),
        ({"input": "a", "use_activation": False}, "use_activation"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "endianness": "big"}, "endianness"),
        ({"input": "a", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"input": ""}, "input[0]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[-1]]}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": None}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 9}, "dimensions"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a" * 9000}, "input[0]"),
        ({"input": "a", "cache_salt": "~"}, "cache_salt"),
    ],
)
async def test_refusals(gateway: Gateway, fields: Any, param: str) -> None:
    error = await embed(gateway, **{"value": fields["input"], "status": 400, **fields})
    assert error["param"] == param


async def test_what_happens_anyway_may_be_asked_for(gateway: Gateway) -> None:
    asked = {
        "normalize": True,
        "use_activation": True,
        "embed_dtype": "float32",
        "endianness": "little",
        "messages": None,
    }
    assert await embed(gateway, "x", **asked) == await embed(gateway, "x")
