"""The ollama SDK against /api: loops, streamed and not, formats, embeddings, what is served."""

import json

import ollama
from common import (
    BASE,
    FAILURE_QUESTION,
    FUNCTIONS,
    LENIENT,
    MODEL,
    QUESTION,
    TIMEOUT,
    WEATHER_QUESTION,
    check_weather,
    failure,
    main,
    refusal,
    run_tool,
)
from pydantic import BaseModel

client = ollama.Client(host=BASE.removesuffix("/v1"), timeout=TIMEOUT)
NAME = MODEL if ":" in MODEL else f"{MODEL}:latest"  # what the list says
OPTIONS = {"temperature": 0, "num_ctx": 4096} if LENIENT else {"num_predict": -1, "num_ctx": 4096}


class Weather(BaseModel):
    city: str
    temperature_c: float
    conditions: list[str]


def ask(messages, **fields):
    return client.chat(model=NAME, messages=messages, options=OPTIONS, **fields)


def whole(messages, **fields):
    return ask(messages, **fields).message


def streamed(messages, **fields):
    text, calls, last = "", [], None
    for last in ask(messages, stream=True, **fields):
        text += last.message.content or ""
        calls += last.message.tool_calls or []
    assert last.done, last
    assert last.done_reason == "stop", last
    assert last.eval_count, last
    assert last.eval_duration, last
    return ollama.Message(role="assistant", content=text, tool_calls=calls or None)


def loop(answer):
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(6):
        message = answer(messages, tools=list(FUNCTIONS.values()))
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            name = call.function.name
            messages.append(
                {"role": "tool", "tool_name": name, "content": run_tool(name, dict(call.function.arguments))}
            )
    raise AssertionError("no end after six turns")


def structured():
    message = whole([{"role": "user", "content": WEATHER_QUESTION}], format=Weather.model_json_schema())
    check_weather(Weather.model_validate_json(message.content))


def json_object():
    message = whole([{"role": "user", "content": f"{WEATHER_QUESTION} Answer in JSON."}], format="json")
    assert isinstance(json.loads(message.content), dict)


def generate():
    assert client.generate(model=NAME, prompt="hi", options=OPTIONS).response
    parts = list(client.generate(model=NAME, prompt="hi", options=OPTIONS, stream=True))
    assert "".join(part.response for part in parts)
    assert parts[-1].done


def embeddings():
    found = client.embed(model=NAME, input=["a", "b"])
    assert len(found.embeddings) == 2
    assert client.embeddings(model=NAME, prompt="a").embedding == found.embeddings[0]


def models():
    assert NAME in [model.model for model in client.list().models]
    assert NAME in [model.model for model in client.ps().models]
    assert "tools" in client.show(NAME).capabilities
    assert client.generate(model=NAME, prompt="", keep_alive=-1).done_reason == "load"


def errors():
    exc = refusal(ollama.ResponseError, lambda: client.chat(model="no-such-model", messages=[]))
    assert exc.status_code == 404, exc
    assert "no-such-model" in exc.error, exc


def stream_failure():
    failure(lambda: streamed([{"role": "user", "content": FAILURE_QUESTION}]))


main(
    {
        "tools": lambda: loop(whole),
        "tools-stream": lambda: loop(streamed),
        "structured": structured,
        "json-object": json_object,
        "generate": generate,
        "embeddings": embeddings,
        "models": models,
        "errors": errors,
        "stream-failure": stream_failure,
    }
)
