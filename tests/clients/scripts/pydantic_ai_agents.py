"""pydantic-ai: the strictest reader of answers, with its four ways to structured output."""

from common import (
    BASE,
    FAILURE,
    FAILURE_QUESTION,
    KEY,
    MODEL,
    QUESTION,
    WEATHER_QUESTION,
    add,
    check_weather,
    get_weather,
    main,
)
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Weather(BaseModel):
    city: str
    temperature_c: float
    conditions: list[str]


def model(kind=OpenAIChatModel):
    return kind(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))


def agent(kind=OpenAIChatModel, **options):
    return Agent(model(kind), instructions="Use the tools.", tools=[get_weather, add], **options)


def tools(kind):
    async def run():
        return (await agent(kind).run(QUESTION)).output

    return run


def tools_stream(kind):
    """run_stream takes any text, even white space before a call, as the final answer."""

    async def run():
        async with agent(kind).run_stream(QUESTION) as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    return run


async def tools_iter_stream():
    helper = agent()
    async with helper.iter(QUESTION) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
    return run.result.output


async def tools_structured():
    check_weather((await agent(output_type=Weather).run(QUESTION)).output)
    return "2 + 3 = 5"  # this agent's result has no text


async def tools_structured_stream():
    async with agent(output_type=Weather).run_stream(QUESTION) as result:
        check_weather(await result.get_output())
    return "2 + 3 = 5"


def structured(output, question=WEATHER_QUESTION):
    async def run():
        check_weather((await Agent(model(), output_type=output).run(question)).output)

    return run


async def parameters():
    settings = {"temperature": 0.0, "max_tokens": 50, "parallel_tool_calls": False, "seed": 1}
    helper = Agent(model(), system_prompt="Be brief.")
    answer = await helper.run("hi", model_settings={**settings, "extra_body": {"top_k": 5}})
    assert answer.output
    assert answer.usage.output_tokens > 0


async def stream_failure():
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        try:
            async with Agent(model(kind)).run_stream(FAILURE_QUESTION) as result:
                said = await result.get_output()
        except Exception as exc:
            said = str(exc)
        assert FAILURE in said, said


main(
    {
        "tools": tools(OpenAIChatModel),
        "tools-stream": tools_stream(OpenAIChatModel),
        "tools-iter-stream": tools_iter_stream,
        "tools-structured": tools_structured,
        "tools-structured-stream": tools_structured_stream,
        "structured-tool": structured(Weather),
        "structured-native": structured(NativeOutput(Weather)),
        "structured-prompted": structured(PromptedOutput(Weather)),
        "tools-responses": tools(OpenAIResponsesModel),
        "tools-responses-stream": tools_stream(OpenAIResponsesModel),
        "parameters": parameters,
        "stream-failure": stream_failure,
    }
)
