"""openai-agents with its models of chats and of Responses: tools, types, streams."""

import asyncio

import agents
import openai
import pytest
from conftest import Sky

pytestmark = pytest.mark.client("openai-agents")

agents.set_tracing_disabled(True)
SETTINGS = {"temperature": 0, "max_tokens": 100}


@pytest.fixture(name="model", params=["chat", "responses"])
def fixture_model(request, url):
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    if request.param == "chat":
        return agents.OpenAIChatCompletionsModel(model="default", openai_client=client)
    # The class that the package takes where a user names none.
    model = agents.OpenAIProvider(openai_client=client).get_model("default")
    assert isinstance(model, agents.OpenAIResponsesModel)
    return model


@agents.function_tool
def clock(zone: int) -> str:
    """The time in a zone."""
    return f"It is noon in zone {zone}."


def test_a_tool_is_called_and_its_result_is_the_answer(model):
    agent = agents.Agent(
        name="a",
        model=model,
        tools=[clock],
        tool_use_behavior="stop_on_first_tool",
        model_settings=agents.ModelSettings(
            tool_choice="required", parallel_tool_calls=False, **SETTINGS
        ),
    )

    async def both():
        whole = await agents.Runner.run(agent, "What time is it in zone 3?")
        run = agents.Runner.run_streamed(agent, "What time is it in zone 3?")
        kinds = [event.type async for event in run.stream_events()]
        return whole.final_output, run.final_output, kinds

    whole, streamed, kinds = asyncio.run(both())
    assert whole.startswith("It is noon in zone ")
    assert streamed == whole and "raw_response_event" in kinds


def test_the_model_goes_on_after_a_result(model):
    """The second step has no tool: the model answers in words."""
    called = []

    def offered(context, agent):
        return not called

    @agents.function_tool(is_enabled=offered)
    def number() -> str:
        """A number."""
        called.append(1)
        return "7"

    agent = agents.Agent(
        name="a",
        model=model,
        tools=[number],
        model_settings=agents.ModelSettings(
            tool_choice="required", parallel_tool_calls=False, **SETTINGS
        ),
    )
    result = agents.Runner.run_sync(agent, "Which number is it?")
    assert called == [1] and isinstance(result.final_output, str) and result.final_output


def test_an_answer_has_the_type(model):
    agent = agents.Agent(
        name="a",
        model=model,
        output_type=Sky,
        model_settings=agents.ModelSettings(**SETTINGS),
    )
    assert isinstance(agents.Runner.run_sync(agent, "How is the sky?").final_output, Sky)
