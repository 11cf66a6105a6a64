"""Several calls in one answer, run at the same time; each result goes back under the id of its call."""

import asyncio
import json
import os

from openai import AsyncOpenAI

client = AsyncOpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = os.environ.get("MODEL", "qwen2.5-coder-0.5b")
parameters = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
weather = {"name": "get_weather", "description": "Get the weather of a city", "parameters": parameters, "strict": True}
tools = [{"type": "function", "function": weather}]
messages = [{"role": "user", "content": "What is the weather in Oslo and in Rome? Call the tool once for each city."}]


async def get_weather(city):
    await asyncio.sleep(0.1)  # a request to somewhere
    return f"12 degrees and rain in {city}"


async def run(call):
    result = await get_weather(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) -> {result}")
    return {"role": "tool", "tool_call_id": call.id, "content": result}


async def ask(tool_choice):
    answer = await client.chat.completions.create(
        model=model, messages=messages, tools=tools, tool_choice=tool_choice, temperature=0
    )
    messages.append(answer.choices[0].message)
    return answer.choices[0].message


async def main():
    calls = (await ask("required")).tool_calls
    messages.extend(await asyncio.gather(*map(run, calls)))
    print((await ask("none")).content)


asyncio.run(main())
