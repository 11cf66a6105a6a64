"""An agent with pydantic-ai whose answer is an object."""

import os

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Report(BaseModel):
    """The weather in several cities."""

    summary: str
    wet_cities: list[str]


base_url = os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1"
provider = OpenAIProvider(base_url=base_url, api_key="none")
model = OpenAIChatModel(os.environ.get("MODEL", "qwen2.5-coder-0.5b"), provider=provider)
agent = Agent(model, instructions="Use the tool.", output_type=Report, model_settings={"temperature": 0})


@agent.tool_plain
def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    print(f"get_weather: {city}")
    return f"12 degrees and rain in {city}"


print(repr(agent.run_sync("What is the weather in Oslo and in Rome?").output))
