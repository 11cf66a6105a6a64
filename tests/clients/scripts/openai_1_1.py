"""openai 1.1.0, the oldest SDK with ``tools``: dictionaries back into the history, unescaped model ids, float lists."""

import json
import os

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
    forced,
    main,
    refusal,
    run_tool,
)
from openai import APIError, OpenAI

client = OpenAI(base_url=BASE, api_key=KEY, timeout=TIMEOUT)


def tools():
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(6):
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, **forced(turn))
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = run_tool(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("no end after six turns")


def tools_stream():
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(6):
        text, calls = "", []
        for chunk in client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, stream=True, **forced(turn)
        ):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for part in delta.tool_calls or []:
                if part.id:
                    calls.append({"id": part.id, "name": part.function.name, "arguments": ""})
                calls[part.index]["arguments"] += part.function.arguments
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
    messages, called = [{"role": "user", "content": QUESTION}], []
    functions = [tool["function"] for tool in TOOLS]
    for _ in range(6):
        answer = client.chat.completions.create(
            model=MODEL, messages=messages, functions=functions, function_call="auto"
        )
        call = answer.choices[0].message.function_call
        if call is None:
            assert LENIENT or called == ["get_weather", "add"], called
            return
        called.append(call.name)
        said = {"name": call.name, "arguments": call.arguments}
        messages.append({"role": "assistant", "content": None, "function_call": said})
        messages.append({"role": "function", "name": call.name, "content": run_tool(call.name, call.arguments)})
    raise AssertionError("no end after six turns")


def json_object():
    ask = [{"role": "user", "content": WEATHER_QUESTION + " As JSON."}]
    answer = client.chat.completions.create(model=MODEL, messages=ask, response_format={"type": "json_object"})
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def completions():
    assert client.completions.create(model=MODEL, prompt="Paris is", max_tokens=5).choices[0].text


def completions_stream():
    chunks = client.completions.create(model=MODEL, prompt="Paris is", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks)


def models():
    assert MODEL in [model.id for model in client.models.list()]
    slashed = os.environ.get("SLASHED_MODEL", MODEL)
    assert client.models.retrieve(slashed).id == slashed


def embeddings():
    vector = client.embeddings.create(model=MODEL, input=["a", "b"]).data[1].embedding
    assert all(isinstance(value, float) for value in vector)


def stream_failure():
    """This SDK raises, but with words of its own instead of the server's."""
    ask = [{"role": "user", "content": FAILURE_QUESTION}]
    exc = refusal(APIError, lambda: list(client.chat.completions.create(model=MODEL, messages=ask, stream=True)))
    assert "streaming" in str(exc), exc


main(
    {
        "tools": tools,
        "tools-stream": tools_stream,
        "legacy-functions": legacy_functions,
        "json-object": json_object,
        "completions": completions,
        "completions-stream": completions_stream,
        "models": models,
        "embeddings": embeddings,
        "stream-failure": stream_failure,
    }
)
