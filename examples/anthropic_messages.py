"""The tool loop with Anthropic's SDK, on /v1/messages."""

import os

from anthropic import Anthropic

client = Anthropic(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000"), api_key="none")
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"name": "get_weather", "description": "Get the current weather of a city", "input_schema": schema}]
messages = [{"role": "user", "content": "What is the weather in Oslo and in Rome?"}]

for _ in range(5):
    with client.messages.stream(
        model=os.environ.get("MODEL", "qwen2.5-coder-0.5b"),
        max_tokens=500,
        messages=messages,
        tools=tools,
        extra_body={"temperature": 0},  # newer SDKs have no parameter for it
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
        message = stream.get_final_message()
    calls = [block for block in message.content if block.type == "tool_use"]
    if not calls:
        print()
        break
    messages.append({"role": "assistant", "content": message.content})
    results = []
    for call in calls:
        result = f"12 degrees and rain in {call.input['city']}"
        print(f"{call.name}({call.input}) -> {result}")
        results.append({"type": "tool_result", "tool_use_id": call.id, "content": result})
    messages.append({"role": "user", "content": results})
