"""Which clients are tested with what; ``python -m tests.clients.catalogue`` prints the table of docs/clients.md."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.clients.environments import ENVIRONMENTS, Environment


@dataclass(frozen=True)
class Client:
    """A client and its scenarios. ``packages``: what its row in the table names, with versions.

    real: the scenarios that also run with a small real model, which is made to call tools.
    """

    name: str
    environment_name: str
    script: str
    packages: tuple[str, ...]
    scenarios: tuple[str, ...] = field(repr=False)
    real: tuple[str, ...] = field(repr=False, default=("tools",))

    @property
    def environment(self) -> Environment:
        return ENVIRONMENTS[self.environment_name]


CLIENTS = (
    Client(
        "openai-python",
        "python",
        "openai_sdk.py",
        ("openai",),
        (
            *("tools", "tools-stream", "tools-helper-stream", "tools-parse-strict", "legacy-functions"),
            *("structured", "structured-complex", "json-object"),
            *("tools-responses", "tools-responses-stream", "tools-responses-raw-stream", "structured-responses"),
            *(
                "completions",
                "completions-stream",
                "models",
                "embeddings",
                "every-parameter",
                "errors",
                "stream-failure",
            ),
        ),
        real=("tools", "tools-stream", "tools-helper-stream", "structured", "tools-responses"),
    ),
    Client(
        "openai-python 1.1.0",
        "openai-1.1",
        "openai_1_1.py",
        ("openai",),
        (
            *("tools", "tools-stream", "legacy-functions", "json-object"),
            *("completions", "completions-stream", "models", "embeddings", "stream-failure"),
        ),
        real=("tools", "tools-stream"),
    ),
    Client(
        "openai-agents",
        "python",
        "openai_agents_sdk.py",
        ("openai-agents",),
        tuple(
            name.replace("~", api)
            for api in ("", "-responses")
            for name in (
                "tools~",
                "tools~-stream",
                "tools~-one-at-a-time",
                "tools~-handoff",
                "structured~",
                "stream-failure~",
            )
        ),
        real=("tools", "tools-responses"),
    ),
    Client(
        "LangChain and LangGraph",
        "python",
        "langchain_agents.py",
        ("langchain-openai", "langgraph", "langchain"),
        (
            *("tools", "tools-stream", "tools-bind", "tools-bind-stream", "tools-langgraph", "tools-structured-agent"),
            *("structured", "structured-function", "structured-json-mode"),
            *("tools-responses", "tools-responses-stream", "embeddings", "parameters", "stream-failure"),
        ),
        real=("tools-bind", "tools-bind-stream", "structured"),
    ),
    Client(
        "pydantic-ai",
        "python",
        "pydantic_ai_agents.py",
        ("pydantic-ai-slim",),
        (
            *("tools", "tools-stream", "tools-iter-stream", "tools-structured", "tools-structured-stream"),
            *("structured-tool", "structured-native", "structured-prompted"),
            *("tools-responses", "tools-responses-stream", "parameters", "stream-failure"),
        ),
        real=("structured-tool", "structured-native"),
    ),
    Client(
        "smolagents", "python", "smolagents_agents.py", ("smolagents",), ("tools", "tools-stream", "stream-failure")
    ),
    Client(
        "anthropic-python",
        "python",
        "anthropic_sdk.py",
        ("anthropic",),
        (
            *("tools", "tools-stream", "tools-runner", "tools-runner-stream"),
            *("structured", "count-tokens", "models", "errors", "stream-failure"),
        ),
        real=("tools", "tools-stream"),
    ),
    Client(
        "ollama-python",
        "python",
        "ollama_sdk.py",
        ("ollama",),
        (
            *("tools", "tools-stream", "structured", "json-object", "generate"),
            *("embeddings", "models", "errors", "stream-failure"),
        ),
        real=("structured", "generate", "models"),
    ),
    Client(
        "openai-node",
        "node",
        "openai_node.mjs",
        ("openai",),
        (
            *("tools", "tools-stream", "tools-raw-stream", "tools-runner", "tools-runner-stream", "structured"),
            *(
                "tools-responses",
                "tools-responses-stream",
                "structured-responses",
                "models",
                "embeddings",
                "stream-failure",
            ),
        ),
        real=("tools", "tools-stream", "structured"),
    ),
    Client(
        "@openai/agents",
        "node",
        "openai_agents_js.mjs",
        ("@openai/agents",),
        (
            *("tools", "tools-stream", "structured"),
            *("tools-responses", "tools-responses-stream", "structured-responses"),
            *("stream-failure", "stream-failure-responses"),
        ),
        real=("tools",),
    ),
    Client(
        "Vercel AI SDK",
        "node",
        "vercel_ai.mjs",
        ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai"),
        (
            *("tools", "tools-stream", "tools-stream-usage", "tools-openai-chat", "tools-openai-chat-stream"),
            *("tools-responses", "tools-responses-stream"),
            *(
                "structured",
                "structured-native",
                "structured-output",
                "structured-responses",
                "parameters",
                "stream-failure",
            ),
        ),
        real=("tools", "tools-stream"),
    ),
    Client("qwen-code", "node", "qwen_code.mjs", ("@qwen-code/qwen-code",), ("list-files",), real=("list-files",)),
)


def table() -> str:
    """The Markdown table of clients, versions and scenarios."""
    lines = ["| client | versions | scenarios |", "|---|---|---|"]
    for client in CLIENTS:
        versions = ", ".join(f"{package} {client.environment.version(package)}" for package in client.packages)
        scenarios = " ".join(f"`{name}`" for name in client.scenarios)
        lines.append(f"| {client.name} | {versions} | {scenarios} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
