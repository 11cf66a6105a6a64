"""The requests of each workload. All are greedy and streamed; prompts depend on the seed alone.

    W1  one stream:     3 x (~60-token prompt, 128 new), one at a time
    W2  prefill:        4 x (~1,500 unique tokens, 8 new), one at a time
    W3  shared prefix:  16 x (the same ~1,200 tokens of system prompt and tools, a short question, 64 new), 8 at once
    W4  batch:          16 x (~200 distinct tokens, 64 new), 16 at once
    W5  tool calls:     16 x (3 tools, tool_choice required, up to 128 new), 4 at once
    W6  JSON:           16 x (strict response_format, up to 128 new), 4 at once
    W7  agents:         4 sessions at once of 8 turns in a row, whose history of calls and results grows, 48 new a turn

W1 to W4 and W7 make the server write exactly ``max_tokens``; how depends on the kind of server.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.serving.prompts import (
    ACTION_SCHEMA,
    AGENT_RULES,
    AGENT_TOOLS,
    ASSISTANT_REQUESTS,
    ASSISTANT_TOOLS,
    QUESTIONS,
    TOPICS,
    VERBS,
    WORDS,
)

TURNS = 8
KINDS = ("generic", "vllm", "llamacpp", "transformers", "plain")
"""How a server is made to write an exact number of tokens; transformers and plain cannot be."""


@dataclass(frozen=True)
class Request:
    """A body without model and sampling, and the tool or action that answers it."""

    body: dict[str, Any]
    expected: str | None = None


@dataclass(frozen=True)
class Workload:
    """``concurrency`` requests run at once; with ``turns`` > 1 each run of so many is one session, in order."""

    name: str
    title: str
    build: Callable[[int], list[Request]]
    concurrency: int
    forced: bool = True
    turns: int = 1


def soup(rng: random.Random, count: int) -> str:
    """Sentences of ``count`` words that no cache has seen."""
    out: list[str] = []
    while len(out) < count:
        sentence = [rng.choice(WORDS) for _ in range(rng.randint(7, 13))]
        sentence[rng.randint(1, 3)] = rng.choice(VERBS)
        sentence[0] = "The " + sentence[0]
        out += (" ".join(sentence) + ".").split()
    return " ".join(out[:count]).rstrip(".") + "."


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def single_stream(seed: int) -> list[Request]:
    out = []
    for i in range(3):
        text = (
            f"Session {seed}-{i}. Write a long and very detailed essay, at least one thousand words, that explains "
            f"{TOPICS[(seed * 3 + i) % len(TOPICS)]}. "
            "Use full paragraphs, start right away with the first paragraph and do not stop early."
        )
        out.append(Request({"messages": [user(text)], "max_tokens": 128}))
    return out


def prefill(seed: int) -> list[Request]:
    out = []
    for i in range(4):
        text = soup(random.Random(f"{seed}/W2/{i}"), 1350)
        text = f"Document {seed}-{i}. {text} Name the main theme of this document in one sentence."
        out.append(Request({"messages": [user(text)], "max_tokens": 8}))
    return out


def shared_prefix(seed: int) -> list[Request]:
    rng = random.Random(f"{seed}/W3")
    first = system(
        f"Workspace {seed}-{rng.randint(1000, 9999)}. {AGENT_RULES}Notes of earlier sessions: {soup(rng, 225)}"
    )
    return [
        Request({"messages": [first, user(question)], "tools": AGENT_TOOLS, "max_tokens": 64}) for question in QUESTIONS
    ]


def batch(seed: int) -> list[Request]:
    out = []
    for i, topic in enumerate(TOPICS):
        text = (
            f"Note {seed}-{i}. {soup(random.Random(f'{seed}/W4/{i}'), 115)} Ignore the note above. Write a long and "
            f"detailed article, at least eight hundred words, that explains {topic}. "
            "Use full paragraphs and do not stop early."
        )
        out.append(Request({"messages": [user(text)], "max_tokens": 64}))
    return out


def tool_calls(seed: int) -> list[Request]:
    number = random.Random(f"{seed}/W5").randint(1000, 9999)
    first = system(f"You are an assistant that acts by calling tools. Session {seed}-{number}.")
    common = {"tools": ASSISTANT_TOOLS, "tool_choice": "required", "max_tokens": 128}
    return [Request({"messages": [first, user(text)], **common}, tool) for text, tool in ASSISTANT_REQUESTS]


def json_answers(seed: int) -> list[Request]:
    rng = random.Random(f"{seed}/W6")
    shape = {"type": "json_schema", "json_schema": {"name": "action", "strict": True, "schema": ACTION_SCHEMA}}
    out = []
    for text, action in ASSISTANT_REQUESTS:
        first = system(
            "You turn a request into one JSON object that describes the action. "
            f"Session {seed}-{rng.randint(1000, 9999)}."
        )
        body = {"messages": [first, user(text)], "max_tokens": 128, "response_format": shape}
        out.append(Request(body, action))
    return out


def agents(seed: int) -> list[Request]:
    out: list[Request] = []
    for session in range(4):
        rng = random.Random(f"{seed}/W7/{session}")
        messages = [
            system(f"Workspace {seed}. {AGENT_RULES}"),
            user(
                f"Session {seed}-{session}. Find out why the nightly job of module {rng.choice(WORDS)} fails and "
                "describe the cause."
            ),
        ]
        for turn in range(TURNS):
            out.append(Request({"messages": list(messages), "tools": AGENT_TOOLS, "max_tokens": 48}))
            messages += file_read(rng, f"call{seed}{session}{turn}x{rng.randint(100, 999)}", 10 * turn + 1)
    return out


def file_read(rng: random.Random, call_id: str, line: int) -> list[dict[str, Any]]:
    """A call of read_file and its result."""
    path = f"src/{rng.choice(WORDS)}/{rng.choice(WORDS)}.py"
    function = {"name": "read_file", "arguments": json.dumps({"path": path, "start_line": line})}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": soup(rng, 110)},
    ]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "one stream", single_stream, 1),
        Workload("W2", "prefill", prefill, 1),
        Workload("W3", "shared prefix", shared_prefix, 8),
        Workload("W4", "batch of 16", batch, 16),
        Workload("W5", "forced tool calls", tool_calls, 4, forced=False),
        Workload("W6", "strict JSON", json_answers, 4, forced=False),
        Workload("W7", "agents, 8 turns", agents, 4, turns=TURNS),
    )
}


def warm_up(seed: int) -> list[Request]:
    """A short and a longer prompt that no workload uses."""
    texts = [soup(random.Random(f"warm{seed}/{words}"), words) for words in (4, 300)]
    return [
        Request({"messages": [user(f"Warm up. {text} Write a long story.")], "max_tokens": tokens})
        for text, tokens in zip(texts, (16, 8))
    ]


def complete(body: dict[str, Any], model: str, kind: str, forced: bool) -> dict[str, Any]:
    """What is sent to a server of ``kind``; ``forced`` asks for exactly ``max_tokens``."""
    out = {**body, "model": model, "temperature": 0, "stream": True}
    if kind != "transformers":
        out["stream_options"] = {"include_usage": True}
    else:
        out.pop("tool_choice", None)
    if forced and kind == "vllm":
        out |= {"ignore_eos": True, "min_tokens": out["max_tokens"]}
    elif forced and kind in ("llamacpp", "generic"):
        out["ignore_eos"] = True
    return out
