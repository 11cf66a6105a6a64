"""What every client script shares: the task, its tools, and ``main``, which runs scenarios and reports.

    BASE=http://host:port/v1 MODEL=name python openai_sdk.py [scenario ...]

Prints one JSON object a scenario: ``{"scenario", "ok", "why", "seconds"}``. Scenarios whose name starts with ``tools``
pass if both tools ran exactly once with the right arguments and the final text came back; the others if their own
checks hold. With LENIENT=1 (a real model decides) a tools scenario passes if the client ran at least one declared tool
with arguments of the right types and ended without an error.
"""

import asyncio
import inspect
import json
import logging
import os
import sys
import time
import traceback
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
os.environ.setdefault("LANGSMITH_TRACING", "false")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("DO_NOT_TRACK", "1")

BASE = os.environ.get("BASE", "http://127.0.0.1:8000/v1")
MODEL = os.environ.get("MODEL", "test-model")
LENIENT = os.environ.get("LENIENT") == "1"
GREEDY = {"temperature": 0} if LENIENT else {}
TIMEOUT = float(os.environ.get("TIMEOUT", "30"))
KEY = "sk-test"
QUESTION = "What is the weather in Paris, and what is 2 + 3? Use the tools."
ANSWER = "2 + 3 = 5"
WEATHER_QUESTION = "Weather in Paris?"
FAILURE_QUESTION = "Fail in the middle of the answer."
FAILURE = "engine"  # a word of the server's message
WEATHER_FIELDS = {"city", "temperature_c", "conditions"}
CALLS = []


def get_weather(city: str) -> str:
    """Get the current weather for a city.

    Args:
        city: Name of the city.
    """
    CALLS.append(("get_weather", city))
    return f"sunny, 21C in {city}"


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: First integer.
        b: Second integer.
    """
    CALLS.append(("add", a, b))
    return a + b


def _function(name, description, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _function("get_weather", "Get the current weather for a city.", city={"type": "string"}),
    _function("add", "Add two integers.", a={"type": "integer"}, b={"type": "integer"}),
]
FUNCTIONS = {"get_weather": get_weather, "add": add}


def run_tool(name, arguments):
    """The result of a call, as text; arguments as JSON text or already parsed."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return str(FUNCTIONS[name](**arguments))


def _strict(text):
    wanted = [("add", 2, 3), ("get_weather", "Paris")]
    if sorted(CALLS, key=str) != wanted:
        return f"the calls were {CALLS}"
    return "" if ANSWER in str(text) else f"the final text was {str(text)[:200]!r}"


def _lenient():
    types = {"get_weather": str, "add": int}
    for name, *values in CALLS:
        if not all(isinstance(value, types.get(name, object)) for value in values):
            return f"arguments of the wrong type: {CALLS}"
    return "" if CALLS else "no tool was called"


def forced(turn):
    """A real model is made to call on its first turn and to answer afterwards."""
    return {"tool_choice": "none" if turn else "required", **GREEDY} if LENIENT else {}


def check_weather(value):
    """The fields of a structured answer."""
    value = value if isinstance(value, dict) else value.model_dump()
    assert set(value) == WEATHER_FIELDS, value
    assert isinstance(value["city"], str), value
    assert all(isinstance(item, str) for item in value["conditions"]), value
    float(value["temperature_c"])


def refusal(kind, ask):
    """The exception of a class that ``ask()`` raises."""
    try:
        ask()
    except kind as exc:
        return exc
    raise AssertionError(f"no {kind.__name__}")


def failure(ask):
    """``ask()`` streams an answer that fails in the middle: it must raise, and say why."""
    said = str(refusal(Exception, ask))
    assert FAILURE in said, said


def _run(scenario):
    CALLS.clear()
    if inspect.iscoroutinefunction(scenario):
        return asyncio.run(asyncio.wait_for(scenario(), TIMEOUT * 3))
    return scenario()


def main(scenarios):
    """Run the named scenarios, or all; the exit status says whether all passed."""
    logging.disable(logging.CRITICAL)
    failed = 0
    for name in sys.argv[1:] or scenarios:
        begun, why = time.monotonic(), ""
        try:
            text = _run(scenarios[name])
            if name.startswith("tools"):
                why = _lenient() if LENIENT else _strict(text)
        except Exception as exc:
            traceback.print_exc()
            why = f"{type(exc).__name__}: {str(exc)[:400]}"
        failed += bool(why)
        report = {"scenario": name, "ok": not why, "why": why, "seconds": round(time.monotonic() - begun, 2)}
        print("\n" + json.dumps(report), flush=True)  # a line of its own, whatever a client has printed
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # clients leave threads behind that would hold the exit up
