"""openai-agents: agents on the Responses API (its default) and on chat completions."""

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import (
    BASE,
    FAILURE,
    FAILURE_QUESTION,
    KEY,
    LENIENT,
    MODEL,
    QUESTION,
    TIMEOUT,
    WEATHER_QUESTION,
    add,
    check_weather,
    get_weather,
    main,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
TOOLS = [function_tool(get_weather), function_tool(add)]
REQUIRED = ModelSettings(tool_choice="required")


class Weather(BaseModel):
    city: str
    temperature_c: float
    conditions: list[str]


def agent(api, **options):
    model = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    client = AsyncOpenAI(base_url=BASE, api_key=KEY, timeout=TIMEOUT)
    options = {"tools": TOOLS, "model_settings": REQUIRED if LENIENT else ModelSettings(), **options}
    return Agent(name="helper", instructions="Use the tools.", model=model(MODEL, openai_client=client), **options)


def scenarios(api, suffix):
    async def tools():
        return (await Runner.run(agent(api), QUESTION, max_turns=6)).final_output

    async def stream():
        result = Runner.run_streamed(agent(api), QUESTION, max_turns=6)
        async for _ in result.stream_events():
            pass
        return result.final_output

    async def stream_failure():
        result = Runner.run_streamed(agent(api, tools=[], model_settings=ModelSettings()), FAILURE_QUESTION)
        try:
            async for _ in result.stream_events():
                pass
        except Exception as exc:
            said = str(exc)
        else:
            said = "no error"
        assert FAILURE in said, said

    async def settings():
        one_at_a_time = ModelSettings(temperature=0, max_tokens=300, parallel_tool_calls=False, tool_choice="required")
        return (await Runner.run(agent(api, model_settings=one_at_a_time), QUESTION, max_turns=6)).final_output

    async def handoff():
        triage = agent(api, tools=[], handoffs=[agent(api)], model_settings=REQUIRED)
        triage.name = "triage"
        return (await Runner.run(triage, QUESTION, max_turns=8)).final_output

    async def structured():
        bare = agent(api, tools=[], output_type=Weather, model_settings=ModelSettings())
        check_weather((await Runner.run(bare, WEATHER_QUESTION)).final_output)

    return {
        f"tools{suffix}": tools,
        f"tools{suffix}-stream": stream,
        f"tools{suffix}-one-at-a-time": settings,
        f"tools{suffix}-handoff": handoff,
        f"structured{suffix}": structured,
        f"stream-failure{suffix}": stream_failure,
    }


main({**scenarios("chat", ""), **scenarios("responses", "-responses")})
