"""instructor in three modes, and LlamaIndex: both want version 2 of the package openai."""

import asyncio

import instructor
import openai
import pytest
from conftest import AnyObject, Sky
from instructor.core import IncompleteOutputException
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

INSTRUCTOR = pytest.mark.client("instructor")
LLAMA_INDEX = pytest.mark.client("llama-index-core", "llama-index-llms-openai-like")

MESSAGES = [{"role": "user", "content": "How is the sky? Answer with one small JSON object."}]
MODES = [
    (instructor.Mode.TOOLS, Sky),
    (instructor.Mode.JSON_SCHEMA, Sky),
]


ASK = dict(model="default", messages=MESSAGES, temperature=0, max_tokens=150, max_retries=0)


@pytest.mark.parametrize("mode, form", MODES, ids=lambda value: getattr(value, "name", ""))
@INSTRUCTOR
def test_instructor_gets_the_type(url, mode, form):
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
    answer, raw = client.create_with_completion(response_model=form, **ASK)
    assert isinstance(answer, form)
    assert raw.choices[0].finish_reason in ("stop", "tool_calls")
    *_, last = client.create_partial(response_model=form, **ASK)
    assert last.model_dump() == answer.model_dump()


@INSTRUCTOR
def test_instructor_asks_for_an_object_by_prompt(url):
    """The answer is one JSON object. A small model may write one that `max_tokens` cuts."""
    mode = instructor.Mode.JSON
    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=mode)
    try:
        assert isinstance(client.create(response_model=AnyObject, **ASK), AnyObject)
    except IncompleteOutputException as error:
        assert error.last_completion.choices[0].message.content.startswith("{")


@pytest.fixture(name="llm")
def fixture_llm(url):
    return OpenAILike(
        model="default",
        api_base=url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        context_window=8192,
        temperature=0,
        max_tokens=100,
        max_retries=0,
    )


def zone_time(zone: int) -> str:
    """The time in a zone."""
    return f"It is noon in zone {zone}."


@LLAMA_INDEX
def test_llama_index_streams_what_it_answers_whole(llm):
    messages = [ChatMessage(role="user", content="Why is the sky blue?")]
    whole = llm.chat(messages).message.content
    assert "".join(chunk.delta or "" for chunk in llm.stream_chat(messages)) == whole
    assert llm.complete("Why is the sky blue?").text == whole


@LLAMA_INDEX
def test_llama_index_calls_a_tool(llm):
    tool = FunctionTool.from_defaults(zone_time)
    asked = dict(user_msg="What time is it in zone 3?", tool_required=True)
    (call,) = llm.get_tool_calls_from_response(llm.chat_with_tools([tool], **asked))
    assert call.tool_name == "zone_time" and isinstance(call.tool_kwargs["zone"], int)
    assert llm.predict_and_call([tool], **asked).response.startswith("It is noon in zone ")
    *_, last = llm.stream_chat_with_tools([tool], **asked)
    (streamed,) = llm.get_tool_calls_from_response(last)
    assert streamed.tool_kwargs == call.tool_kwargs


@LLAMA_INDEX
def test_llama_index_gets_the_type(llm):
    message = ChatMessage(role="user", content="How is the sky?")
    assert isinstance(llm.as_structured_llm(Sky).chat([message]).raw, Sky)
    *_, last = llm.as_structured_llm(Sky).stream_chat([message])
    assert isinstance(last.raw, Sky)


@LLAMA_INDEX
def test_an_agent_of_llama_index_answers(llm):
    """The first step must call; `return_direct` makes the result the answer."""
    tool = FunctionTool.from_defaults(zone_time, return_direct=True)
    agent = FunctionAgent(tools=[tool], llm=llm, initial_tool_choice="zone_time")

    async def run():
        return await agent.run("What time is it in zone 3?")

    assert "It is noon in zone " in str(asyncio.run(run()))
