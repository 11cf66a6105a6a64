"""The tool loop, streamed: text is printed as it arrives, calls are put together from their parts."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = os.environ.get("MODEL", "qwen2.5-coder-0.5b")
parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]


def ask(messages):
    """One streamed answer as a message for the history; its text is printed on the way."""
    text, calls = "", []
    stream = client.chat.completions.create(model=model, messages=messages, tools=tools, stream=True, temperature=0)
    for chunk in stream:
        delta = chunk.choices[0].delta
        if delta.content:
            print(delta.content, end="", flush=True)
            text += delta.content
        for part in delta.tool_calls or []:
            if part.id:  # the first part of a call: its id and its whole name
                function = {"name": part.function.name, "arguments": ""}
                calls.append({"id": part.id, "type": "function", "function": function})
            calls[part.index]["function"]["arguments"] += part.function.arguments
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


messages = [{"role": "user", "content": "What is the weather in Oslo and in Rome?"}]
for _ in range(5):
    message = ask(messages)
    messages.append(message)
    if "tool_calls" not in message:
        print()
        break
    for call in message["tool_calls"]:
        city = json.loads(call["function"]["arguments"])["city"]
        print(f"{call['function']['name']}: {city}")
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"12 degrees and rain in {city}"})
