"""The tool loop with the openai SDK: ask, run what the model calls, give the results back, until it answers."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = os.environ.get("MODEL", "qwen2.5-coder-0.5b")


def get_weather(city: str) -> str:
    return f"12 degrees and rain in {city}"


tools = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
messages = [{"role": "user", "content": "What is the weather in Oslo and in Rome?"}]

for _ in range(5):
    answer = client.chat.completions.create(model=model, messages=messages, tools=tools, temperature=0)
    message = answer.choices[0].message
    if not message.tool_calls:
        print(message.content)
        break
    messages.append(message)
    for call in message.tool_calls:
        try:
            result = get_weather(**json.loads(call.function.arguments))
        except TypeError as error:  # the model's mistake is the model's to mend
            result = f"error: {error}"
        print(f"{call.function.name}({call.function.arguments}) -> {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
