"""The openai SDK itself, latest: hand-written loops, its helpers, both APIs, and everything else it can ask for."""

import enum
import json
import os
from typing import Literal

import openai
from common import (
    BASE,
    FAILURE_QUESTION,
    GREEDY,
    KEY,
    LENIENT,
    MODEL,
    QUESTION,
    TIMEOUT,
    TOOLS,
    WEATHER_QUESTION,
    check_weather,
    failure,
    forced,
    main,
    refusal,
    run_tool,
)
from openai import NOT_GIVEN, OpenAI
from pydantic import BaseModel, Field

client = OpenAI(base_url=BASE, api_key=KEY, timeout=TIMEOUT)
FLAT_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]


class Weather(BaseModel):
    city: str
    temperature_c: float
    conditions: list[str]


class GetWeather(BaseModel):
    city: str


class Add(BaseModel):
    a: int
    b: int


class Unit(enum.Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


class Station(BaseModel):
    id: int = Field(ge=1, le=99)
    name: str = Field(min_length=1, max_length=20, pattern="^[a-z]+$")


class Tree(BaseModel):
    value: str
    children: list["Tree"]


class Report(BaseModel):
    """Optional, union, enum, literal, bounds, pattern, list of models, recursion."""

    unit: Unit
    kind: Literal["now"]
    note: str | None = None
    value: int | str
    stations: list[Station] = Field(max_length=3)
    tree: Tree


def chat_loop(ask, tools=TOOLS):
    """``ask(turn, **fields)`` gives the assistant's message, which goes back into the history as it came."""
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(6):
        message = ask(model=MODEL, messages=messages, tools=tools, **forced(turn))
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = run_tool(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("no end after six turns")


def tools():
    return chat_loop(lambda **fields: client.chat.completions.create(**fields).choices[0].message)


def tools_helper_stream():
    def ask(**fields):
        with client.chat.completions.stream(**fields) as stream:
            for _ in stream:
                pass
            return stream.get_final_completion().choices[0].message

    return chat_loop(ask)


def tools_parse_strict():
    strict = [
        openai.pydantic_function_tool(GetWeather, name="get_weather"),
        openai.pydantic_function_tool(Add, name="add"),
    ]
    return chat_loop(lambda **fields: client.chat.completions.parse(**fields).choices[0].message, strict)


def accumulate(chunks):
    """Text and calls of a stream, as most tutorials put them together."""
    text, calls = "", {}
    for chunk in chunks:
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        text += delta.content or ""
        for part in delta.tool_calls or []:
            call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += part.id or ""
            call["name"] += part.function.name or ""
            call["arguments"] += part.function.arguments or ""
    return text, [calls[index] for index in sorted(calls)]


def tools_stream():
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(6):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        text, calls = accumulate(
            client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, **options, **forced(turn))
        )
        if not calls:
            return text
        shaped = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls
        ]
        messages.append({"role": "assistant", "content": text or None, "tool_calls": shaped})
        for call in calls:
            result = run_tool(call["name"], call["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    raise AssertionError("no end after six turns")


def legacy_functions():
    """The ``functions`` of 2023: one call a turn, results in the ``function`` role."""
    messages, called = [{"role": "user", "content": QUESTION}], []
    functions = [tool["function"] for tool in TOOLS]
    for _ in range(6):
        message = (
            client.chat.completions.create(model=MODEL, messages=messages, functions=functions, function_call="auto")
            .choices[0]
            .message
        )
        call = message.function_call
        if call is None:
            assert LENIENT or (called == ["get_weather", "add"] and "2 + 3 = 5" in message.content), message
            return
        called.append(call.name)
        said = {"name": call.name, "arguments": call.arguments}
        messages.append({"role": "assistant", "content": None, "function_call": said})
        messages.append({"role": "function", "name": call.name, "content": run_tool(call.name, call.arguments)})
    raise AssertionError("no end after six turns")


def structured():
    ask = [{"role": "user", "content": WEATHER_QUESTION}]
    answer = client.chat.completions.parse(model=MODEL, messages=ask, response_format=Weather, **GREEDY)
    check_weather(answer.choices[0].message.parsed)


def structured_complex():
    ask = [{"role": "user", "content": "Write a report."}]
    answer = client.chat.completions.parse(model=MODEL, messages=ask, response_format=Report)
    assert answer.choices[0].message.parsed.kind == "now"


def json_object():
    ask = [{"role": "user", "content": WEATHER_QUESTION + " As JSON."}]
    answer = client.chat.completions.create(model=MODEL, messages=ask, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def responses_loop(ask):
    items = [{"role": "user", "content": QUESTION}]
    for turn in range(6):
        text, output = ask(items, turn)
        calls = [item for item in output if item.type == "function_call"]
        if not calls:
            return text
        items = [*items, *output] + [
            {"type": "function_call_output", "call_id": c.call_id, "output": run_tool(c.name, c.arguments)}
            for c in calls
        ]
    raise AssertionError("no end after six turns")


def tools_responses():
    def ask(items, turn):
        response = client.responses.create(model=MODEL, input=items, tools=FLAT_TOOLS, **forced(turn))
        return response.output_text, response.output

    return responses_loop(ask)


def tools_responses_raw_stream():
    def ask(items, turn):
        text, output = "", []
        for event in client.responses.create(model=MODEL, input=items, tools=FLAT_TOOLS, stream=True, **forced(turn)):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.output_item.done" and event.item.type == "function_call":
                output.append(event.item)
        return text, output

    return responses_loop(ask)


def tools_responses_stream():
    """The SDK's accumulator, with the history on the server."""
    items, previous = [{"role": "user", "content": QUESTION}], NOT_GIVEN
    for turn in range(6):
        fields = {"model": MODEL, "input": items, "tools": FLAT_TOOLS, "previous_response_id": previous}
        with client.responses.stream(**fields, **forced(turn)) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        previous = response.id
        items = [
            {"type": "function_call_output", "call_id": c.call_id, "output": run_tool(c.name, c.arguments)}
            for c in calls
        ]
    raise AssertionError("no end after six turns")


def structured_responses():
    check_weather(client.responses.parse(model=MODEL, input=WEATHER_QUESTION, text_format=Weather).output_parsed)


def completions():
    answer = client.completions.create(model=MODEL, prompt="Paris is", max_tokens=5)
    assert answer.choices[0].text
    assert answer.usage.completion_tokens <= 5


def completions_stream():
    chunks = client.completions.create(model=MODEL, prompt="Paris is", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def models():
    ids = [model.id for model in client.models.list()]
    assert MODEL in ids, ids
    slashed = os.environ.get("SLASHED_MODEL", MODEL)
    assert client.models.retrieve(slashed).id == slashed


def embeddings():
    answer = client.embeddings.create(model=MODEL, input=["a", "b"])
    first, second = (item.embedding for item in answer.data)
    assert len(first) == len(second) > 0
    assert first != second


def every_parameter():
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi", "name": "ann"}],
        max_tokens=10,
        seed=1,
        user="u",
        logprobs=True,
        top_logprobs=2,
        n=2,
        stop=["\n"],
        temperature=0,
        metadata={"a": "b"},
        extra_body={"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}, "not_a_field": 1},
    )
    answer = raw.parse()
    assert raw.headers["x-request-id"]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)


def stream_failure():
    ask = {"model": MODEL, "messages": [{"role": "user", "content": FAILURE_QUESTION}]}
    failure(lambda: list(client.chat.completions.create(stream=True, **ask)))
    failure(lambda: list(client.responses.create(model=MODEL, input=FAILURE_QUESTION, stream=True)))

    def helper():
        with client.chat.completions.stream(**ask) as stream:
            stream.until_done()

    failure(helper)


def errors():
    """Each refusal arrives as the exception class that the SDK has for it, its message kept."""
    ask = [{"role": "user", "content": "hi"}]
    exc = refusal(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=ask, temperature=9),
    )
    assert exc.param == "temperature", exc.param
    assert "temperature" in exc.message
    exc = refusal(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"))
    assert exc.code == "model_not_found", exc.code


main(
    {
        "tools": tools,
        "tools-stream": tools_stream,
        "tools-helper-stream": tools_helper_stream,
        "tools-parse-strict": tools_parse_strict,
        "legacy-functions": legacy_functions,
        "structured": structured,
        "structured-complex": structured_complex,
        "json-object": json_object,
        "tools-responses": tools_responses,
        "tools-responses-stream": tools_responses_stream,
        "tools-responses-raw-stream": tools_responses_raw_stream,
        "structured-responses": structured_responses,
        "completions": completions,
        "completions-stream": completions_stream,
        "models": models,
        "embeddings": embeddings,
        "every-parameter": every_parameter,
        "errors": errors,
        "stream-failure": stream_failure,
    }
)
