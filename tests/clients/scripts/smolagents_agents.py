"""smolagents: tool_choice required on every turn, stop strings, the history as text."""

from common import BASE, CALLS, FAILURE_QUESTION, KEY, LENIENT, MODEL, QUESTION, add, failure, get_weather, main
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

TOOLS = [tool(get_weather), tool(add)]


def run(**options):
    model = OpenAIServerModel(model_id=MODEL, api_base=BASE, api_key=KEY)
    agent = ToolCallingAgent(tools=TOOLS, model=model, verbosity_level=-1, max_steps=6, **options)
    answer = agent.run(QUESTION)
    if LENIENT:  # a small model may answer at once, which is a call of final_answer
        steps = (getattr(step, "tool_calls", None) or [] for step in agent.memory.steps)
        CALLS.extend((call.name,) for calls in steps for call in calls)
    return answer


def stream_failure():
    model = OpenAIServerModel(model_id=MODEL, api_base=BASE, api_key=KEY)
    ask = [{"role": "user", "content": [{"type": "text", "text": FAILURE_QUESTION}]}]
    failure(lambda: list(model.generate_stream(ask)))


main({"stream-failure": stream_failure, "tools": run, "tools-stream": lambda: run(stream_outputs=True)})
