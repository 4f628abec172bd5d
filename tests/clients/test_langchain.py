"""LangChain: an agent with two tools, typed answers in three ways, streams and batches."""

import asyncio

import pytest
from conftest import AnyObject, Sky
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.client("langchain", "langchain-openai")


@tool
def clock(zone: int) -> str:
    """The time in a zone."""
    return f"12:00 in zone {zone}"


@tool
def colour(thing: str) -> str:
    """The colour of a thing."""
    return f"{thing[:20]} is blue"


@pytest.fixture(scope="module")
def model(url):
    return ChatOpenAI(
        model="default",
        base_url=url,
        api_key="none",
        temperature=0,
        max_completion_tokens=100,
        max_retries=0,
        stream_usage=True,
    )


@wrap_model_call
def each_tool_once(request, handler):
    used = {m.name for m in request.messages if isinstance(m, ToolMessage)}
    left = [offered for offered in request.tools if offered.name not in used]
    settings = {"parallel_tool_calls": False} if left else {}
    return handler(
        request.override(
            tools=left, tool_choice="required" if left else None, model_settings=settings
        )
    )


@wrap_model_call
async def each_tool_once_async(request, handler):
    return await each_tool_once.wrap_model_call(request, handler)


def check_conversation(messages):
    results = [m for m in messages if isinstance(m, ToolMessage)]
    assert sorted(m.name for m in results) == ["clock", "colour"]
    assert all(m.status == "success" for m in results)
    calls = [call["id"] for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
    assert calls == [m.tool_call_id for m in results]
    assert isinstance(messages[-1], AIMessage) and messages[-1].text
    assert messages[-1].usage_metadata["output_tokens"] > 0


QUESTION = {"messages": [("user", "What time is it in zone 3, and which colour has the sky?")]}


def test_an_agent_uses_two_tools_and_answers(model):
    agent = create_agent(model, [clock, colour], middleware=[each_tool_once])
    whole = agent.invoke(QUESTION)["messages"]
    check_conversation(whole)
    *_, streamed = agent.stream(QUESTION, stream_mode="values")
    check_conversation(streamed["messages"])
    assert streamed["messages"][-1].text == whole[-1].text


def test_an_agent_streams_tokens_of_calls_and_text(model):
    agent = create_agent(model, [clock, colour], middleware=[each_tool_once])
    arguments, text = "", ""
    for chunk, where in agent.stream(QUESTION, stream_mode="messages"):
        if where["langgraph_node"] == "model":
            text += chunk.text
            arguments += "".join(c["args"] or "" for c in chunk.tool_call_chunks)
    assert arguments.count("{") == 2 and text == agent.invoke(QUESTION)["messages"][-1].text


def test_an_agent_answers_with_a_type(model):
    for strategy in (ProviderStrategy(Sky), ToolStrategy(Sky)):
        agent = create_agent(model, [], response_format=strategy)
        answer = agent.invoke({"messages": [("user", "How is the sky?")]})
        assert isinstance(answer["structured_response"], Sky), strategy


@pytest.mark.parametrize(
    "method, form",
    [("json_schema", Sky), ("function_calling", Sky), ("json_mode", AnyObject)],
)
def test_an_answer_has_a_type(model, method, form):
    typed = model.with_structured_output(form, method=method)
    question = "How is the sky? Answer with a small JSON object."
    answer = typed.invoke(question)
    assert isinstance(answer, form)
    *_, last = typed.stream(question)
    assert last == answer


def test_streams_batches_and_async_calls_have_one_answer(model):
    whole = model.invoke("Why is the sky blue?")
    chunks = list(model.stream("Why is the sky blue?"))
    assert "".join(c.text for c in chunks) == whole.text
    total = chunks[0]
    for chunk in chunks[1:]:
        total += chunk
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]
    assert total.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    batch = model.batch(["Why is the sky blue?", "Count to three."])
    assert batch[0].text == whole.text and batch[1].text
    assert asyncio.run(model.ainvoke("Why is the sky blue?")).text == whole.text
