"""An agent with LangChain and LangGraph."""

import os

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def get_weather(city: str) -> str:
    """Get the current weather of a city."""
    print(f"get_weather: {city}")
    return f"12 degrees and rain in {city}"


model = ChatOpenAI(
    model=os.environ.get("MODEL", "qwen2.5-coder-0.5b"),
    base_url=os.environ.get("CALLGATE_URL", "http://127.0.0.1:8000") + "/v1",
    api_key="none",
    temperature=0,
)
agent = create_agent(model, [get_weather], system_prompt="Use the tool.")
question = {"role": "user", "content": "What is the weather in Oslo and in Rome?"}
print(agent.invoke({"messages": [question]})["messages"][-1].text)
