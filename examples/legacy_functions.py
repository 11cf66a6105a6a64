"""``functions`` and ``function_call``: what code of 2023 sends, and gets back."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = os.environ.get("MODEL", "qwen2.5-coder-0.5b")
parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
functions = [{"name": "get_weather", "description": "Get the current weather of a city", "parameters": parameters}]
messages = [{"role": "user", "content": "What is the weather in Oslo?"}]

choice = client.chat.completions.create(
    model=model, messages=messages, functions=functions, function_call={"name": "get_weather"}, temperature=0
).choices[0]
call = choice.message.function_call
print(choice.finish_reason, call.name, call.arguments)

messages.append(choice.message)
messages.append({"role": "function", "name": call.name, "content": "12 degrees and rain in Oslo"})
answer = client.chat.completions.create(
    model=model, messages=messages, functions=functions, function_call="none", temperature=0
)
print(answer.choices[0].message.content)
