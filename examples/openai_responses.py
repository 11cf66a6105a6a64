"""The Responses API: events as they come, and ``previous_response_id`` instead of sending the history again."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = os.environ.get("MODEL", "qwen2.5-coder-0.5b")
parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "name": "get_weather", "parameters": parameters, "strict": False}]

first = client.responses.create(
    model=model, input="What is the weather in Oslo?", tools=tools, tool_choice="required", temperature=0
)
results = []
for item in first.output:
    if item.type == "function_call":
        city = json.loads(item.arguments)["city"]
        print(f"{item.name}: {city}")
        output = f"12 degrees and rain in {city}"
        results.append({"type": "function_call_output", "call_id": item.call_id, "output": output})

with client.responses.stream(
    model=model, input=results, tools=tools, tool_choice="none", previous_response_id=first.id, temperature=0
) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
print()
