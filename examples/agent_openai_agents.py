"""An agent with openai-agents, on the Responses API."""

import os

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)  # traces would go to api.openai.com


@function_tool
def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    print(f"get_weather: {city}")
    return f"12 degrees and rain in {city}"


client = AsyncOpenAI(base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
model = OpenAIResponsesModel(model=os.environ.get("MODEL", "qwen2.5-coder-0.5b"), openai_client=client)
agent = Agent(
    name="weather",
    instructions="Use the tool.",
    model=model,
    model_settings=ModelSettings(temperature=0, max_tokens=300),
    tools=[get_weather],
)
print(Runner.run_sync(agent, "What is the weather in Oslo and in Rome?").final_output)
