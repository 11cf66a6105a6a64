"""smolagents: tool_choice required on every turn, stop strings, the history as text."""

from common import BASE, KEY, MODEL, QUESTION, add, get_weather, main
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

TOOLS = [tool(get_weather), tool(add)]


def run(**options):
    model = OpenAIServerModel(model_id=MODEL, api_base=BASE, api_key=KEY)
    return ToolCallingAgent(tools=TOOLS, model=model, verbosity_level=-1, max_steps=6, **options).run(QUESTION)


main({"tools": run, "tools-stream": lambda: run(stream_outputs=True)})
