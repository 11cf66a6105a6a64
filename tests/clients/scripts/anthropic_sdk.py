"""The anthropic SDK against /v1/messages: loops, streamed and not, its stateful runner, structured output."""

import anthropic
from anthropic import Anthropic, beta_tool
from common import (
    BASE,
    FAILURE_QUESTION,
    KEY,
    LENIENT,
    MODEL,
    QUESTION,
    TIMEOUT,
    TOOLS,
    WEATHER_QUESTION,
    add,
    check_weather,
    failure,
    get_weather,
    main,
    refusal,
    run_tool,
)
from pydantic import BaseModel

client = Anthropic(base_url=BASE.removesuffix("/v1"), api_key=KEY, timeout=TIMEOUT)
DECLARED = [
    {
        "name": tool["function"]["name"],
        "description": tool["function"]["description"],
        "input_schema": tool["function"]["parameters"],
    }
    for tool in TOOLS
]


class Weather(BaseModel):
    city: str
    temperature_c: float
    conditions: list[str]


def loop(ask):
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(6):
        fields = {"model": MODEL, "max_tokens": 300, "system": "Use the tools.", "messages": messages}
        if LENIENT:
            fields["tool_choice"] = {"type": "none" if turn else "any"}
        message = ask(tools=DECLARED, **fields)
        calls = [block for block in message.content if block.type == "tool_use"]
        assert message.stop_reason == ("tool_use" if calls else "end_turn"), message.stop_reason
        if not calls:
            return message.content[0].text
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": run_tool(block.name, block.input)}
            for block in calls
        ]
        messages.append({"role": "user", "content": results})
    raise AssertionError("no end after six turns")


def stream(**fields):
    with client.messages.stream(**fields) as events:
        return events.get_final_message()


@beta_tool(name="add")
def add_as_text(a: int, b: int) -> str:
    """Add two integers.

    Args:
        a: First integer.
        b: Second integer.
    """
    return str(add(a, b))


def runner(streamed):
    """The SDK's tool runner asks for a history on the server, is refused, and sends the whole conversation."""
    turns = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=300,
        messages=[{"role": "user", "content": QUESTION}],
        tools=[beta_tool(get_weather), add_as_text],
        stream=streamed,
    )
    for turn in turns:
        last = turn.get_final_message() if streamed else turn
    return last.content[0].text


def structured():
    ask = [{"role": "user", "content": WEATHER_QUESTION}]
    check_weather(client.messages.parse(model=MODEL, max_tokens=200, messages=ask, output_format=Weather).parsed_output)


def count_tokens():
    ask = [{"role": "user", "content": "hi"}]
    assert client.messages.count_tokens(model=MODEL, messages=ask).input_tokens > 0


def models():
    assert MODEL in [model.id for model in client.models.list()]


def stream_failure():
    ask = {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": FAILURE_QUESTION}]}
    failure(lambda: stream(**ask))
    failure(lambda: list(client.messages.create(stream=True, **ask)))


def errors():
    ask = [{"role": "user", "content": "hi"}]
    exc = refusal(
        anthropic.NotFoundError,
        lambda: client.messages.create(model="no-such-model", max_tokens=10, messages=ask),
    )
    assert exc.body["type"] == "error", exc.body
    assert exc.body["error"]["type"] == "not_found_error", exc.body


main(
    {
        "tools": lambda: loop(client.messages.create),
        "tools-stream": lambda: loop(stream),
        "tools-runner": lambda: runner(False),
        "tools-runner-stream": lambda: runner(True),
        "structured": structured,
        "count-tokens": count_tokens,
        "models": models,
        "errors": errors,
        "stream-failure": stream_failure,
    }
)
