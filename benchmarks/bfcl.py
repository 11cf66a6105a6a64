"""Share of right calls on the Berkeley function-calling leaderboard's items, against any OpenAI-compatible server.

    python -m benchmarks.bfcl --bfcl DIR --base-url http://127.0.0.1:8000/v1 --category simple_python --count 100

DIR is an unpacked bfcl-eval wheel (``pip download --no-deps bfcl-eval``, then unzip): its questions, answers and its
own AST checker decide. ``irrelevance`` counts the items answered without a call. Temperature 0. Prints one JSON
line: right, schema-valid and parsed calls, and appends it to --out.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import pathlib
import sys
import types
from typing import Any

import httpx
import jsonschema

TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


def load_checker(root: pathlib.Path) -> Any:
    """BFCL's ``ast_checker``. Its model table, which imports every vendor's SDK, is replaced by an empty entry."""
    sys.path.insert(0, str(root))
    table = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = {"callgate": types.SimpleNamespace(underscore_to_dot=False)}  # type: ignore[attr-defined]
    sys.modules[table.__name__] = table
    module = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
    return lambda item, calls, answer, category: module.ast_checker(
        item["function"], calls, answer, language, category, "callgate"
    )["valid"]


def json_schema(node: Any) -> Any:
    """BFCL's type names in JSON Schema's."""
    if isinstance(node, list):
        return [json_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    out = {key: json_schema(value) for key, value in node.items()}
    if isinstance(node.get("type"), str):
        out["type"] = TYPES.get(node["type"], node["type"])
    return out


def load(root: pathlib.Path, category: str, count: int) -> list[tuple[dict[str, Any], list[Any]]]:
    """(item, ground truth) of the first ``count`` items; the truth is empty for irrelevance."""
    data = root / "bfcl_eval" / "data"
    items = [json.loads(line) for line in (data / f"BFCL_v4_{category}.json").open()][:count]
    answers = data / "possible_answer" / f"BFCL_v4_{category}.json"
    truth = {row["id"]: row["ground_truth"] for row in map(json.loads, answers.open())} if answers.exists() else {}
    return [(item, truth.get(item["id"], [])) for item in items]


async def ask(client: httpx.AsyncClient, item: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The message that the server answers one item with."""
    tools = [
        {"type": "function", "function": {**function, "parameters": json_schema(function["parameters"])}}
        for function in item["function"]
    ]
    body = {
        "model": args.model,
        "messages": item["question"][0],
        "tools": tools,
        "tool_choice": args.tool_choice,
        "temperature": 0,
        "max_tokens": args.max_tokens,
    }
    answer = await client.post(f"{args.base_url}/chat/completions", json=body)
    answer.raise_for_status()
    return dict(answer.json()["choices"][0]["message"])


def read_calls(message: dict[str, Any], item: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The calls as BFCL wants them, and whether all of them parse and validate."""
    schemas = {function["name"]: json_schema(function["parameters"]) for function in item["function"]}
    calls, valid = [], bool(message.get("tool_calls"))
    for call in message.get("tool_calls") or ():
        arguments: Any = {}
        try:
            arguments = json.loads(call["function"]["arguments"])
            jsonschema.validate(arguments, schemas[call["function"]["name"]])
        except (ValueError, TypeError, KeyError, jsonschema.ValidationError):
            valid = False
        calls.append({call["function"]["name"]: arguments})
    return calls, valid


async def run(args: argparse.Namespace) -> dict[str, Any]:
    check = load_checker(args.bfcl)
    limit, count = asyncio.Semaphore(args.concurrency), {"right": 0, "valid": 0, "calls": 0, "errors": 0}

    async def one(item: dict[str, Any], truth: list[Any]) -> None:
        async with limit:
            try:
                message = await ask(client, item, args)
            except httpx.HTTPError as error:
                count["errors"] += 1
                print(item["id"], error, file=sys.stderr)
                return
        calls, valid = read_calls(message, item)
        right = (
            not calls if args.category == "irrelevance" else bool(calls) and check(item, calls, truth, args.category)
        )
        count["right"] += right
        count["valid"] += valid
        count["calls"] += bool(calls)
        if args.show and not right:
            print(json.dumps({"id": item["id"], "message": message, "truth": truth}), file=sys.stderr)

    async with httpx.AsyncClient(timeout=600) as client:
        items = load(args.bfcl, args.category, args.count)
        await asyncio.gather(*(one(item, truth) for item, truth in items))
    return {
        "label": args.label,
        "category": args.category,
        "tool_choice": args.tool_choice,
        "items": len(items),
        **count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bfcl", type=pathlib.Path, required=True)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--category", default="simple_python")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tool-choice", default="auto")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--label", default="")
    parser.add_argument("--show", action="store_true", help="print the items that are not right")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    row = asyncio.run(run(args))
    print(json.dumps(row))
    if args.out:
        with args.out.open("a") as out:
            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
